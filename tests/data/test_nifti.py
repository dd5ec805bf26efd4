"""NIfTI volumes, made with nibabel: the right slice, the right way up."""

from __future__ import annotations

import gzip
import sys
import tracemalloc
from pathlib import Path
from typing import Any

import nibabel
import numpy as np
import pytest

from equipoise.data import CsvData, FolderData
from equipoise.data import nifti as reader
from equipoise.data.images import decode
from equipoise.data.nifti import is_nifti
from equipoise.data.preprocess import Look
from equipoise.errors import DataError
from equipoise.predict.images import find_images

RAS = np.diag([1.0, 1, 1, 1])


def encoded(
    values: np.ndarray, affine: np.ndarray = RAS, kind: Any = nibabel.Nifti1Image, **header: Any
) -> bytes:
    image = kind(values, affine)
    for name, value in header.items():
        image.header[name] = value
    data: bytes = image.to_bytes()
    return data


@pytest.fixture
def volume() -> np.ndarray:
    """16 x 16 x 5, from left to right, back to front, foot to head; every slice 100 brighter than the one
    below."""
    values = np.random.default_rng(0).integers(0, 100, (16, 16, 5)).astype(np.int16)
    return values + 100 * np.arange(5, dtype=np.int16)


def by_hand(volume: np.ndarray, number: int, low: float, high: float) -> np.ndarray:
    """Row 0 is the front and column 0 the patient's right, pixel by pixel."""
    picture = np.zeros((16, 16), np.uint8)
    for row in range(16):
        for column in range(16):
            value = float(volume[15 - column, 15 - row, number])
            picture[row, column] = round(255 * min(1, max(0, (value - low) / (high - low))))
    return picture


@pytest.mark.parametrize("kind", [nibabel.Nifti1Image, nibabel.Nifti2Image])
@pytest.mark.parametrize("number", [None, 0, 4])
def test_a_slice_is_seen_as_in_dicom(volume: np.ndarray, kind: Any, number: int | None) -> None:
    data = encoded(volume, kind=kind)
    wanted = by_hand(volume, 2 if number is None else number, float(volume.min()), float(volume.max()))
    for packed in (data, gzip.compress(data, mtime=0)):
        assert is_nifti(packed)
        np.testing.assert_array_equal(decode(packed, 16, 1, "squash", number=number)[..., 0], wanted)


def test_however_the_file_lies(volume: np.ndarray) -> None:
    wanted = decode(encoded(volume), 16, 1, "squash", number=1)
    turned = encoded(volume[::-1, ::-1], np.diag([-1.0, -1, 1, 1]))
    np.testing.assert_array_equal(decode(turned, 16, 1, "squash", number=1), wanted)
    sagittal = np.zeros((4, 4))
    sagittal[1, 0] = sagittal[2, 1] = sagittal[0, 2] = sagittal[3, 3] = 1  # axes: front, head, right
    moved = encoded(np.transpose(volume, (1, 2, 0)), sagittal)
    np.testing.assert_array_equal(decode(moved, 16, 1, "squash", number=1), wanted)


def test_windows(volume: np.ndarray) -> None:
    three = decode(encoded(volume), 16, 3, "squash", Look(windows=((250, 100), (40, 80), (100, 900))))
    np.testing.assert_array_equal(three[..., 0], by_hand(volume, 2, 200, 300))
    np.testing.assert_array_equal(three[..., 2], by_hand(volume, 2, -350, 550))
    own = decode(encoded(volume, cal_min=200, cal_max=300), 16, 1, "squash")
    np.testing.assert_array_equal(own[..., 0], by_hand(volume, 2, 200, 300))


def test_fractions_and_gaps(volume: np.ndarray) -> None:
    values = volume.astype(np.float32) / 7
    values[:, :, 2][0, 0] = np.nan
    expected = np.nan_to_num(values)
    found = decode(encoded(values), 16, 1, "squash")[..., 0].astype(int)
    wanted = by_hand(expected, 2, float(expected.min()), float(expected.max()))
    assert np.abs(found - wanted).max() <= 1


def test_one_slice_alone(volume: np.ndarray) -> None:
    found = decode(encoded(volume[:, :, 2]), 16, 1, "squash")[..., 0]
    flat = volume[:, :, 2]
    np.testing.assert_array_equal(found, by_hand(volume, 2, float(flat.min()), float(flat.max())))


@pytest.mark.parametrize(
    ("data", "number", "words"),
    [
        (
            encoded(np.zeros((8, 8, 5), np.int16)),
            5,
            "it has 5 axial slices and no number 5; count them from 0",
        ),
        (
            encoded(np.zeros((8, 8, 5, 2), np.int16)),
            0,
            "8 x 8 x 5 x 2 values of int16 and not one grey volume",
        ),
        (encoded(np.zeros((8, 8, 5), np.complex64)), 0, "of complex64 and not one grey volume"),
        (encoded(np.zeros((8, 8, 5), np.int16))[:-99], 0, "ends before its last slice; copy it again"),
        (gzip.compress(b"something else", mtime=0), 0, "packed and no NIfTI volume; unpack it"),
    ],
)
def test_what_cannot_be_read_is_refused_with_the_fix(data: bytes, number: int, words: str) -> None:
    with pytest.raises(ValueError, match=words):
        decode(data, 8, 1, "squash", number=number)


