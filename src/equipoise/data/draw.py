"""Draws a batch of dermoscopy images from traits: all images of the batch at once, as arrays [batch,
y, x]."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

TONES = ("light", "medium", "dark")
SKIN = np.array([[0.89, 0.72, 0.64], [0.78, 0.58, 0.46], [0.54, 0.38, 0.29]], np.float32)

TAN, BROWN, BLACK = (0.66, 0.43, 0.28), (0.36, 0.20, 0.12), (0.13, 0.08, 0.08)
PINK, RED, YELLOW = (0.84, 0.47, 0.45), (0.62, 0.10, 0.14), (0.80, 0.63, 0.35)
WHITE, SCALE, BLUE = (0.93, 0.88, 0.86), (0.93, 0.87, 0.72), (0.42, 0.49, 0.60)


@dataclass(frozen=True)
class Camera:
    """What a hospital's images have in common."""

    tones: tuple[float, float, float]
    """shares of light, medium and dark skin"""
    cast: tuple[float, float, float]
    """gain of red, green and blue"""
    zoom: float
    """how large lesions appear"""
    vignette: float
    """how dark the corners are"""
    light: float
    """how uneven the light is"""
    noise: float
    """standard deviation of the sensor noise"""
    hair: float
    """share of images with hair"""


CAMERAS: dict[str, Camera] = {
    "bcn": Camera((0.55, 0.35, 0.10), (1.02, 0.98, 0.97), 1.10, 0.45, 0.10, 0.025, 0.35),
    "vidir_molemax": Camera((0.85, 0.14, 0.01), (1.05, 0.92, 0.98), 0.85, 0.05, 0.05, 0.015, 0.20),
    "vidir_modern": Camera((0.80, 0.18, 0.02), (0.99, 0.99, 1.04), 1.00, 0.15, 0.06, 0.015, 0.25),
    "rosendahl": Camera((0.70, 0.28, 0.02), (1.00, 1.02, 0.93), 1.15, 0.20, 0.12, 0.020, 0.40),
    "msk4": Camera((0.60, 0.30, 0.10), (0.95, 0.98, 1.06), 0.95, 0.30, 0.15, 0.030, 0.30),
    "vienna_dias": Camera((0.88, 0.12, 0.00), (1.08, 0.97, 0.86), 0.90, 0.10, 0.08, 0.045, 0.20),
}


class _Plane:
    """The picture plane of a batch, with the draws every layer needs."""

    def __init__(self, count: int, size: int, rng: np.random.Generator) -> None:
        line = (np.arange(size, dtype=np.float32) + 0.5) * (2 / size) - 1
        self.x, self.y = line[None, None, :], line[None, :, None]
        self.count, self.pixel, self.rng = count, 2 / size, rng

    def uniform(self, low: float, high: float) -> np.ndarray:
        """One number per image, ready to be combined with planes."""
        return self.rng.uniform(low, high, (self.count, 1, 1)).astype(np.float32)

    def waves(self, low: float, high: float, number: int = 4) -> np.ndarray:
        """Smooth noise of unit variance: plane waves of `low` to `high` cycles per unit in random
        directions."""
        total: np.ndarray = np.zeros(1, np.float32)
        for _ in range(number):
            turn, cycles = self.uniform(0, np.pi), 2 * np.pi * self.uniform(low, high)
            phase = self.uniform(0, 2 * np.pi)
            total = total + np.cos(cycles * np.cos(turn) * self.x + cycles * np.sin(turn) * self.y + phase)
        return total * np.float32(np.sqrt(2 / number))

    def spots(
        self, cx: np.ndarray, cy: np.ndarray, reach: np.ndarray, width: tuple[float, float], number: int
    ) -> np.ndarray:
        """Round spots scattered within `reach` of a centre, as a plane in [0, 1]."""
        total: np.ndarray = np.zeros(1, np.float32)
        for _ in range(number):
            turn, far = self.uniform(0, 2 * np.pi), reach * np.sqrt(self.uniform(0, 1))
            sigma = np.maximum(self.uniform(*width), 0.6 * self.pixel)
            # A round spot is a product of two lines: cheaper than a distance for every pixel.
            across = np.exp(-(((self.x - cx - far * np.cos(turn)) / sigma) ** 2))
            down = np.exp(-(((self.y - cy - far * np.sin(turn)) / sigma) ** 2))
            total = np.maximum(total, across * down)
        return total


