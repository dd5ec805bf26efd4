"""DICOM files, made with pydicom, against windows computed one pixel at a time."""

from __future__ import annotations

from collections.abc import Callable
from io import BytesIO
from pathlib import Path
from typing import Any

import numpy as np
import pydicom.encaps
import pytest
from pydantic import ValidationError

from equipoise.data import CsvData, NpzData
from equipoise.data.dicom import HEADER, WINDOWS, is_dicom, patient, picture
from equipoise.data.images import decode
from equipoise.data.preprocess import Look
from equipoise.data.sets.rsna_ich import RsnaIch

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
    data = slice_file(
        raw, RescaleSlope=slope, RescaleIntercept=intercept, WindowCenter=-600, WindowWidth=1500
    )
    assert is_dicom(data)
    head = Look(windows=tuple(WINDOWS.values()))
    three = decode(data, 8, 3, "squash", head)
    for channel, (name, centre, width) in enumerate(
        (("brain", 40, 80), ("subdural", 80, 200), ("bone", 600, 2800))
    ):
        assert list(WINDOWS)[channel] == name
        np.testing.assert_array_equal(three[..., channel], shown(raw, slope, intercept, centre, width))
    np.testing.assert_array_equal(decode(data, 8, 1, "squash", head)[..., 0], three[..., 0])


def test_a_ct_slice_without_a_key_has_the_window_it_names(slice_file: SliceFile, raw: np.ndarray) -> None:
    lung = slice_file(raw, WindowCenter=[-600, 40], WindowWidth=[1500, 400])
    for channels in (1, 3):
        found = decode(lung, 8, channels, "squash")
        for channel in range(channels):
            np.testing.assert_array_equal(found[..., channel], shown(raw, 1, -1024, -600, 1500))


@pytest.mark.parametrize("named", [{}, {"WindowCenter": 40, "WindowWidth": 0}])
def test_a_ct_slice_that_names_no_window_shows_all_twelve_bits(
    slice_file: SliceFile, raw: np.ndarray, named: dict[str, int]
) -> None:
    found = decode(slice_file(raw, **named), 8, 1, "squash")[..., 0]
    by_hand = np.rint(255 * (raw.astype(np.float64) - 1024 + 1024) / 4095)
    np.testing.assert_array_equal(found, by_hand)


def test_unsigned_pixels_without_a_rescale(slice_file: SliceFile) -> None:
    raw = np.arange(64, dtype=np.uint16).reshape(8, 8)
    data = slice_file(raw, RescaleSlope=None, RescaleIntercept=None)
    found = decode(data, 8, 1, "squash", Look(windows=((40, 80),)))[..., 0]
    np.testing.assert_array_equal(found, shown(raw, 1, 0, 40, 80))


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


COLOUR: dict[str, Any] = {"Modality": "US", "SamplesPerPixel": 3, "PlanarConfiguration": 0}
EIGHT: dict[str, Any] = {"BitsAllocated": 8, "BitsStored": 8, "HighBit": 7}


def test_luminance_and_chroma_become_colours(slice_file: SliceFile) -> None:
    # full red is Y 76, Cb 85, Cr 255 and full blue is Y 29, Cb 255, Cr 107 (ITU-R BT.601, full range)
    pixels = np.zeros((8, 8, 3), np.uint8)
    pixels[:, :4], pixels[:, 4:] = (76, 85, 255), (29, 255, 107)
    data = slice_file(pixels, PhotometricInterpretation="YBR_FULL", **COLOUR, **EIGHT)
    found = decode(data, 8, 3, "squash").astype(int)
    assert np.abs(found[:, :4] - [255, 0, 0]).max() <= 2
    assert np.abs(found[:, 4:] - [0, 0, 255]).max() <= 2


@pytest.mark.parametrize(("stored", "shift"), [(16, 8), (12, 4)])
def test_colours_of_sixteen_bits_keep_their_upper_eight(
    slice_file: SliceFile, stored: int, shift: int
) -> None:
    pixels = np.random.default_rng(0).integers(0, 2**stored, (8, 8, 3)).astype(np.uint16)
    depth = {"BitsAllocated": 16, "BitsStored": stored, "HighBit": stored - 1}
    data = slice_file(pixels, PhotometricInterpretation="RGB", **COLOUR, **depth)
    np.testing.assert_array_equal(decode(data, 8, 3, "squash"), pixels >> shift)


