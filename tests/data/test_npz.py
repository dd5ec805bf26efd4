from __future__ import annotations

import contextlib
import tracemalloc
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from equipoise.data import NpzData, Samples
from equipoise.data.cache import CHUNK
from equipoise.data.options import SPLITS
from equipoise.errors import DataError

RNG = np.random.default_rng(3)


def pictures(count: int, *shape: int) -> np.ndarray:
    return RNG.integers(0, 256, (count, *shape), dtype=np.uint8)


def arrays(*shape: int) -> dict[str, np.ndarray]:
    return {
        "train_images": pictures(4, *shape),
        "train_labels": np.array([[0], [1], [2], [1]], np.uint8),
        "val_images": pictures(1, *shape),
        "val_labels": np.array([[2]], np.uint8),
        "test_images": pictures(2, *shape),
        "test_labels": np.array([[0], [1]], np.uint8),
    }


def load(base: Path, given: dict[str, np.ndarray], compressed: bool = True, **options: Any) -> Samples:
    save: Any = np.savez_compressed if compressed else np.savez
    save(base / "set.npz", **given)
    return NpzData(path="set.npz", **({"image_size": 28} | options)).load(cache=base / "cache", base=base)


@pytest.mark.parametrize("compressed", [True, False])
def test_colour_images_keep_their_pixels_and_splits(tmp_path: Path, compressed: bool) -> None:
    given = arrays(28, 28, 3)
    samples = load(tmp_path, given, compressed)
    stacked = np.concatenate([given[f"{part}_images"] for part in ("train", "val", "test")])
    np.testing.assert_array_equal(samples.images, stacked)
    assert samples.labels.tolist() == [0, 1, 2, 1, 2, 0, 1]
    assert samples.labels.dtype == np.int64
    assert samples.split is not None
    assert samples.split.tolist() == ["train"] * 4 + ["validation"] + ["test"] * 2
    assert samples.ids.tolist()[3:5] == ["train/3", "val/0"]
    assert samples.classes == ("0", "1", "2")
    assert samples.task == "single"


def test_more_than_one_chunk(tmp_path: Path) -> None:
    images = pictures(CHUNK + 5, 8, 8)
    given = {"train_images": images, "train_labels": np.arange(CHUNK + 5) % 2}
    samples = load(tmp_path, given, image_size=8, channels=1)
    np.testing.assert_array_equal(samples.images[..., 0], images)


def test_grey_images_are_repeated_or_kept_and_resized(tmp_path: Path) -> None:
    given = arrays(28, 28)
    colour = load(tmp_path, given, classes=["a", "b", "c"])
    assert colour.classes == ("a", "b", "c")
    np.testing.assert_array_equal(
        colour.images, np.repeat(np.asarray(load(tmp_path, given, channels=1).images), 3, 3)
    )
    small = load(tmp_path, given, channels=1, image_size=14)
    # Shrinking by two: the mean of the image stays (the filter is symmetric).
    assert small.images.shape == (7, 14, 14, 1)
    np.testing.assert_allclose(small.images.mean(), colour.images.mean(), atol=1.5)


def test_many_labels_per_image(tmp_path: Path) -> None:
    given = {"train_images": pictures(3, 28, 28), "train_labels": np.array([[0, 1], [1, 1], [0, 0]])}
    samples = load(tmp_path, given)
    assert samples.task == "multi"
    assert samples.labels.dtype == np.float32
    assert samples.labels.tolist() == [[0, 1], [1, 1], [0, 0]]


def test_bad_labels_are_refused_or_skipped(tmp_path: Path) -> None:
    given = arrays(28, 28)
    given["test_labels"] = np.array([[7], [1]], np.uint8)
    with pytest.raises(
        DataError, match=r"(?s)1 of 7 rows.*test_labels\[0\]: label 7 is not a number from 0 to 2"
    ):
        load(tmp_path, given, classes=["a", "b", "c"])
    samples = load(tmp_path, given, classes=["a", "b", "c"], bad_rows="skip")
    np.testing.assert_array_equal(samples.images[5, ..., 0], given["test_images"][1])
    assert len(samples) == 6
    assert len(samples.skipped) == 1
    partly = {"train_images": pictures(2, 28, 28), "train_labels": np.array([[0, -1], [1, 1]])}
    np.testing.assert_array_equal(load(tmp_path, partly).labels, np.array([[0, np.nan], [1, 1]], np.float32))
    many = {"train_images": pictures(2, 28, 28), "train_labels": np.array([[0, 2], [1, 1]])}
    with pytest.raises(DataError, match=r"train_labels\[0\]: \[0, 2\] holds a value that is neither 0 nor 1"):
        load(tmp_path, many)


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        ({"train_images": np.zeros((4, 28, 28, 28), np.uint8)}, "3-D volumes"),
        ({"train_images": np.zeros((4, 9, 9, 9, 3), np.uint8)}, "3-D volumes"),
        ({"train_images": np.zeros((4, 28, 28), np.float32)}, "convert to uint8"),
        ({"train_images": np.zeros((3, 28, 28), np.uint8)}, "3 images and 4 labels"),
        ({"train_images": np.asfortranarray(np.zeros((4, 28, 28), np.uint8))}, "ascontiguousarray"),
        ({"train_labels": np.array([["nv"]] * 4)}, "make it integers"),
        ({"train_labels": np.zeros((4, 2), int)}, "differ in number of columns"),
        ({"train_labels": np.array([None] * 4)}, "make it integers"),
    ],
)
def test_arrays_that_cannot_be_used(tmp_path: Path, change: dict[str, np.ndarray], sentence: str) -> None:
    with pytest.raises(DataError, match=sentence) as refusal:
        load(tmp_path, arrays(28, 28) | change)
    assert "\n" not in str(refusal.value)