def draw(
    traits: Mapping[str, np.ndarray],
    tone: np.ndarray,
    cameras: Sequence[Camera],
    size: int,
    channels: int,
    rng: np.random.Generator,
) -> np.ndarray:
    """uint8 [batch, size, size, channels]; `traits` are in [0, 1], one array [batch] each."""
    plane = _Plane(len(tone), size, rng)
    trait = {name: value.astype(np.float32)[:, None, None] for name, value in traits.items()}
    zoom = np.array([camera.zoom for camera in cameras], np.float32)[:, None, None]
    image = _skin(plane, tone)
    image = _lesion(image, plane, trait, zoom)
    image = _hair(image, plane, np.array([camera.hair for camera in cameras]))
    image = _photograph(image, plane, cameras)
    if channels == 1:
        image = image @ np.array([[0.299], [0.587], [0.114]], np.float32)
    result: np.ndarray = np.round(255 * np.clip(image, 0, 1)).astype(np.uint8)
    return result


def _skin(plane: _Plane, tone: np.ndarray) -> np.ndarray:
    """Background: a tone that differs from patient to patient, faintly mottled."""
    base = SKIN[tone] * (1 + 0.06 * plane.rng.standard_normal((plane.count, 1))).astype(np.float32)
    base = base + (0.02 * plane.rng.standard_normal((plane.count, 3))).astype(np.float32)
    mottle = 1 + 0.025 * plane.waves(0.5, 3)
    result: np.ndarray = base[:, None, None, :] * mottle[..., None]
    return result


def _lesion(
    image: np.ndarray, plane: _Plane, trait: Mapping[str, np.ndarray], zoom: np.ndarray
) -> np.ndarray:
    """Outline, pigment and structures."""
    radius = zoom * (0.25 + 0.40 * trait["radius"])
    cx, cy = plane.uniform(-0.15, 0.15), plane.uniform(-0.15, 0.15)
    turn, flat = plane.uniform(0, np.pi), plane.uniform(0.8, 1.0)
    across = (plane.x - cx) * np.cos(turn) + (plane.y - cy) * np.sin(turn)
    along = ((plane.y - cy) * np.cos(turn) - (plane.x - cx) * np.sin(turn)) / flat
    distance, angle = np.hypot(across, along), np.arctan2(along, across)

    # Outline: slow waves around the edge make it lopsided, quick ones make it ragged.
    outline = np.ones(1, np.float32)
    for cycles in range(1, 9):
        height = 0.30 * trait["asymmetry"] if cycles < 4 else 0.75 / cycles * trait["border"]
        outline = outline + height * plane.uniform(0.5, 1) * np.cos(
            cycles * angle + plane.uniform(0, 2 * np.pi)
        )
    far = distance / (radius * np.maximum(outline, 0.3))
    mask = _step((1 - far) * radius / (0.6 * plane.pixel + 0.14 * trait["soft"]))

    # Pigment: from tan over brown to black, or pink to red, or yellow; darker inside and, if asymmetric, on
    # one side.
    side = np.clip(across / radius, -1, 1)
    depth = np.clip(trait["dark"] + 0.12 * (1 - far) + 0.5 * trait["asymmetry"] * side, 0, 1)
    pigment = _mix(np.array(TAN, np.float32), BROWN, np.clip(2 * depth, 0, 1))
    pigment = _mix(pigment, BLACK, np.clip(2 * depth - 1, 0, 1))
    pigment = _mix(pigment, YELLOW, 0.8 * trait["yellow"])
    pigment = _mix(pigment, PINK, np.clip(1.3 * trait["red"] - 0.15, 0, 1))
    mixed = 0.75 * np.clip(2 * trait["colours"] - 0.5, 0, 1)
    for colour in (BLACK, RED, WHITE):
        pigment = _mix(pigment, colour, mixed * _step(4 * plane.waves(0.4, 1.0) - 4))
    image = _mix(image, pigment, mask * (0.72 + 0.2 * trait["dark"]))

    # Structures, each as strong as its trait.
    mesh = _honeycomb(plane, plane.uniform(0, np.pi), plane.uniform(3.4, 4.8))
    image = _mix(image, BLACK, mask * _strength(trait["network"]) * 0.7 * _step(-6 * mesh))
    ring = np.exp(-(((far - 1) / 0.22) ** 2))
    rays = np.clip(np.cos(np.round(plane.uniform(9, 14)) * angle + plane.uniform(0, 2 * np.pi)), 0, 1)
    image = _mix(image, BLACK, _strength(trait["streaks"]) * ring * rays)
    dots = plane.spots(cx, cy, radius, (0.04, 0.08), 10)
    image = _mix(image, BLACK, mask * _strength(trait["dots"]) * dots)
    lacunae = plane.spots(cx, cy, 0.8 * radius, (0.10, 0.20), 6)
    image = _mix(image, RED, mask * _strength(trait["lacunae"]) * lacunae)
    veil = plane.spots(cx, cy, 0.5 * radius, (0.2, 0.4), 1)
    image = _mix(image, BLUE, mask * _strength(trait["veil"]) * 0.85 * veil)
    centre = plane.spots(cx, cy, 0.1 * radius, (0.12, 0.25), 1)
    image = _mix(image, WHITE, mask * _strength(trait["patch"]) * 0.85 * centre)
    vein = np.exp(-((plane.waves(0.6, 1.6, 3) / 0.16) ** 2))
    image = _mix(image, RED, mask * _strength(trait["vessels"]) * 0.9 * vein)
    scales = _step(5 * plane.waves(2.0, 4.0) - 3.5)
    image = _mix(image, SCALE, mask * _strength(trait["scales"]) * 0.9 * scales)
    cysts = plane.spots(cx, cy, 0.9 * radius, (0.05, 0.09), 7)
    return _mix(image, YELLOW, mask * _strength(trait["cysts"]) * cysts)


