"""NIfTI volumes: one axial slice of each, seen as a DICOM slice is (the patient's right on the left, front
up).

nibabel is in the extra `medical` (docs/install.md) and is only imported when a NIfTI file is met.
"""

from __future__ import annotations

import gzip
import math
from collections.abc import Sequence
from functools import lru_cache
from io import BytesIO
from typing import Any

import numpy as np
from PIL import Image

from equipoise.data.grey import MOST_VALUES, Window, span, windowed
from equipoise.errors import DataError

PACKED = b"\x1f\x8b"
MOST_BYTES = 4 * MOST_VALUES


def is_nifti(data: bytes) -> bool:
    """Whether a file is a NIfTI volume (version 1 or 2), or packed with gzip as only those are."""
    return data[:2] == PACKED or data[344:348] == b"n+1\0" or data[4:8] == b"n+2\0"


def picture(
    data: bytes, channels: int, number: int | None = None, windows: Sequence[Window] | None = None
) -> Image.Image:
    """An 8-bit image of the axial slice with this number, counted from 0 at the feet; by default the middle
    one. Its window is the volume's own: the same for all slices."""
    volume, own = _volume(data)
    depth = volume.shape[2]
    if number is None:
        number = depth // 2
    if number >= depth:
        raise ValueError(f"it has {depth} axial slices and no number {number}; count them from 0")
    return windowed(volume[::-1, ::-1, number].T, windows or [own], channels)


def forget() -> None:
    """Give back the memory of the volumes read last."""
    _volume.cache_clear()


@lru_cache(maxsize=2)  # rows of a table name slice after slice of the same volume
def _volume(data: bytes) -> tuple[np.ndarray, Window]:
    """The values from left to right, back to front and foot to head, and the window that the file names or
    that shows them all."""
    nibabel = _nibabel()
    raw = _unpacked(data)
    kind = nibabel.Nifti2Image if raw[4:8] == b"n+2\0" else nibabel.Nifti1Image
    image = kind.from_bytes(raw)
    header = image.header
    shape, dtype = header.get_data_shape(), header.get_data_dtype()
    if len(shape) < 2 or math.prod(shape[3:]) != 1 or dtype.kind not in "iuf":
        size = " x ".join(map(str, shape))
        raise ValueError(f"it holds {size} values of {dtype} and not one grey volume; save it as one")
    if math.prod(shape) > MOST_VALUES:
        raise ValueError(f"it has {' x '.join(map(str, shape))} values; save it smaller")
    if math.prod(shape) * dtype.itemsize > len(raw) - image.dataobj.offset:
        raise ValueError("it ends before its last slice; copy it again")
    values = np.asarray(image.dataobj, np.float32).reshape((*shape, 1)[:3])
    values = np.nan_to_num(nibabel.apply_orientation(values, nibabel.io_orientation(image.affine)))
    low, high = float(header["cal_min"]), float(header["cal_max"])
    return values, ((low + high) / 2, high - low) if high > low else span(values)


def _unpacked(data: bytes) -> bytes:
    """The content of a file that may be packed; one that unpacks without end is refused."""
    if data[:2] != PACKED:
        return data
    with gzip.open(BytesIO(data)) as file:
        raw = file.read(MOST_BYTES + 1)
    if len(raw) > MOST_BYTES:
        raise ValueError(f"it unpacks to more than {MOST_BYTES:,} bytes; save it smaller")
    if not is_nifti(raw) or raw[:2] == PACKED:
        raise ValueError("it is packed and no NIfTI volume; unpack it")
    return raw


def _nibabel() -> Any:
    try:
        import nibabel
    except ModuleNotFoundError as error:
        raise DataError("NIfTI volumes need nibabel: run pip install nibabel") from error
    return nibabel