@pytest.mark.parametrize("bits", [8, 16])
def test_a_palette_gives_its_colours(slice_file: SliceFile, bits: int) -> None:
    draw = np.random.default_rng(1)
    lut = draw.integers(0, 256, (3, 256)).astype(np.uint8 if bits == 8 else np.uint16) << (bits - 8)
    index = draw.integers(0, 256, (8, 8)).astype(np.uint8)
    names = ("Red", "Green", "Blue")
    tables = {f"{name}PaletteColorLookupTableDescriptor": [256, 0, bits] for name in names}
    entries = {
        f"{name}PaletteColorLookupTableData": row.tobytes() for name, row in zip(names, lut, strict=True)
    }
    data = slice_file(
        index, Modality="US", PhotometricInterpretation="PALETTE COLOR", **EIGHT, **tables, **entries
    )
    np.testing.assert_array_equal(
        decode(data, 8, 3, "squash"), np.moveaxis(lut[:, index], 0, -1) >> (bits - 8)
    )


def test_what_cannot_be_shown_is_refused_with_the_fix(slice_file: SliceFile) -> None:
    colours = np.zeros((8, 8, 3), np.uint8)
    data = slice_file(colours, PhotometricInterpretation="RGB", **COLOUR, **EIGHT)
    with pytest.raises(ValueError, match=r"in colour and data.window is for grey values; remove the key"):
        decode(data, 8, 3, "squash", Look(windows=((40, 80),)))
    data = slice_file(colours, PhotometricInterpretation="HSV", **COLOUR, **EIGHT)
    with pytest.raises(ValueError, match="colours are 'HSV', which cannot be read; save it as RGB"):
        decode(data, 8, 3, "squash")
    packed = pydicom.dcmread(BytesIO(slice_file(np.zeros((8, 8), np.int16))))
    packed.PixelData = pydicom.encaps.encapsulate([b"not decoded before the decoder is looked for"])
    packed.file_meta.TransferSyntaxUID = pydicom.uid.JPEGLSLossless
    file = BytesIO()
    pydicom.dcmwrite(file, packed)
    with pytest.raises(ValueError, match=r"compressed as JPEG-LS .*: run pip install pylibjpeg"):
        decode(file.getvalue(), 8, 3, "squash")
    huge = slice_file(np.zeros((8, 8), np.int16), Rows=60_000, Columns=60_000)
    with pytest.raises(ValueError, match="60000 x 60000 x 1 x 1 values; save it smaller"):
        decode(huge, 8, 3, "squash")


def test_a_dark_x_ray_in_ct_colours_is_turned(slice_file: SliceFile, raw: np.ndarray) -> None:
    data = slice_file(raw, PhotometricInterpretation="MONOCHROME1")
    three = decode(data, 8, 3, "squash", Look(windows=tuple(WINDOWS.values())))
    np.testing.assert_array_equal(three[..., 1], 255 - shown(raw, 1, -1024, 80, 200))


def test_head_ct_keeps_its_three_windows_by_default() -> None:
    assert RsnaIch(path="x").look.windows == ((40, 80), (80, 200), (600, 2800))


@pytest.mark.parametrize("given", [[40, 80], [[40, 80]], [[40.0, 80.0]]])
def test_one_window_may_be_written_bare(given: Any) -> None:
    assert CsvData(path="x", label="y", window=given).look.windows == ((40, 80),)


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ([40, 0], "a width above 0"),
        ([[40, 80], [80, 200]], "one window for all channels, or three"),
        ([], "one window for all channels, or three"),
        ([40], "valid tuple"),
    ],
)
def test_a_window_that_is_none_is_refused(given: Any, words: str) -> None:
    with pytest.raises(ValidationError, match=words):
        CsvData(path="x", label="y", window=given)
    with pytest.raises(ValidationError, match="npz images have 8 bits"):
        NpzData(path="x", window=[40, 80])


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