def _honeycomb(plane: _Plane, turn: np.ndarray, cycles: np.ndarray) -> np.ndarray:
    """Three plane waves 60° apart, in step: bright holes in a dark net."""
    dx, dy = plane.x - plane.uniform(-1, 1), plane.y - plane.uniform(-1, 1)
    ways = [turn + third * np.pi / 3 for third in range(3)]
    waves = [np.cos(2 * np.pi * cycles * (dx * np.cos(way) + dy * np.sin(way))) for way in ways]
    result: np.ndarray = (waves[0] + waves[1] + waves[2]) / 3
    return result


def _hair(image: np.ndarray, plane: _Plane, share: np.ndarray) -> np.ndarray:
    """Up to four thin bent dark lines, on some images."""
    hairy = plane.rng.random(plane.count) < share
    for _ in range(4):
        turn, shift, bend = plane.uniform(0, np.pi), plane.uniform(-0.9, 0.9), plane.uniform(-0.4, 0.4)
        along = plane.x * np.cos(turn) + plane.y * np.sin(turn)
        off = plane.y * np.cos(turn) - plane.x * np.sin(turn) - shift - bend * along**2
        shown = (hairy & (plane.rng.random(plane.count) < 0.6))[:, None, None].astype(np.float32)
        line = np.exp(-((off / np.maximum(0.014, 0.35 * plane.pixel)) ** 2))
        image = _mix(image, BLACK, 0.7 * shown * line)
    return image


def _photograph(image: np.ndarray, plane: _Plane, cameras: Sequence[Camera]) -> np.ndarray:
    """Uneven light, dark corners, colour cast and sensor noise of each image's hospital."""

    def each(name: str) -> np.ndarray:
        return np.array([getattr(camera, name) for camera in cameras], np.float32)[:, None, None]

    turn, gain = plane.uniform(0, 2 * np.pi), plane.uniform(0.93, 1.07)
    light = gain * (1 + each("light") * (plane.x * np.cos(turn) + plane.y * np.sin(turn)))
    corners = _step(9 * (np.hypot(plane.x, plane.y) - plane.uniform(1.0, 1.25)))
    light = light * (1 - each("vignette") * corners)
    cast = np.array([camera.cast for camera in cameras], np.float32)[:, None, None, :]
    noise = plane.rng.standard_normal(image.shape, np.float32) * each("noise")[..., None]
    result: np.ndarray = image * light[..., None] * cast + noise
    return result


def _mix(image: np.ndarray, colour: np.ndarray | tuple[float, ...], share: np.ndarray) -> np.ndarray:
    """`image` with a share of `colour` laid over it."""
    result: np.ndarray = image + share[..., None] * (np.asarray(colour, np.float32) - image)
    return result


def _step(value: np.ndarray) -> np.ndarray:
    """A soft step from 0 to 1."""
    result: np.ndarray = 0.5 + 0.5 * np.tanh(value)
    return result


def _strength(trait: np.ndarray) -> np.ndarray:
    """How visible a structure is: a weak trait is not seen at all."""
    return np.clip(1.5 * (trait - 0.2), 0, 1)