def test_a_promise_of_a_huge_volume_costs_no_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    data = bytearray(encoded(np.zeros((8, 8, 5), np.int16)))
    data[42:48] = np.array([30_000, 30_000, 30_000], "<i2").tobytes()
    tracemalloc.start()
    try:
        with pytest.raises(ValueError, match="30000 x 30000 x 30000 values; save it smaller"):
            decode(bytes(data), 8, 1, "squash")
        monkeypatch.setattr(reader, "MOST_BYTES", 2**20)
        with pytest.raises(ValueError, match="unpacks to more than 1,048,576 bytes; save it smaller"):
            decode(gzip.compress(bytes(2**27), compresslevel=1), 8, 1, "squash")
        assert tracemalloc.get_traced_memory()[1] < 2**28
    finally:
        tracemalloc.stop()


def test_a_table_names_slices(volume: np.ndarray, tmp_path: Path) -> None:
    (tmp_path / "a.nii.gz").write_bytes(gzip.compress(encoded(volume)))
    (tmp_path / "b.nii").write_bytes(encoded(volume + 9))
    rows = ["file,label,level,patient", "a,x,0,p", "a,y,4,p", "b.nii,x,,q", "b.nii,y,7,q", "b.nii,y,top,q"]
    (tmp_path / "rows.csv").write_text("\n".join(rows) + "\n")
    options = CsvData(
        path="rows.csv",
        label="label",
        slice="level",
        image_size=16,
        channels=1,
        bad_rows="skip",
        window=[250, 500],
    )
    for _ in range(2):  # decoded, then from the cache
        found = options.load(cache=tmp_path / "cache", base=tmp_path)
        assert found.ids.tolist() == ["a#0", "a#4", "b.nii"]
        for row, (values, number) in enumerate(((volume, 0), (volume, 4), (volume + 9, 2))):
            np.testing.assert_array_equal(found.images[row, ..., 0], by_hand(values, number, 0, 500))
    assert found.skipped == (
        "row 5: image 'b.nii' is broken: it has 5 axial slices and no number 7; count them from 0",
        "row 6: 'top' in column 'level' is no number of a slice, counted from 0",
    )
    assert reader._volume.cache_info().currsize == 0
    (tmp_path / "rows.csv").write_text("\n".join([*rows[:2], "a,y,3,p"]) + "\n")
    found = options.load(cache=tmp_path / "cache", base=tmp_path)
    np.testing.assert_array_equal(found.images[1, ..., 0], by_hand(volume, 3, 0, 500))


def test_a_slice_of_what_is_no_volume(tmp_path: Path, encode: Any) -> None:
    (tmp_path / "a.png").write_bytes(encode(1, 2, 3, form="PNG"))
    (tmp_path / "rows.csv").write_text("file,label,level\na.png,x,3\n")
    with pytest.raises(DataError, match="it is not a NIfTI volume and has no slices; leave its slice empty"):
        CsvData(path="rows.csv", label="label", slice="level").load(cache=tmp_path / "cache", base=tmp_path)


def test_folders_and_predictions_take_the_middle(volume: np.ndarray, tmp_path: Path) -> None:
    for name, added in (("x", 0), ("y", 9)):
        (tmp_path / "volumes" / name).mkdir(parents=True)
        (tmp_path / "volumes" / name / "1.nii.gz").write_bytes(gzip.compress(encoded(volume + added)))
    found = FolderData(path="volumes", image_size=16).load(cache=tmp_path / "cache", base=tmp_path)
    assert found.ids.tolist() == ["x/1.nii.gz", "y/1.nii.gz"]
    wanted = by_hand(volume, 2, float(volume.min()), float(volume.max()))
    np.testing.assert_array_equal(found.images[0, ..., 0], wanted)
    assert len(list(find_images([tmp_path / "volumes"]))) == 2


def test_without_nibabel(volume: np.ndarray, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "nibabel", None)
    with pytest.raises(DataError, match=r"NIfTI volumes need nibabel: run pip install nibabel"):
        decode(encoded(volume + 1), 16, 1, "squash")


def test_a_broken_volume_is_one_sentence(tmp_path: Path, volume: np.ndarray) -> None:
    (tmp_path / "x").mkdir()
    (tmp_path / "x" / "a.nii.gz").write_bytes(gzip.compress(encoded(volume))[:-40])
    with pytest.raises(DataError) as refusal:
        FolderData(path=str(tmp_path)).load(cache=tmp_path / "cache", base=tmp_path)
    assert len(str(refusal.value).splitlines()) == 2 and str(refusal.value).endswith("; copy it again")
