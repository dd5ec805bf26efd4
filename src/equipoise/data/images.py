"""From an encoded image to uint8 [size, size, channels]."""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from io import BytesIO
from pathlib import Path

import numpy as np
from PIL import Image, ImageOps

from equipoise.data.cache import STEP, Decoded, decoded
from equipoise.data.dicom import is_dicom, picture
from equipoise.data.files import Files
from equipoise.data.options import DataOptions, Progress
from equipoise.data.preprocess import Look, squared, toned
from equipoise.errors import DataError

PLAIN = Look()

THREADS = 2
"""PIL lets other threads run while it decodes; more than two mostly wait for each other."""

BATCH = STEP // 2
"""Images a thread takes at once: handing over each alone costs a tenth of decoding it. A divisor of every
chunk of the cache."""


def decode(data: bytes, size: int, channels: int, resize: str, look: Look = PLAIN) -> np.ndarray:
    """Decode one encoded image; raises whatever PIL or pydicom raises when it is broken."""
    return fit(opened(data, size, channels), size, channels, resize, look)


def opened(data: bytes, size: int | None, channels: int) -> Image.Image:
    """The picture in an encoded image, the right way up; for a `size` no larger than that needs."""
    if is_dicom(data):
        return picture(data, channels)
    with Image.open(BytesIO(data)) as image:
        # A JPEG can be decoded at 1/2, 1/4 or 1/8 of its size; twice what is wanted keeps the resampling
        # good.
        if size is not None:
            image.draft("L" if channels == 1 else "RGB", (2 * size, 2 * size))
        ImageOps.exif_transpose(image, in_place=True)
        image.load()
        return image


def fit(image: Image.Image, size: int, channels: int, resize: str, look: Look = PLAIN) -> np.ndarray:
    """Convert to grey or colour, even out colour and brightness where the look asks for it, and bring to
    size."""
    if image.mode.startswith(
        "I"
    ):  # 16-bit grey: keep the upper 8 bits, where PIL would cut everything above 255
        image = Image.fromarray((np.asarray(image).clip(0, 65535) >> 8).astype(np.uint8))
    elif image.mode == "F":
        raise ValueError("pixels are fractions, not whole numbers")
    if image.mode == "P":
        image = image.convert("RGBA")  # a palette may hold transparent colours
    mode = "L" if channels == 1 else "RGB"
    if image.mode != mode:  # converting to the same mode copies
        image = image.convert(mode)
    image = squared(toned(image, look), size, resize, look.keep)
    return np.asarray(image, np.uint8).reshape(size, size, channels)


def decode_files(
    files: Files,
    found: Sequence[tuple[str, str]],
    options: DataOptions,
    cache: Path,
    progress: Progress | None,
) -> Decoded:
    """The decoded images of files, given as (name, stamp), from the cache."""
    size, channels, resize = options.image_size, options.channels, options.resize

    def one(name: str) -> np.ndarray | str:
        try:
            return decode(files.read(name), size, channels, resize, options.look)
        except (MemoryError, DataError):
            raise
        except (
            Exception
        ) as error:  # decoders fail in many ways, and all mean the same: this image cannot be used
            return f"image '{name}' is broken: {reason(error)}"

    def several(start: int) -> list[np.ndarray | str]:
        return [one(name) for name, _ in found[start : start + BATCH]]

    def make(start: int, stop: int) -> list[np.ndarray | str]:
        batches = pool.map(several, range(start, stop, BATCH))
        return [image for batch in batches for image in batch]

    recipe = {"files": list(found), "resize": resize, **options.look.recipe}
    with ThreadPoolExecutor(THREADS) as pool:  # no thread starts before there is work
        return decoded(cache, recipe, len(found), (size, size, channels), make, progress)


def reason(error: Exception) -> str:
    """Why an image could not be decoded, in words."""
    if isinstance(error, Image.UnidentifiedImageError):
        return "not an image"
    return str(error) or type(error).__name__
