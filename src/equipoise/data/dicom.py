"""DICOM files: grey images through the window that the config or the file names, colours as they are.

pydicom is in the extra `medical` (docs/install.md) and is only imported when a DICOM file is met.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from io import BytesIO
from typing import Any

import numpy as np
from PIL import Image, ImageOps

from equipoise.data.grey import MOST_VALUES, Window, eight_bits, span, windowed
from equipoise.errors import DataError

WINDOWS: dict[str, Window] = {"brain": (40, 80), "subdural": (80, 200), "bone": (600, 2800)}
"""The windows of head CT, in Hounsfield units."""

CT: Window = (1023.5, 4095)
"""The 12 bits of a CT slice that names no window: -1024 to 3071 Hounsfield units."""

COLOURS = ("RGB", "YBR_FULL", "YBR_FULL_422", "YBR_RCT", "YBR_ICT")
"""kinds of colour that pydicom turns into red, green and blue"""
GREYS = ("MONOCHROME1", "MONOCHROME2")
PALETTE = "PALETTE COLOR"

HEADER = 2**14
"""Bytes that hold everything before the pixels of a plain CT slice."""


def is_dicom(data: bytes) -> bool:
    """Whether a file begins as DICOM files do: 128 bytes of anything, then a mark."""
    return data[128:132] == b"DICM"


def picture(data: bytes, channels: int, windows: Sequence[Window] | None = None) -> Image.Image:
    """An 8-bit image of a DICOM file."""
    content = _read(data)
    if "PixelData" not in content:
        raise ValueError("the DICOM file has no pixel data; download it again")
    _refuse_huge(content)
    kind = str(content.get("PhotometricInterpretation", ""))
    if kind not in (*COLOURS, *GREYS, PALETTE):
        raise ValueError(f"the DICOM file's colours are '{kind}', which cannot be read; save it as RGB")
    pixels, colour = _pixels(content), kind in COLOURS
    if pixels.ndim != (3 if colour else 2):
        shape = " x ".join(map(str, pixels.shape))
        raise ValueError(
            f"the DICOM file holds {shape} values and not one {'colour' if colour else 'grey'} image; "
            f"save slices"
        )
    if colour or kind == PALETTE:
        if windows is not None:
            raise ValueError("the DICOM file is in colour and data.window is for grey values; remove the key")
        return Image.fromarray(_colours(content, pixels, kind))
    slope, offset = float(content.get("RescaleSlope", 1)), float(content.get("RescaleIntercept", 0))
    values = pixels.astype(np.float32) * slope + offset
    grey = windowed(values, windows or [_own_window(content, values)], channels)
    return ImageOps.invert(grey) if kind == "MONOCHROME1" else grey


def patient(head: bytes) -> str:
    """The patient's id in the first bytes (`HEADER` of them) of a DICOM file."""
    if not is_dicom(head):
        raise ValueError("it is not a DICOM file; download it again")
    return str(_read(head, pixels=False).get("PatientID", ""))


def _refuse_huge(content: Any) -> None:
    """Refuse what its header says is too large to be decoded."""
    sizes = ("Rows", "Columns", "SamplesPerPixel", "NumberOfFrames")
    shape = [int(content.get(name) or 1) for name in sizes]
    if math.prod(shape) > MOST_VALUES:
        raise ValueError(f"it has {' x '.join(map(str, shape))} values; save it smaller")


def _pixels(content: Any) -> np.ndarray:
    """The decoded values."""
    try:
        return np.asarray(content.pixel_array)
    except RuntimeError as error:
        if "missing dependencies" not in str(error):
            raise
        kind = content.file_meta.TransferSyntaxUID.name
        raise ValueError(
            f"it is compressed as {kind}: run pip install pylibjpeg pylibjpeg-libjpeg pylibjpeg-openjpeg, "
            "or save it uncompressed"
        ) from error


def _colours(content: Any, pixels: np.ndarray, kind: str) -> np.ndarray:
    """Red, green and blue of 8 bits; pydicom has turned other kinds of colour into them."""
    if kind == PALETTE:
        from pydicom.pixels import apply_color_lut

        colours = apply_color_lut(pixels, content)[..., :3]
        return eight_bits(colours, 8 if colours.max() < 256 else 16)
    return eight_bits(pixels, int(content.BitsStored))


def _own_window(content: Any, values: np.ndarray) -> Window:
    """The window the file asks for (the first of several); without one that of all CT, or all values."""
    centre, width = content.get("WindowCenter"), content.get("WindowWidth")
    if centre is not None and width is not None:
        window = float(np.atleast_1d(centre)[0]), float(np.atleast_1d(width)[0])
        if window[1] > 0:
            return window
    return CT if content.get("Modality") == "CT" else span(values)


def _read(data: bytes, pixels: bool = True) -> Any:
    try:
        import pydicom
    except ModuleNotFoundError as error:
        raise DataError("DICOM images need pydicom: run pip install pydicom") from error
    return pydicom.dcmread(BytesIO(data), stop_before_pixels=not pixels)
