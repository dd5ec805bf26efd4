"""From an encoded image to uint8 [size, size, channels]."""

from __future__ import annotations

import re
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from io import BytesIO
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image, ImageOps, UnidentifiedImageError

from equipoise.data import dicom, nifti
from equipoise.data.cache import STEP, Decoded, decoded
from equipoise.data.dicom import is_dicom
from equipoise.data.files import Files, ImageFile
from equipoise.data.grey import eight_bits, windowed
from equipoise.data.nifti import is_nifti
from equipoise.data.options import DataOptions, Progress
from equipoise.data.preprocess import Look, squared, toned
from equipoise.errors import DataError

PLAIN = Look()

BITS_PER_SAMPLE, PHOTOMETRIC, WHITE_IS_ZERO = 258, 262, 0
"""tags of TIFF files, and a value of the second"""

DECODING = 2
"""Part of the cache's key: raised when the same files give other pixels."""

THREADS = 2
"""PIL lets other threads run while it decodes; more than two mostly wait for each other."""

BATCH = STEP // 2
"""Images a thread takes at once: handing over each alone costs a tenth of decoding it. A divisor of every
chunk of the cache."""


def decode(
    data: bytes, size: int, channels: int, resize: str, look: Look = PLAIN, number: int | None = None
) -> np.ndarray:
    """Decode one encoded image, or slice `number` of a volume; raises whatever PIL, pydicom or nibabel raises
    when it is broken."""
    image = opened(data, size, channels, look, number)
    shown = replace(look, windows=None) if is_nifti(data) or is_dicom(data) else look
    return fit(image, size, channels, resize, shown)


def opened(
    data: bytes, size: int | None, channels: int, look: Look = PLAIN, number: int | None = None
) -> Image.Image:
    """The picture in an encoded image, the right way up; for a `size` no larger than that needs."""
    if not data:
        raise ValueError("the file is empty; copy it again")
    if is_nifti(data):
        return nifti.picture(data, channels, number, look.windows)
    if number is not None:
        raise ValueError("it is not a NIfTI volume and has no slices; leave its slice empty")
    if is_dicom(data):
        return dicom.picture(data, channels, look.windows)
    with Image.open(BytesIO(data)) as image:
        # A JPEG can be decoded at 1/2, 1/4 or 1/8 of its size; twice the wanted one keeps resampling good.
        if size is not None:
            image.draft("L" if channels == 1 else "RGB", (2 * size, 2 * size))
        deep = ";16" in str(image.tile)
        ImageOps.exif_transpose(image, in_place=True)
        if deep and image.mode in ("RGB", "RGBA") and _brightest(image) < 16:
            raise ValueError("its colours use the lower 12 of 16 bits only; save it with 8 bits a channel")
        image.load()
        return image


def fit(image: Image.Image, size: int, channels: int, resize: str, look: Look = PLAIN) -> np.ndarray:
    """Convert to grey or colour, even out colour and brightness where the look asks for it, and bring to
    size."""
    image = _shown(image, channels, look)
    if image.mode == "P":
        image = image.convert("RGBA")  # a palette may hold transparent colours
    mode = "L" if channels == 1 else "RGB"
    if image.mode != mode:  # converting to the same mode copies
        image = image.convert(mode)
    image = squared(toned(image, look), size, resize, look.keep)
    return np.asarray(image, np.uint8).reshape(size, size, channels)


def _shown(image: Image.Image, channels: int, look: Look) -> Image.Image:
    """An image of 8 bits a channel: through the windows of the look, or the upper 8 of its bits."""
    if look.windows is not None:
        if image.mode not in ("L", "F") and not image.mode.startswith("I"):
            raise ValueError("it is in colour and data.window is for grey values; remove the key")
        return windowed(np.asarray(image, np.float32), look.windows, channels)
    if image.mode == "F":
        raise ValueError(
            "its pixels are fractions, not whole numbers; say with data.window which are black and white"
        )
    if not image.mode.startswith("I"):
        return image
    tags = getattr(image, "tag_v2", {})  # of a TIFF file
    bits = tags.get(BITS_PER_SAMPLE, (16,))[0]
    grey = eight_bits(np.asarray(image), look.bits or (bits if bits < 16 else None))
    return Image.fromarray(255 - grey if tags.get(PHOTOMETRIC) == WHITE_IS_ZERO else grey)


def _brightest(image: Image.Image) -> int:
    """The largest value of red, green and blue."""
    extremes: Any = image.getextrema()
    return int(max(high for _, high in extremes[:3]))


def decode_files(
    files: Files, images: Sequence[ImageFile], options: DataOptions, cache: Path, progress: Progress | None
) -> Decoded:
    """The decoded images of files from the cache."""
    size, channels, resize = options.image_size, options.channels, options.resize

    def one(name: str, number: int | None) -> np.ndarray | str:
        try:
            return decode(files.read(name), size, channels, resize, options.look, number)
        except (MemoryError, DataError):
            raise
        except Exception as error:  # whatever a decoder raises, this image cannot be used
            return f"image '{name}' is broken: {reason(error)}"

    def several(start: int) -> list[np.ndarray | str]:
        return [one(name, number) for name, _, number in images[start : start + BATCH]]

    def make(start: int, stop: int) -> list[np.ndarray | str]:
        batches = pool.map(several, range(start, stop, BATCH))
        return [image for batch in batches for image in batch]

    recipe = {"decoding": DECODING, "files": list(images), "resize": resize, **options.look.recipe}
    with ThreadPoolExecutor(THREADS) as pool:  # no thread starts before there is work
        pixels = decoded(cache, recipe, len(images), (size, size, channels), make, progress)
    nifti.forget()
    return pixels


def reason(error: Exception) -> str:
    """Why an image could not be decoded, and what helps, in words."""
    if isinstance(error, UnidentifiedImageError):
        return "not an image; save it as PNG, JPEG, TIFF, DICOM or NIfTI"
    if isinstance(error, Image.DecompressionBombError | Image.DecompressionBombWarning):
        pixels = re.search(r"\d+", str(error))
        return f"it has {int(pixels[0]) if pixels else 'too many':,} pixels; save it smaller, or cut it"
    text = str(error).splitlines()[0] if str(error) else type(error).__name__
    return text if isinstance(error, ValueError) else f"{text}; copy it again"
