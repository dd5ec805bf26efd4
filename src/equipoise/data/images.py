"""From an encoded image to uint8 [size, size, channels]."""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from io import BytesIO
from pathlib import Path

import numpy as np
from PIL import Image, ImageOps

from equipoise.data.cache import Decoded, decoded
from equipoise.data.files import Files
from equipoise.data.options import DataOptions, Progress

THREADS = 2
"""PIL lets other threads run while it decodes; more than two mostly wait for each other."""


def decode(data: bytes, size: int, channels: int, resize: str) -> np.ndarray:
    """Decode one encoded image; raises whatever PIL raises when it is broken."""
    with Image.open(BytesIO(data)) as image:
        # A JPEG can be decoded at 1/2, 1/4 or 1/8 of its size; twice what is wanted keeps the resampling good.
        image.draft("L" if channels == 1 else "RGB", (2 * size, 2 * size))
        return fit(ImageOps.exif_transpose(image), size, channels, resize)


def fit(image: Image.Image, size: int, channels: int, resize: str) -> np.ndarray:
    """Convert to grey or colour and bring to size, smoothing where it shrinks."""
    if image.mode.startswith("I"):  # 16-bit grey: keep the upper 8 bits, where PIL would cut everything above 255
        image = Image.fromarray((np.asarray(image).clip(0, 65535) >> 8).astype(np.uint8))
    elif image.mode == "F":
        raise ValueError("pixels are fractions, not whole numbers")
    if image.mode == "P":
        image = image.convert("RGBA")  # a palette may hold transparent colours
    image = image.convert("L" if channels == 1 else "RGB")
    width, height = image.size
    if resize == "crop":
        side = min(width, height)
        left, top = (width - side) / 2, (height - side) / 2
        box = (left, top, left + side, top + side)
    else:
        box = (0, 0, width, height)
    if (width, height) != (size, size):
        image = image.resize((size, size), Image.Resampling.BILINEAR, box=box)
    return np.array(image, np.uint8).reshape(size, size, channels)


def decode_files(
    files: Files, found: Sequence[tuple[str, str]], options: DataOptions, cache: Path, progress: Progress | None
) -> Decoded:
    """The decoded images of files, given as (name, stamp), from the cache."""
    size, channels, resize = options.image_size, options.channels, options.resize

    def one(name: str) -> np.ndarray | str:
        try:
            return decode(files.read(name), size, channels, resize)
        except MemoryError:
            raise
        except Exception as error:  # decoders fail in many ways, and all mean the same: this image cannot be used
            return f"image '{name}' is broken: {_sentence(error)}"

    def make(start: int, stop: int) -> list[np.ndarray | str]:
        with ThreadPoolExecutor(THREADS) as pool:
            return list(pool.map(one, (name for name, _ in found[start:stop])))

    recipe = {"files": list(found), "resize": resize}
    return decoded(cache, recipe, len(found), (size, size, channels), make, progress)


def _sentence(error: Exception) -> str:
    if isinstance(error, Image.UnidentifiedImageError):
        return "not an image"
    return str(error) or type(error).__name__
