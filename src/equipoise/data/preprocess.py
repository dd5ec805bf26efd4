"""What is done to an image once, before it enters the cache: colour constancy, brightness, and the way it
becomes a square.

Colour and brightness are measured on the whole image and change every grey level of a channel to another one,
so both are counts and tables of 256: exact, and quicker than a pass of arithmetic over the pixels. (FLamby's
script measures the image after shrinking it and cuts fractions off where we round.)
"""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import Any, Literal

import numpy as np
from PIL import Image

from equipoise.data.grey import Window

Resize = Literal["squash", "crop", "pad"]

GREY = np.array([0.299, 0.587, 0.114])
"""Weights of red, green and blue in brightness."""


@dataclass(frozen=True)
class Look:
    """How images are prepared, beside size, channels and `resize`."""

    keep: float = 1.0
    """`crop`: share of the short side that the centre square keeps"""
    constancy: float | None = None
    """exponent of the Minkowski mean that stands for the colour of the light"""
    brightness: float | None = None
    """mean brightness that every image gets, of 0 to 1"""
    windows: tuple[Window, ...] | None = None
    """centre and width of the grey values that are shown, one for all channels or one for each; none: those
    the file names"""
    bits: int | None = None
    """depth of grey values in files of 16 bits; none: what the file says or shows"""

    @property
    def recipe(self) -> dict[str, Any]:
        """What differs from an image left as it is: part of the cache's key."""
        values = {field.name: getattr(self, field.name) for field in fields(self)}
        return {name: value for name, value in values.items() if value != getattr(Look, name)}


def toned(image: Image.Image, look: Look) -> Image.Image:
    """A grey or colour image with its colours and brightness evened out."""
    if look.constancy is None and look.brightness is None:
        return image
    counts = np.array(image.histogram(), np.float64).reshape(-1, 256)
    gain = np.ones(len(counts)) if look.constancy is None else shades_of_grey(counts, look.constancy)
    if look.brightness is not None:
        gain = gain * even_brightness(counts, gain, look.brightness)
    table = np.rint(gain[:, None] * np.arange(256)).clip(0, 255).astype(np.uint8)
    return image.point(table.ravel().tolist())


def shades_of_grey(counts: np.ndarray, p: float) -> np.ndarray:
    """The factor for each channel that makes the light grey, from counts [channels, 256] of the grey levels.

    The light is e_c = (mean of I_c^p)^(1/p) for each channel c; the factors |e| / (√channels · e_c) make its
    channels equal and keep its length |e|. p = 1 is the grey world, p = 6 what the papers use (Finlayson and
    Trezzi 2004).
    """
    light = (counts @ (np.arange(256) / 255) ** p / counts.sum(axis=1)) ** (1 / p)
    even = np.sqrt((light**2).mean())
    # A black channel stays black.
    result: np.ndarray = np.divide(even, light, out=np.ones_like(light), where=light > 0)
    return result


def even_brightness(counts: np.ndarray, gain: np.ndarray, target: float) -> float:
    """The factor that brings the mean brightness, after `gain`, to `target`; what it makes brighter than
    white is cut later."""
    mean = gain * (counts @ np.arange(256) / 255 / counts.sum(axis=1))
    brightness = float(mean @ GREY) if len(mean) == 3 else float(mean[0])
    return target / brightness if brightness > 0 else 1.0


def squared(image: Image.Image, size: int, resize: str, keep: float) -> Image.Image:
    """The image as a square of `size` pixels, smoothed where it shrinks."""
    width, height = image.size
    if resize == "pad":
        scale = size / max(width, height)
        inner = max(1, round(width * scale)), max(1, round(height * scale))
        square = Image.new(image.mode, (size, size))
        if inner != image.size:
            image = image.resize(inner, Image.Resampling.BILINEAR)
        square.paste(image, ((size - inner[0]) // 2, (size - inner[1]) // 2))
        return square
    if resize == "crop":
        side = keep * min(width, height)
        left, top = (width - side) / 2, (height - side) / 2
        box = (left, top, left + side, top + side)
    else:
        box = (0, 0, width, height)
    if box == (0, 0, size, size):
        return image
    return image.resize((size, size), Image.Resampling.BILINEAR, box=box)