def test_other_files(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"no train_images.* but x, y"):
        load(tmp_path, {"x": np.zeros(2), "y": np.zeros(2)})
    with pytest.raises(DataError, match="unknown array 'train_labels'"):
        load(tmp_path, {"train_images": pictures(2, 8, 8)})
    (tmp_path / "set.npz").write_bytes(b"PK nothing")
    with pytest.raises(DataError, match=r"cannot be opened as an \.npz file"):
        NpzData(path="set.npz").load(cache=tmp_path, base=tmp_path)


def test_a_changed_pixel_changes_the_fingerprint(tmp_path: Path) -> None:
    given = arrays(28, 28)
    before = load(tmp_path, given).fingerprint
    assert load(tmp_path, given).fingerprint == before
    given["val_images"][0, 3, 3] ^= 1
    assert load(tmp_path, given).fingerprint != before


def bomb(path: Path, arrays: dict[str, tuple[tuple[int, ...], str]], claim: int | None = None) -> None:
    """An .npz of zeros whose headers say `arrays` (shape and type), compressed to a few thousandths."""
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED, compresslevel=1) as archive:
        for name, (shape, kind) in arrays.items():
            with archive.open(f"{name}.npy", "w", force_zip64=True) as file:
                np.lib.format.write_array_header_1_0(
                    file, {"descr": kind, "fortran_order": False, "shape": shape}
                )
                left = int(np.prod(shape)) * np.dtype(kind).itemsize if claim is None else claim
                while left > 0:
                    file.write(bytes(min(left, 2**24)))
                    left -= 2**24


@pytest.mark.parametrize(
    ("arrays", "claim", "sentence"),
    [
        (
            {"train_images": ((2, 8, 8), "|u1"), "train_labels": ((2**21, 8), "<i8")},
            2**27,
            "which no images do",
        ),
        (
            {"train_images": ((2, 2**13, 2**13), "|u1"), "train_labels": ((2, 1), "|u1")},
            None,
            "which no images do",
        ),
        (
            {"train_images": ((2, 8, 8), "|u1"), "train_labels": ((2**40, 1), "|u1")},
            64,
            "does not hold what it says",
        ),
        (
            {"train_images": ((2**40, 8, 8), "|u1"), "train_labels": ((2, 1), "|u1")},
            2,
            "does not hold what it says",
        ),
    ],
)
def test_an_archive_that_would_fill_memory_is_refused_before_it_is_unpacked(
    tmp_path: Path, arrays: dict[str, Any], claim: int | None, sentence: str
) -> None:
    bomb(tmp_path / "set.npz", arrays, claim)
    tracemalloc.start()
    with pytest.raises(DataError, match=sentence):
        NpzData(path="set.npz", image_size=8).load(cache=tmp_path / "cache", base=tmp_path)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < 2**26


@pytest.mark.parametrize("seed", range(20))
def test_a_damaged_archive_gets_a_sentence(tmp_path: Path, seed: int) -> None:
    np.savez_compressed(tmp_path / "whole.npz", **arrays(28, 28))
    data = bytearray((tmp_path / "whole.npz").read_bytes())
    draw = np.random.default_rng(seed)
    for place in draw.integers(0, len(data), 8):
        data[place] ^= 1 << int(draw.integers(8))
    (tmp_path / "set.npz").write_bytes(data)
    with contextlib.suppress(DataError):  # where the bits that flipped are never read, nothing is wrong
        NpzData(path="set.npz", image_size=28).load(cache=tmp_path / "cache", base=tmp_path)


@pytest.mark.parametrize("part", ["val", "test"])
@pytest.mark.parametrize("shape", [(0, 9, 9, 3), (0,)])
@pytest.mark.parametrize("kind", [np.uint8, np.float64])
def test_an_empty_part_counts_as_none(
    tmp_path: Path, part: str, shape: tuple[int, ...], kind: type[np.generic]
) -> None:
    given = arrays(9, 9, 3) | {f"{part}_images": np.zeros(shape, kind), f"{part}_labels": np.zeros(0, kind)}
    np.savez(tmp_path / "x.npz", **given)
    samples = NpzData(path="x.npz", image_size=9).load(cache=tmp_path / "cache", base=tmp_path)
    assert samples.split is not None
    assert set(samples.split.tolist()) == {"train", "validation", "test"} - {SPLITS[part]}


def test_nothing_but_empty_parts_is_refused(tmp_path: Path) -> None:
    np.savez(
        tmp_path / "x.npz", train_images=np.zeros((0, 9, 9), np.uint8), train_labels=np.zeros((0, 1), int)
    )
    with pytest.raises(DataError, match="holds no images: save the arrays again"):
        NpzData(path="x.npz", image_size=9).load(cache=tmp_path / "cache", base=tmp_path)


def test_labels_without_images_are_still_a_fault(tmp_path: Path) -> None:
    given = arrays(9, 9, 3) | {"val_images": np.zeros((0, 9, 9, 3), np.uint8)}
    np.savez(tmp_path / "x.npz", **given)
    with pytest.raises(DataError, match="val_images has 0 images and 1 labels"):
        NpzData(path="x.npz", image_size=9).load(cache=tmp_path / "cache", base=tmp_path)
