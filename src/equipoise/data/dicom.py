"""DICOM files: a CT slice becomes its brain, subdural and bone windows, any other grey image its own window.

pydicom is an extra (`pip install 'equipoise[medical]'`) and is only imported when a DICOM file is met.
"""

from __future__ import annotations

from io import BytesIO
from typing import Any

import numpy as np
from PIL import Image

from equipoise.errors import DataError

WINDOWS: dict[str, tuple[float, float]] = {"brain": (40, 80), "subdural": (80, 200), "bone": (600, 2800)}
"""Centre and width, in Hounsfield units, of the three channels of a CT slice; one channel is the brain
window."""

HEADER = 2**14
"""Bytes that hold everything before the pixels of a plain CT slice."""


def is_dicom(data: bytes) -> bool:
    """Whether a file begins as DICOM files do: 128 bytes of anything, then a mark."""
    return data[128:132] == b"DICM"


def picture(data: bytes, channels: int) -> Image.Image:
    """An 8-bit image of a DICOM file."""
    content = _read(data)
    if "PixelData" not in content:
        raise ValueError("the DICOM file has no pixel data; download it again")
    pixels = content.pixel_array
    if content.get("PhotometricInterpretation") == "RGB":
        return Image.fromarray(pixels)
    if pixels.ndim != 2:
        raise ValueError(
            f"the DICOM file holds {' x '.join(map(str, pixels.shape))} values and not one grey image; "
            f"save slices"
        )
    values = pixels.astype(np.float32) * float(content.get("RescaleSlope", 1)) + float(
        content.get("RescaleIntercept", 0)
    )
    if content.get("Modality") == "CT":
        shown = [window(values, *limits) for limits in WINDOWS.values()]
        return Image.fromarray(np.stack(shown, -1) if channels == 3 else shown[0])
    grey = window(values, *_own_window(content, values))
    return Image.fromarray(255 - grey if content.get("PhotometricInterpretation") == "MONOCHROME1" else grey)


def window(values: np.ndarray, centre: float, width: float) -> np.ndarray:
    """0 at centre − width / 2 and below, 255 at centre + width / 2 and above, straight between; rounded."""
    share = (values - (centre - width / 2)) / width
    return np.rint(255 * share.clip(0, 1)).astype(np.uint8)


def patient(head: bytes) -> str:
    """The patient's id in the first bytes (`HEADER` of them) of a DICOM file."""
    if not is_dicom(head):
        raise ValueError("it is not a DICOM file; download it again")
    return str(_read(head, pixels=False).get("PatientID", ""))


def _own_window(content: Any, values: np.ndarray) -> tuple[float, float]:
    """The window the file asks for (the first of several), or all its values."""
    centre, width = content.get("WindowCenter"), content.get("WindowWidth")
    if centre is not None and width is not None:
        return float(np.atleast_1d(centre)[0]), max(float(np.atleast_1d(width)[0]), 1.0)
    low, high = float(values.min()), float(values.max())
    return (low + high) / 2, max(high - low, 1.0)


def _read(data: bytes, pixels: bool = True) -> Any:
    try:
        import pydicom
    except ModuleNotFoundError as error:
        raise DataError("DICOM images need pydicom: run pip install 'equipoise[medical]'") from error
    return pydicom.dcmread(BytesIO(data), stop_before_pixels=not pixels)
