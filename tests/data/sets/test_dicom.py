"""DICOM files, made with pydicom, against windows computed one pixel at a time."""

from __future__ import annotations

from collections.abc import Callable
from io import BytesIO
from pathlib import Path

import numpy as np
import pydicom
import pytest

from equipoise.data import CsvData
from equipoise.data.dicom import HEADER, WINDOWS, is_dicom, patient, picture
from equipoise.data.images import decode

SliceFile = Callable[..., bytes]


@pytest.fixture
def raw() -> np.ndarray:
    return np.random.default_rng(0).integers(0, 3000, (8, 8)).astype(np.int16)


def shown(raw: np.ndarray, slope: float, intercept: float, centre: float, width: float) -> np.ndarray:
    """The window, pixel by pixel in Python's own floats."""
    result = np.zeros(raw.shape, np.uint8)
    for place, value in np.ndenumerate(raw):
        units = float(value) * slope + intercept
        low, high = centre - width / 2, centre + width / 2
        result[place] = (
            0 if units <= low else 255 if units >= high else round(255 * (units - low) / (high - low))
        )
    return result


@pytest.mark.parametrize(("slope", "intercept"), [(1, -1024), (2, -500), (0.5, 0)])
def test_a_ct_slice_becomes_three_windows(
    slice_file: SliceFile, raw: np.ndarray, slope: float, intercept: float
) -> None:
    data = slice_file(raw, RescaleSlope=slope, RescaleIntercept=intercept)
    assert is_dicom(data)
    three = decode(data, 8, 3, "squash")
    for channel, (name, centre, width) in enumerate(
        (("brain", 40, 80), ("subdural", 80, 200), ("bone", 600, 2800))
    ):
        assert list(WINDOWS)[channel] == name
        np.testing.assert_array_equal(three[..., channel], shown(raw, slope, intercept, centre, width))
    np.testing.assert_array_equal(decode(data, 8, 1, "squash")[..., 0], three[..., 0])


def test_unsigned_pixels_without_a_rescale(slice_file: SliceFile) -> None:
    raw = np.arange(64, dtype=np.uint16).reshape(8, 8)
    data = slice_file(raw, RescaleSlope=None, RescaleIntercept=None)
    np.testing.assert_array_equal(decode(data, 8, 1, "squash")[..., 0], shown(raw, 1, 0, 40, 80))


def test_an_x_ray_has_its_own_window(slice_file: SliceFile, raw: np.ndarray) -> None:
    asked = slice_file(raw, Modality="DX", WindowCenter=[500, 700], WindowWidth=[400, 900])
    np.testing.assert_array_equal(np.asarray(picture(asked, 3)), shown(raw, 1, -1024, 500, 400))
    free = np.asarray(picture(slice_file(raw, Modality="DX"), 3))
    units = raw.astype(np.float64) - 1024
    np.testing.assert_array_equal(free, np.rint(255 * (units - units.min()) / (units.max() - units.min())))
    dark = np.asarray(picture(slice_file(raw, Modality="DX", PhotometricInterpretation="MONOCHROME1"), 3))
    np.testing.assert_array_equal(dark, 255 - free)


def test_a_flat_x_ray_does_not_divide_by_zero(slice_file: SliceFile) -> None:
    flat = np.full((8, 8), 7, np.int16)
    assert len(np.unique(np.asarray(picture(slice_file(flat, Modality="DX"), 1)))) == 1


def test_colour_stays_colour(slice_file: SliceFile) -> None:
    pixels = np.random.default_rng(0).integers(0, 256, (8, 8, 3), dtype=np.uint8)
    data = slice_file(
        pixels,
        Modality="ES",
        SamplesPerPixel=3,
        PlanarConfiguration=0,
        PhotometricInterpretation="RGB",
        BitsAllocated=8,
        BitsStored=8,
        HighBit=7,
    )
    np.testing.assert_array_equal(decode(data, 8, 3, "squash"), pixels)


def test_several_frames_are_refused(slice_file: SliceFile) -> None:
    raw = np.zeros((2, 8, 8), np.int16)
    data = slice_file(raw, Rows=8, Columns=8, NumberOfFrames=2)
    with pytest.raises(ValueError, match="2 x 8 x 8 values and not one grey image"):
        picture(data, 1)


def test_the_patient_is_in_the_first_bytes(slice_file: SliceFile) -> None:
    raw = np.zeros((256, 256), np.int16)
    data = slice_file(raw, PatientID="ID_0123")
    assert len(data) > 4 * HEADER
    assert patient(data[:HEADER]) == "ID_0123" == str(pydicom.dcmread(BytesIO(data)).PatientID)


def test_a_table_may_name_dicom_files(slice_file: SliceFile, raw: np.ndarray, tmp_path: Path) -> None:
    (tmp_path / "a.dcm").write_bytes(slice_file(raw))
    (tmp_path / "b.dcm").write_bytes(slice_file(raw, PixelData=None))
    (tmp_path / "c.dcm").write_bytes(slice_file(raw)[:-20])
    (tmp_path / "labels.csv").write_text("file,label\na,x\nb,y\nc,x\n")
    options = CsvData(path="labels.csv", label="label", image_size=8, bad_rows="skip")
    samples = options.load(cache=tmp_path / "cache", base=tmp_path)
    assert samples.ids.tolist() == ["a"]
    assert (
        samples.skipped[0]
        == "row 3: image 'b.dcm' is broken: the DICOM file has no pixel data; download it again"
    )
    assert (
        samples.skipped[1].startswith("row 4: image 'c.dcm' is broken: ") and "\n" not in samples.skipped[1]
    )
