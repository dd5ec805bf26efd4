"""What was decoded, looked at: the range of every image, and a picture of some of them."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image, ImageDraw, ImageFont

from equipoise.data.samples import Samples
from equipoise.errors import ConfigError, StorageError

DARK = 64
"""an image without a pixel this bright is hardly visible"""
FLAT = 8
"""an image with fewer levels between its darkest and its brightest pixel shows nothing"""

CHUNK = 256
SIDE, TILE, CAPTION, GAP = 5, 160, 28, 4
"""images per row and column of the contact sheet, the smallest width of one, the height of its caption, and
what is left free beside it"""


@dataclass(frozen=True)
class Survey:
    """The darkest, brightest and mean value of every image, and a digest of its pixels."""

    lowest: np.ndarray
    highest: np.ndarray
    mean: np.ndarray
    digests: tuple[bytes, ...]

    @property
    def dark(self) -> np.ndarray:
        """bool [N]: hardly visible"""
        return self.highest < DARK

    @property
    def flat(self) -> np.ndarray:
        """bool [N]: nothing to be seen"""
        result: np.ndarray = self.highest.astype(int) - self.lowest < FLAT
        return result

    def facts(self) -> dict[str, Any]:
        """The range of all images, and how many are too dark or too flat."""
        return {
            "lowest": int(self.lowest.min()),
            "highest": int(self.highest.max()),
            "mean": round(float(self.mean.mean()), 1),
            "dark": int(self.dark.sum()),
            "flat": int(self.flat.sum()),
        }


def survey(samples: Samples) -> Survey:
    """Look at every pixel once."""
    ranges: list[tuple[int, int, float]] = []
    digests: list[bytes] = []
    for start in range(0, len(samples), CHUNK):
        block = samples.images[np.arange(start, min(start + CHUNK, len(samples)))]
        for image in block:
            ranges.append((image.min(), image.max(), image.mean()))
            digests.append(hashlib.blake2b(image.tobytes(), digest_size=16).digest())
    lowest, highest, mean = zip(*ranges, strict=True)
    return Survey(np.array(lowest), np.array(highest), np.array(mean), tuple(digests))


def write_contact_sheet(samples: Samples, path: Path) -> None:
    """A picture of 25 images as the network sees them, before they are normalised, with class and site."""
    if path.suffix.lower() != ".png":
        raise ConfigError(f"--contact-sheet: '{path}' is not the name of a picture: let it end in .png")
    try:
        contact_sheet(samples).save(path, "PNG")
    except OSError as error:
        raise StorageError(
            f"{path} cannot be written ({error.strerror or error}): name a file in a folder of yours"
        ) from error


def contact_sheet(samples: Samples) -> Image.Image:
    """Five rows of five images: as many classes as possible, each spread over its rows."""
    chosen = _chosen(samples)
    pixels = samples.images[chosen]
    size = pixels.shape[1]
    tile = size * max(1, -(-TILE // size))  # whole pixels, so that the network's resolution is seen
    rows = -(-len(chosen) // SIDE)
    sheet = Image.new("RGB", (SIDE * (tile + GAP), rows * (tile + CAPTION)), "white")
    draw, font = ImageDraw.Draw(sheet), ImageFont.load_default()
    for number, (row, image) in enumerate(zip(chosen.tolist(), pixels, strict=True)):
        left, top = number % SIDE * (tile + GAP), number // SIDE * (tile + CAPTION)
        shown = Image.fromarray(image[..., 0] if image.shape[2] == 1 else image)
        sheet.paste(shown.resize((tile, tile), Image.Resampling.NEAREST), (left, top))
        lines = [label_of(samples, row), "" if samples.site is None else str(samples.site[row])]
        for i, text in enumerate(lines):
            plain = text.encode("latin-1", "replace").decode("latin-1")  # what every font has
            draw.text((left + 3, top + tile + 1 + 13 * i), plain[: tile // 6], "black", font)
    return sheet


def label_of(samples: Samples, row: int) -> str:
    """The class of a row, or the names of several; a '?' says that some are not labelled."""
    if samples.task == "single":
        result: str = samples.classes[samples.labels[row]]
        return result
    names = [name for name, value in zip(samples.classes, samples.labels[row], strict=True) if value > 0]
    gaps = ["?"] if np.isnan(samples.labels[row]).any() else []
    return ", ".join(names + gaps) or "none"


def _chosen(samples: Samples) -> np.ndarray:
    """25 rows, of every class as many as of the others while it has more, sorted by class."""
    labels = np.asarray(samples.labels)
    number = labels if samples.task == "single" else np.where((labels > 0).any(1), (labels > 0).argmax(1), -1)
    held = [np.flatnonzero(number == one) for one in np.unique(number)]
    turns = sorted((turn, of) for of, rows in enumerate(held) for turn in range(min(len(rows), SIDE * SIDE)))
    counts = np.bincount([of for _, of in turns[: SIDE * SIDE]], minlength=len(held))
    spread = [
        rows[np.linspace(0, len(rows) - 1, n).round().astype(int)]
        for rows, n in zip(held, counts, strict=True)
    ]
    return np.concatenate(spread)
