"""Sets stored from Python: every kind of input, every refusal, and runs on them."""

from __future__ import annotations

import io
import json
import os
import re
import subprocess
import sys
import weakref
import zipfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from torch.utils.data import ConcatDataset, Dataset, IterableDataset, TensorDataset

import equipoise
from equipoise.compare import compare, make_plan
from equipoise.config import resolve
from equipoise.data import CsvData, JoinedData, NpzData, Samples, StoredData
from equipoise.data.cache import CHUNK
from equipoise.errors import ConfigError, DataError, EquipoiseError, StorageError
from equipoise.running import resume, run
from equipoise.use import evaluate, load
from equipoise.verify import verify

COUNT, SIDE = 12, 16
NAMES = ("melanoma", "nevus", "keratosis")
PIXELS = np.random.default_rng(5).integers(0, 256, (COUNT, SIDE, SIDE, 3), dtype=np.uint8)
PIXELS[0, 0, :, 0], PIXELS[1, 0, :, 0] = 0, 255
LABELS = [i % 3 for i in range(COUNT)]
Store = Callable[..., Samples]


@pytest.fixture
def clinic(tmp_path: Path) -> Path:
    """The pictures as PNG files, with a CSV file."""
    (tmp_path / "images").mkdir()
    lines = ["file,label,effusion,nodule,hospital,patient,sex,fold"]
    folds = ("train", "val", "Testing")
    for i, pixels in enumerate(PIXELS):
        Image.fromarray(pixels).save(tmp_path / "images" / f"{i}.png")
        sex = ("f", "m", "")[i % 3]
        several = f"{i % 2},{int(i % 5 == 0)}"
        lines.append(f"{i}.png,{NAMES[i % 3]},{several},h{i % 2},{i // 3},{sex},{folds[i % 3]}")
    (tmp_path / "labels.csv").write_text("\n".join(lines) + "\n")
    return tmp_path


@pytest.fixture
def store(tmp_path: Path) -> Store:
    """Store a dataset and read it back."""

    def both(dataset: Any, read: dict[str, Any] | None = None, **options: Any) -> Samples:
        equipoise.store(dataset, tmp_path / "set", **{"overwrite": True} | options)
        return read_back(tmp_path, **read or {})

    return both


def read_back(base: Path, **options: Any) -> Samples:
    return StoredData(path="set", **options).load(cache=base / "cache", base=base)


def from_csv(clinic: Path, **options: Any) -> Samples:
    given: dict[str, Any] = {"label": "label", "classes": NAMES, "image_size": SIDE} | options
    return CsvData(path="labels.csv", images="images", **given).load(cache=clinic / "cache", base=clinic)


def column(clinic: Path, name: str) -> list[str]:
    head, *rows = [line.split(",") for line in (clinic / "labels.csv").read_text().splitlines()]
    return [row[head.index(name)] for row in rows]


def same(a: Samples, b: Samples) -> None:
    """The same bits, also in the fingerprint."""
    np.testing.assert_array_equal(a.images, b.images)
    np.testing.assert_array_equal(a.labels, b.labels)
    assert (a.classes, a.task, a.labels.dtype) == (b.classes, b.task, b.labels.dtype)
    assert a.fingerprint == b.fingerprint


# Every kind of image and label ------------------------------------------------------------------------------

GREY = PIXELS[..., 0]
COLOUR: dict[str, Callable[[int], Any]] = {
    "PIL": lambda i: Image.fromarray(PIXELS[i]),
    "PIL with transparency": lambda i: Image.fromarray(PIXELS[i]).convert("RGBA"),
    "numpy uint8": lambda i: PIXELS[i],
    "numpy by column": lambda i: np.asfortranarray(PIXELS[i]),
    "numpy float32": lambda i: (PIXELS[i] / 255).astype(np.float32),
    "numpy float64": lambda i: PIXELS[i] / 255,
    "numpy float16": lambda i: (PIXELS[i] / 255).astype(np.float16),
    "tensor uint8": lambda i: torch.from_numpy(PIXELS[i]).permute(2, 0, 1),
    "tensor float32": lambda i: torch.from_numpy(PIXELS[i]).permute(2, 0, 1).float().div(255),
    "tensor with a gradient": lambda i: (
        torch.from_numpy(PIXELS[i]).permute(2, 0, 1).double().div(255).requires_grad_()
    ),
}
ONE_CHANNEL: dict[str, Callable[[int], Any]] = {
    "PIL": lambda i: Image.fromarray(GREY[i]),
    "numpy [H, W]": lambda i: GREY[i],
    "numpy [H, W, 1]": lambda i: GREY[i][..., None],
    "numpy float": lambda i: GREY[i] / 255,
    "tensor [1, H, W]": lambda i: torch.from_numpy(GREY[i])[None],
    "tensor [H, W]": lambda i: torch.from_numpy(GREY[i]).float() / 255,
}
ONE_LABEL: dict[str, Callable[[int], Any]] = {
    "int": lambda i: i,
    "name": lambda i: NAMES[i],
    "numpy name": lambda i: np.array(NAMES)[i],
    "numpy int": lambda i: np.int16(i),
    "float": lambda i: float(i),
    "tensor": lambda i: torch.tensor(i),
    "as MedMNIST has it": lambda i: np.array([i], np.uint8),
}


@pytest.mark.parametrize("kind", COLOUR)
def test_every_kind_of_image_is_as_the_csv_reader_has_it(kind: str, clinic: Path, store: Store) -> None:
    pairs = [(COLOUR[kind](i), LABELS[i]) for i in range(COUNT)]
    found = store(pairs, classes=NAMES, ids=column(clinic, "file"))
    same(found, from_csv(clinic))
    assert isinstance(found.images, np.memmap) and not found.images.flags.writeable


@pytest.mark.parametrize("kind", ONE_CHANNEL)
@pytest.mark.parametrize("channels", [1, 3])
def test_grey_images_are_kept_or_repeated(kind: str, channels: int, clinic: Path, store: Store) -> None:
    for i, pixels in enumerate(GREY):
        Image.fromarray(pixels).save(clinic / "images" / f"{i}.png")
    pairs = [(ONE_CHANNEL[kind](i), LABELS[i]) for i in range(COUNT)]
    found = store(pairs, classes=NAMES, ids=column(clinic, "file"), channels=channels)
    same(found, from_csv(clinic, channels=channels))


@pytest.mark.parametrize("kind", ONE_LABEL)
def test_every_kind_of_label(kind: str, store: Store) -> None:
    found = store([(PIXELS[i], ONE_LABEL[kind](LABELS[i])) for i in range(COUNT)], classes=NAMES)
    assert found.labels.tolist() == LABELS
    assert found.labels.dtype == np.int64
    assert found.classes == NAMES
    assert found.ids.tolist() == [str(i) for i in range(COUNT)]


@pytest.mark.parametrize("form", [list, tuple, np.array, torch.tensor, lambda v: torch.tensor(v).bool()])
def test_several_labels_are_as_the_csv_reader_has_them(form: Any, clinic: Path, store: Store) -> None:
    vectors = [[i % 2, int(i % 5 == 0)] for i in range(COUNT)]
    found = store(
        [(PIXELS[i], form(vectors[i])) for i in range(COUNT)],
        classes=["effusion", "nodule"],
        ids=column(clinic, "file"),
    )
    same(found, from_csv(clinic, label=None, labels=["effusion", "nodule"], classes=None))


def test_without_names_classes_are_numbers_or_the_names_that_come(store: Store) -> None:
    pairs = list(zip(PIXELS, LABELS, strict=True))
    assert store(pairs).classes == ("0", "1", "2")
    named = store([(pixels, NAMES[label]) for pixels, label in pairs])
    assert named.classes == tuple(sorted(NAMES))
    assert [named.classes[label] for label in named.labels] == [NAMES[label] for label in LABELS]
    assert store([(pixels, [1, 0, 0]) for pixels in PIXELS]).classes == ("0", "1", "2")


def test_columns_are_as_the_csv_reader_has_them(clinic: Path, store: Store) -> None:
    found = store(
        zip(PIXELS, LABELS, strict=True),
        classes=NAMES,
        ids=column(clinic, "file"),
        sites=np.array(column(clinic, "hospital")),
        groups=torch.arange(COUNT) // 3,
        splits=column(clinic, "fold"),
        attributes={"sex": [value or None for value in column(clinic, "sex")]},
    )
    options = {"site": "hospital", "group": "patient", "split": "fold", "attributes": ["sex"]}
    same(found, from_csv(clinic, **options))
    assert found.split is not None and found.split.tolist()[:3] == ["train", "validation", "test"]


def test_a_dataset_of_dicts(clinic: Path, store: Store) -> None:
    rows = [
        {"picture": PIXELS[i], "finding": LABELS[i], "where": f"h{i % 2}", "who": i // 3, "sex": "f"}
        for i in range(COUNT)
    ]
    keys = {"image": "picture", "label": "finding", "sites": "where", "groups": "who", "attributes": "sex"}
    found = store(rows, classes=NAMES, **keys)
    assert found.site is not None and found.site.tolist() == column(clinic, "hospital")
    assert found.group is not None and found.group.tolist() == column(clinic, "patient")
    assert found.attributes["sex"].tolist() == ["f"] * COUNT
    with pytest.raises(DataError, match=r"row 0: unknown key 'wher': did you mean 'where'\?"):
        store(rows, **keys | {"sites": "wher"})
    with pytest.raises(DataError, match="row 0: site = 'where' is a key, and this is a pair"):
        store(zip(PIXELS, LABELS, strict=True), sites="where")


# Every kind of dataset --------------------------------------------------------------------------------------


class Pictures(Dataset[Any]):
    """As torchvision's are: classes, a length, a transform, and no IndexError at the end."""

    classes = list(NAMES)

    def __init__(self, train: bool = True) -> None:
        self.rows = range(0, 8) if train else range(8, COUNT)

    def __len__(self) -> int:
        return len(self.rows)

    def __getitem__(self, index: int) -> tuple[torch.Tensor, int]:
        i = self.rows[index % len(self.rows)]
        return torch.from_numpy(PIXELS[i]).permute(2, 0, 1).float() / 255, LABELS[i]


class Stream(IterableDataset[Any]):
    """One that says how long it is, which gives it both protocols."""

    def __len__(self) -> int:
        return COUNT

    def __iter__(self) -> Iterator[Any]:
        return iter(zip(PIXELS, LABELS, strict=True))


def test_a_torch_dataset_brings_its_classes(store: Store) -> None:
    found = store(Pictures())
    assert found.classes == NAMES
    np.testing.assert_array_equal(found.images, PIXELS[:8])
    assert store(Pictures(), classes=["a", "b", "c", "d"]).classes == ("a", "b", "c", "d")


def test_train_and_test_parts_become_one_set(store: Store) -> None:
    parts = [Pictures(train=True), Pictures(train=False)]
    found = store(ConcatDataset(parts), classes=NAMES, splits=["train"] * 8 + ["test"] * 4)
    np.testing.assert_array_equal(found.images, PIXELS)
    assert found.split is not None and found.split.tolist() == ["train"] * 8 + ["test"] * 4


class Endless(Pictures):
    """One that does not know its length, and ends as a list does."""

    def __len__(self) -> int:
        raise NotImplementedError

    def __getitem__(self, index: int) -> Any:
        return PIXELS[index], LABELS[index]


@pytest.mark.parametrize(
    "dataset",
    [
        Stream(),
        Endless.__new__(Endless),
        TensorDataset(torch.from_numpy(PIXELS).permute(0, 3, 1, 2), torch.tensor(LABELS)),
        zip(PIXELS, LABELS, strict=True),
        [[pixels, label] for pixels, label in zip(PIXELS, LABELS, strict=True)],
    ],
    ids=["iterable", "no length", "tensors", "zip", "lists"],
)
def test_other_iterables(dataset: Any, store: Store) -> None:
    found = store(dataset, classes=NAMES)
    np.testing.assert_array_equal(found.images, PIXELS)
    assert found.labels.tolist() == LABELS


def test_images_are_written_as_they_come(tmp_path: Path) -> None:
    """More than two chunks, of which no more than one is held."""
    count, alive, most, written = 2 * CHUNK + 50, 0, 0, []

    def gone() -> None:
        nonlocal alive
        alive -= 1

    def images() -> Iterator[tuple[np.ndarray, int]]:
        nonlocal alive, most
        for i in range(count):
            image = np.full((64, 64, 3), i % 251, np.uint8)
            weakref.finalize(image, gone)
            alive += 1
            most = max(most, alive)
            if i in (CHUNK + 10, 2 * CHUNK + 10):
                (raw,) = tmp_path.glob(".set-*/new/images.raw")
                written.append(raw.stat().st_size // image.nbytes)
            yield image, i % 2
            del image

    equipoise.store(images(), tmp_path / "set", channels=3)
    assert most <= CHUNK + 2
    assert written == [CHUNK, 2 * CHUNK]
    assert read_back(tmp_path).images[:, 5, 5, 1].tolist() == [i % 251 for i in range(count)]


# Sizes ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("resize", ["squash", "crop", "pad"])
def test_images_are_resized_as_the_csv_reader_does(resize: str, clinic: Path, store: Store) -> None:
    rng, pictures = np.random.default_rng(1), []
    for i in range(COUNT):
        pixels = rng.integers(0, 256, (20 + i, 40 - i, 3), dtype=np.uint8)
        pictures.append((pixels, LABELS[i]))
        Image.fromarray(pixels).save(clinic / "images" / f"{i}.png")
    options = {"classes": NAMES, "ids": column(clinic, "file"), "image_size": SIDE, "resize": resize}
    same(store(pictures, {"resize": resize}, **options), from_csv(clinic, resize=resize))


def test_a_way_of_resizing_that_use_would_not_follow_is_refused(store: Store) -> None:
    pairs = [(PIXELS[i][:, :12], LABELS[i]) for i in range(COUNT)]
    with pytest.raises(DataError, match="was stored with resize = 'crop'"):
        store(pairs, image_size=8, resize="crop")


def test_another_size_or_look_is_made_when_it_is_read(clinic: Path, store: Store) -> None:
    def csv(**options: Any) -> Samples:
        return from_csv(clinic, **options)

    store(zip(PIXELS, LABELS, strict=True), classes=NAMES, ids=column(clinic, "file"))
    for options in (
        {"image_size": 8},
        {"channels": 1},
        {"colour_constancy": 6.0},
        {"image_size": 8, "resize": "crop", "crop_keep": 0.5},
    ):
        same(read_back(clinic, **options), csv(**options))
    assert not read_back(clinic).images.flags.writeable


# Tables -----------------------------------------------------------------------------------------------------


class Frame:
    """What is used of a pandas DataFrame."""

    def __init__(self, columns: dict[Any, list[Any]]) -> None:
        self._columns, self.columns = columns, list(columns)

    def __getitem__(self, name: Any) -> np.ndarray:
        return np.array(self._columns[name], dtype=object)


def records(clinic: Path) -> dict[str, list[Any]]:
    head = (clinic / "labels.csv").read_text().splitlines()[0].split(",")
    table: dict[str, list[Any]] = {name: column(clinic, name) for name in head}
    table["patient"] = [int(value) for value in table["patient"]]
    table["sex"] = [value or float("nan") for value in table["sex"]]
    for name in ("effusion", "nodule"):
        table[name] = [float(value or "nan") for value in table[name]]
    return table


FORMS: dict[str, Callable[[Path], Any]] = {
    "columns": records,
    "DataFrame": lambda clinic: Frame(records(clinic)),
    "dicts": lambda clinic: [
        dict(zip(records(clinic), row, strict=True)) for row in zip(*records(clinic).values(), strict=True)
    ],
    "CSV": lambda clinic: clinic / "labels.csv",
}


@pytest.mark.parametrize("form", FORMS)
def test_a_table_gives_what_the_csv_reader_gives(form: str, clinic: Path) -> None:
    options: dict[str, Any] = {"site": "hospital", "group": "patient", "split": "fold", "attributes": ["sex"]}
    shared = {"image": "file", "root": clinic / "images", "overwrite": True, **options}
    folder = equipoise.frame(FORMS[form](clinic), clinic / "set", label="label", classes=NAMES, **shared)
    assert folder == clinic / "set"
    same(read_back(clinic), from_csv(clinic, **options))
    several = ["effusion", "nodule"]
    equipoise.frame(FORMS[form](clinic), clinic / "set", label=several, **shared)
    same(read_back(clinic), from_csv(clinic, label=None, labels=several, classes=None, **options))


@pytest.mark.parametrize("form", FORMS)
def test_empty_cells_of_a_table_are_as_the_csv_reader_has_them(form: str, clinic: Path) -> None:
    text = (clinic / "labels.csv").read_text().splitlines()
    rows = [line.split(",") for line in text]
    place = rows[0].index("nodule")
    for i in (1, 4, 5):
        rows[i][place] = "-1" if i == 5 else ""
    (clinic / "labels.csv").write_text("\n".join(map(",".join, rows)) + "\n")
    several = ["effusion", "nodule"]
    shared: dict[str, Any] = {"image": "file", "root": clinic / "images"}
    table = FORMS[form](clinic)
    equipoise.frame(table, clinic / "set", label=several, **shared)
    samples = read_back(clinic)
    assert np.flatnonzero(np.isnan(samples.labels[:, 1])).tolist() == [0, 3, 4]
    assert not np.isnan(samples.labels[:, 0]).any()


def test_a_list_may_say_that_an_image_is_not_labelled(store: Store, tmp_path: Path) -> None:
    cells = [[0, -1], [1, NONE], [None, 1], [-1, -1]]
    store([(PIXELS[i], label) for i, label in enumerate(cells)])
    wanted = np.array([[0, NONE], [1, NONE], [NONE, 1], [NONE, NONE]], np.float32)
    np.testing.assert_array_equal(read_back(tmp_path).labels, wanted)


def test_one_column_of_0_and_1_in_a_list_is_one_of_several_labels(clinic: Path) -> None:
    shared = {"image": "file", "root": clinic / "images"}
    equipoise.frame(clinic / "labels.csv", clinic / "set", label=["nodule"], attributes="sex", **shared)
    csv = from_csv(clinic, label=None, labels=["nodule"], classes=None, attributes=["sex"])
    same(read_back(clinic), csv)


def test_a_table_of_large_photographs_gives_the_same_bits(clinic: Path) -> None:
    """JPEG files are decoded at a fraction of their size, and turned as they say."""
    rng = np.random.default_rng(2)
    (clinic / "photos").mkdir()
    for i in range(COUNT):
        pixels = rng.integers(0, 256, (12, 20, 3), dtype=np.uint8)
        exif = Image.Exif()
        exif[0x0112] = 6
        picture = Image.fromarray(pixels).resize((200, 120))
        picture.save(clinic / "photos" / f"{i}.jpg", exif=exif)
    files = [f"{i}" for i in range(COUNT)]
    table = "\n".join(["file,label", *(f"{i},{NAMES[i % 3]}" for i in range(COUNT))])
    (clinic / "photos.csv").write_text(table)
    columns = {"path": files, "label": [NAMES[label] for label in LABELS]}
    equipoise.frame(columns, clinic / "set", root=clinic / "photos", image_size=SIDE)
    csv = CsvData(path="photos.csv", images="photos", label="label", image_size=SIDE)
    same(read_back(clinic), csv.load(cache=clinic / "cache", base=clinic))


def test_paths_start_from_the_working_folder_or_the_csv_file(
    clinic: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(clinic)
    paths = [Path("images") / f"{i}.png" for i in range(COUNT)]
    equipoise.frame({"path": paths, "label": LABELS}, "set")
    np.testing.assert_array_equal(read_back(clinic).images, PIXELS)
    (clinic / "images" / "labels.csv").write_bytes((clinic / "labels.csv").read_bytes())
    monkeypatch.chdir("/")
    equipoise.frame(clinic / "images" / "labels.csv", clinic / "set", image="file", overwrite=True)
    np.testing.assert_array_equal(read_back(clinic).images, PIXELS)
    absolute = {"path": [str(clinic / path) for path in paths], "label": LABELS}
    equipoise.frame(absolute, clinic / "set", overwrite=True)
    np.testing.assert_array_equal(read_back(clinic).images, PIXELS)


def test_the_files_of_a_table_may_be_in_an_archive(clinic: Path) -> None:
    with zipfile.ZipFile(clinic / "images.zip", "w") as archive:
        for i in range(COUNT):
            archive.write(clinic / "images" / f"{i}.png", f"{i}.png")
    equipoise.frame(clinic / "labels.csv", clinic / "set", image="file", root=clinic / "images.zip")
    np.testing.assert_array_equal(read_back(clinic).images, PIXELS)


# Refusals ---------------------------------------------------------------------------------------------------


def pairs(change: Any = None, label: Any = None, row: int = 4) -> list[tuple[Any, Any]]:
    """Good pairs but for one."""
    good: list[tuple[Any, Any]] = list(zip(PIXELS, LABELS, strict=True))
    good[row] = (good[row][0] if change is None else change, good[row][1] if label is None else label)
    return good


def broken(value: float) -> np.ndarray:
    pixels = np.zeros((SIDE, SIDE))
    pixels[3, 3] = value
    return pixels


class Failing(Pictures):
    def __getitem__(self, index: int) -> Any:
        if index == 3:
            raise OSError("the disk is gone")
        return super().__getitem__(index)


NONE = float("nan")
REFUSED: dict[str, tuple[Any, dict[str, Any], str]] = {
    "another size": (
        pairs(PIXELS[0][:9]),
        {},
        "row 4: .*16 x 9 pixels and the first 16 x 16: give image_size",
    ),
    "no square": ([(PIXELS[0][:9], 0)], {}, "row 0: .*16 x 9 pixels and not a square of 8 to 2048"),
    "too small": ([(PIXELS[0][:4, :4], 0)], {}, "row 0: .*4 x 4 pixels and not a square of 8 to 2048"),
    "channels first": (
        pairs(np.moveaxis(PIXELS[0], 2, 0)),
        {},
        r"row 4: the image is 3 x 16 x 16 and not \[H",
    ),
    "channels last": (pairs(torch.from_numpy(PIXELS[0])), {}, r"row 4: the image is 16 x 16 x 3 and not \[C"),
    "a batch": (pairs(PIXELS[:2]), {}, r"row 4: the image is 2 x 16 x 16 x 3 and not \[H, W, C\]"),
    "four channels": (pairs(np.zeros((16, 16, 4), np.uint8)), {}, "row 4: .*16 x 16 x 4 and not"),
    "no pixels": (pairs(np.zeros((0, 16), np.uint8)), {}, "row 4: the image is empty"),
    "a path": (pairs("a.png"), {}, "row 4: the image is a str and not a PIL image, a numpy array or"),
    "NaN": (pairs(broken(NONE)), {}, "row 4: the image holds pixels that are NaN or infinite"),
    "inf": (
        pairs(torch.tensor(broken(np.inf))),
        {},
        "row 4: the image holds pixels that are NaN or infinite",
    ),
    "negative": (pairs(broken(-0.5)), {}, "row 4: pixels go from -0.5 to 0 and not from 0 to 1"),
    "0 to 255": (pairs(broken(255.0)), {}, "row 4: pixels go from 0 to 255 and not from 0 to 1"),
    "int64": (pairs(PIXELS[0].astype(int)), {}, "row 4: the image is int64 and neither uint8 nor"),
    "PIL fractions": (pairs(Image.new("F", (16, 16))), {}, "row 4: its pixels are fractions"),
    "out of range": (
        pairs(label=3),
        {"classes": NAMES},
        "row 4: label 3 is out of range: the 3 classes are 0 to",
    ),
    "negative label": (pairs(label=-2), {}, "row 4: label -2 is out of range"),
    "a huge label": (pairs(label=10**9), {}, "row 4: label 1000000000 is out of range"),
    "minus one": (pairs(label=-1), {}, r"row 4: the label is missing \(-1\): leave the image out"),
    "NaN label": (pairs(label=NONE), {}, r"row 4: the label is missing \(nan\)"),
    "no label": ([(PIXELS[0], None)], {}, r"row 0: the label is missing \(None\)"),
    "not 0 and 1": ([(PIXELS[0], [0, 2])], {}, r"row 0: the label \[0, 2\] is no list of 0 and 1"),
    "a fraction": (pairs(label=0.5), {}, "row 4: the label 0.5 is neither the number nor the name"),
    "an object": (pairs(label={}), {}, "row 4: the label {} is neither the number nor the name"),
    "empty name": ([(PIXELS[0], " ")], {}, "row 0: the label is empty"),
    "unknown name": (
        [(PIXELS[0], "nevus"), (PIXELS[1], "melanom")],
        {"classes": NAMES},
        r"row 1: unknown label 'melanom': did you mean 'melanoma'\? valid: keratosis, melanoma, nevus",
    ),
    "mixed": (pairs(label="nevus"), {}, "row 4: the label is a name and the first is a number"),
    "short vector": (
        [(PIXELS[0], [0, 1]), (PIXELS[1], [1, 0, 0])],
        {},
        "row 1: the label has 3 values and there",
    ),
    "long vector": (
        [(PIXELS[0], [0, 1])],
        {"classes": NAMES},
        "row 0: the label has 2 values and there are 3",
    ),
    "one class": ([(pixels, 0) for pixels in PIXELS], {}, "holds only one class"),
    "few sites": (pairs(), {"sites": ["a"] * 11}, "site has 11 values for 12 images: give one per"),
    "few sites of a stream": (iter(pairs()), {"sites": ["a"] * 11}, "row 11: site has only 11 values"),
    "many sites of a stream": (iter(pairs()), {"sites": ["a"] * 13}, "site has 13 values for 12 images"),
    "empty site": (pairs(), {"sites": [""] * 12}, "row 0: site is empty"),
    "no patient": (pairs(), {"groups": [None] * 12}, "row 0: group is empty"),
    "strange site": (pairs(), {"sites": ["a\x07"] * 12}, "row 0: .* holds a control or invisible character"),
    "unknown split": (
        pairs(),
        {"splits": ["train", "tset"] * 6},
        "row 1: split 'tset' is not train, validation",
    ),
    "same id": (pairs(), {"ids": ["a", "b", "a"] * 4}, "row 2: id 'a' is also that of row 0"),
    "nothing": ([], {}, "there are no images to store"),
    "nothing comes": (iter([]), {}, "there are no images to store"),
    "triples": ([(1, 2, 3)], {}, r"row 0: it is a tuple of 3 and not a pair \(image, label\)"),
    "images alone": (PIXELS, {}, r"row 0: it is a ndarray and not a pair \(image, label\)"),
    "a dict": ({"images": PIXELS}, {}, "the dataset is of type dict: give a Dataset or"),
    "a number": (5, {}, "the dataset is of type int: give a Dataset or"),
    "a dataset that fails": (Failing(), {}, "row 3: the dataset fails: the disk is gone"),
    "one name": (pairs(), {"classes": "melanoma"}, "classes must be a list of different names"),
    "same names": (pairs(), {"classes": ["a", "a"]}, "classes must be a list of different names"),
    "tiny": (pairs(), {"image_size": 4}, "image_size is 4: give 8 to 2048 pixels"),
    "two channels": (pairs(), {"channels": 2}, "channels is 2: give 1 for grey or 3 for colour"),
    "another resize": (pairs(), {"resize": "crops"}, r"unknown resize 'crops': did you mean 'crop'\?"),
}


@pytest.mark.parametrize("what", REFUSED)
def test_what_cannot_be_stored_is_refused_in_one_sentence(what: str, tmp_path: Path) -> None:
    dataset, options, sentence = REFUSED[what]
    with pytest.raises((DataError, ConfigError), match=sentence) as refusal:
        equipoise.store(dataset, tmp_path / "set", **options)
    assert "\n" not in str(refusal.value)
    assert list(tmp_path.iterdir()) == []


def changed(name: str, value: Any) -> Callable[[dict[str, list[Any]]], Any]:
    def change(table: dict[str, list[Any]]) -> Any:
        return table | {name: [*table[name][:4], value, *table[name][5:]]}

    return change


TABLES: dict[str, tuple[Callable[[dict[str, list[Any]]], Any], dict[str, Any], str]] = {
    "no column": (lambda table: table, {"label": "lable"}, r"unknown column 'lable': did you mean 'label'\?"),
    "twice": (
        lambda table: type("T", (), {"columns": ["file", "label", "label"]})(),
        {},
        "'label' appears 2 times",
    ),
    "no file": (changed("file", "99.png"), {}, "row 4: file '99.png' is not in .*images"),
    "empty file": (changed("file", None), {}, "row 4: the file's name is empty"),
    "not an image": (changed("file", "notes.txt"), {}, "row 4: image 'notes.txt' is broken: not an image"),
    "unknown": (
        changed("label", "nevis"),
        {"classes": NAMES},
        r"row 4: unknown label 'nevis': did you mean 'nevus'",
    ),
    "no label": (changed("label", NONE), {}, "row 4: the label is missing"),
    "no zero": (
        changed("nodule", 2),
        {"label": ["effusion", "nodule"]},
        "row 4: '2' in column 'nodule' is neither 0",
    ),
    "empty site": (changed("hospital", ""), {"site": "hospital"}, "row 4: site is empty"),
    "lengths": (lambda table: table | {"label": [1]}, {}, "column 'label' has 1 values and 'file' 12"),
    "no rows": (lambda table: {"file": [], "label": []}, {}, "there are no images to store"),
    "no dicts": (
        lambda table: [{"file": "0.png", "label": 1}, {"file": "1.png"}],
        {},
        "row 1: unknown key 'label'",
    ),
    "a number": (lambda table: 5, {}, "the table is of type int: give a DataFrame"),
    "both": (lambda table: table, {"label": ["nodule"], "classes": ["nodule"]}, "remove classes"),
    "no CSV": (lambda table: "gone.csv", {}, "gone.csv cannot be read: No such file or directory"),
}


@pytest.mark.parametrize("what", TABLES)
def test_a_table_that_cannot_be_stored_is_refused_in_one_sentence(what: str, clinic: Path) -> None:
    change, options, sentence = TABLES[what]
    (clinic / "images" / "notes.txt").write_text("not a picture")
    with pytest.raises((DataError, ConfigError), match=sentence) as refusal:
        equipoise.frame(
            change(records(clinic)),
            clinic / "sets/set",
            **{"image": "file", "root": clinic / "images"} | options,
        )
    assert "\n" not in str(refusal.value)
    assert not list(clinic.rglob("images.raw"))


def test_a_bad_row_of_a_table_is_found_before_any_image_is_decoded(
    clinic: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("equipoise.data.storing.opened", lambda *given: pytest.fail("an image was decoded"))
    table = records(clinic)
    table["label"][11] = "wart"
    with pytest.raises(DataError, match="row 11: unknown label"):
        equipoise.frame(table, clinic / "set", image="file", root=clinic / "images", classes=NAMES)


# The folder -------------------------------------------------------------------------------------------------


def test_an_existing_folder_is_kept_unless_it_may_be_overwritten(tmp_path: Path) -> None:
    folder = equipoise.store(pairs(), tmp_path / "set")
    before = {path.name: path.read_bytes() for path in folder.iterdir()}
    assert set(before) == {"images.raw", "images.json", "labels.json"}
    with pytest.raises(StorageError, match=r"set exists: name another folder, or set overwrite=True"):
        equipoise.store(pairs(), folder)
    with pytest.raises(DataError, match="row 4"):
        equipoise.store(pairs(label=-1), folder, overwrite=True)
    assert {path.name: path.read_bytes() for path in folder.iterdir()} == before
    mapped = read_back(tmp_path).images
    equipoise.store([(255 - pixels, label) for pixels, label in pairs()], folder, overwrite=True)
    np.testing.assert_array_equal(mapped, PIXELS)  # whoever reads the old one goes on reading it
    np.testing.assert_array_equal(read_back(tmp_path).images, 255 - PIXELS)
    assert [path.name for path in tmp_path.iterdir()] == ["set"]


def test_a_folder_of_something_else_is_never_overwritten(tmp_path: Path) -> None:
    (tmp_path / "photos").mkdir()
    (tmp_path / "photos" / "a.txt").write_text("dear")
    with pytest.raises(StorageError, match="photos exists and is not a stored set: name another folder"):
        equipoise.store(pairs(), tmp_path / "photos", overwrite=True)
    assert (tmp_path / "photos" / "a.txt").read_text() == "dear"


def test_the_old_set_is_back_when_the_new_one_cannot_take_its_place(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = equipoise.store(pairs(), tmp_path / "set")
    rename = Path.rename

    def failing(self: Path, target: Path) -> Path:
        if self.name == "new":
            raise OSError(28, "No space left on device")
        return rename(self, target)

    monkeypatch.setattr(Path, "rename", failing)
    with pytest.raises(StorageError, match="set cannot be written: No space left on device; free disk space"):
        equipoise.store(pairs(), folder, overwrite=True)
    np.testing.assert_array_equal(read_back(tmp_path).images, PIXELS)
    assert [path.name for path in tmp_path.iterdir()] == ["set"]


def test_a_folder_that_cannot_be_made_is_one_sentence(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(StorageError, match="cannot be written"):
        equipoise.store(pairs(), tmp_path / "file" / "set")


def test_others_may_read_what_this_user_may_share(tmp_path: Path) -> None:
    """A temporary folder is for its owner only; the set is not."""
    (tmp_path / "usual").mkdir()
    usual = (tmp_path / "usual").stat().st_mode
    assert equipoise.store(pairs(), tmp_path / "set").stat().st_mode == usual


@pytest.mark.parametrize("name", ["images.raw", "images.json", "labels.json"])
def test_a_flipped_bit_is_noticed(name: str, tmp_path: Path) -> None:
    path = equipoise.store(pairs(), tmp_path / "set") / name
    before, data = path.stat(), bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(data)
    os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns + 1))
    with pytest.raises(StorageError, match="damaged or was changed: restore it from a copy, or store") as one:
        read_back(tmp_path)
    assert "\n" not in str(one.value)
    assert any(name in text for text in verify(tmp_path / "set").problems)


def test_verify_knows_a_stored_set(tmp_path: Path) -> None:
    folder = equipoise.store(pairs(), tmp_path / "set")
    assert verify(folder).problems == [] and len(verify(folder).checked) == 3
    data = bytearray((folder / "images.raw").read_bytes())
    data[7] ^= 1
    (folder / "images.raw").write_bytes(data)
    assert verify(folder).problems == [
        f"{folder / 'images.raw'} is damaged or was changed: restore it from a copy, or store the set again"
    ]


def test_labels_of_another_set_are_noticed(tmp_path: Path) -> None:
    folder = equipoise.store(pairs(), tmp_path / "set")
    other = equipoise.store([(255 - pixels, label) for pixels, label in pairs()], tmp_path / "other")
    (folder / "labels.json").write_bytes((other / "labels.json").read_bytes())
    with pytest.raises(StorageError, match=r"labels\.json does not belong to the images beside it"):
        read_back(tmp_path)


def test_what_is_no_stored_set_is_refused(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"set does not exist: correct data\.path"):
        read_back(tmp_path)
    (tmp_path / "set").mkdir()
    with pytest.raises(DataError, match=r"set is not a stored set: make one with equipoise\.store"):
        read_back(tmp_path)


@pytest.mark.parametrize("change", [{"format": 2}, {"labels": [0]}, {"labels": [9] * COUNT}, {"ids": []}])
def test_a_set_of_another_layout_is_refused(change: dict[str, Any], tmp_path: Path) -> None:
    from equipoise.keeping import write_json

    path = equipoise.store(pairs(), tmp_path / "set") / "labels.json"
    table = json.loads(path.read_text())
    del table["sha256"]
    write_json(path, table | change)
    with pytest.raises(StorageError, match=r"labels\.json is of another version"):
        read_back(tmp_path)


# Progress ---------------------------------------------------------------------------------------------------


def test_progress_counts_to_the_end(tmp_path: Path) -> None:
    seen: list[tuple[str, int, int]] = []
    many = [(PIXELS[0], i % 2) for i in range(130)]
    equipoise.store(many, tmp_path / "a", progress=lambda *report: seen.append(report))
    assert seen == [("storing images", done, 130) for done in (0, 64, 128, 130)]
    seen.clear()
    equipoise.store(iter(many), tmp_path / "b", progress=lambda *report: seen.append(report))
    assert [report[1:] for report in seen] == [(0, 0), (64, 0), (128, 0), (130, 130)]


@pytest.mark.parametrize("terminal", [True, False])
def test_a_terminal_shows_progress(terminal: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    shown = io.StringIO()
    monkeypatch.setattr(shown, "isatty", lambda: terminal)
    monkeypatch.setattr(sys, "stderr", shown)
    equipoise.store(pairs(), tmp_path / "set")
    assert shown.getvalue() == ("\rstoring images 0/12\rstoring images 12/12\n" if terminal else "")


# In use -----------------------------------------------------------------------------------------------------


def clinics(folder: Path, seed: int = 4, **options: Any) -> None:
    """Store a set with two sites and a split of its own."""
    rng = np.random.default_rng(seed)
    many = [(rng.integers(0, 256, (16, 16, 3), dtype=np.uint8), NAMES[i % 3]) for i in range(60)]
    equipoise.store(
        many,
        folder,
        sites=["north" if i % 2 else "south" for i in range(60)],
        groups=[i // 2 for i in range(60)],
        splits=[("train", "train", "train", "val", "test")[i // 6 % 5] for i in range(60)],
        **options,
    )


@pytest.fixture
def table(tmp_path: Path) -> dict[str, Any]:
    """A config of such a set."""
    clinics(tmp_path / "set")
    return {
        "data": {"kind": "stored", "path": "set"},
        "partition": {"kind": "column"},
        "train": {"rounds": 2, "batch_size": 8},
        "engine": {"device": "cpu"},
    }


def state(folder: Path) -> Any:
    return json.loads((folder / "result.json").read_text())["state_hash"]


def test_the_same_bits_serial_pool_and_resumed(
    table: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    serial = resolve(table, tmp_path)
    run(serial, tmp_path / "serial")
    pool = resolve(table | {"engine": {"device": "cpu", "kind": "pool", "workers": 2}}, tmp_path)
    run(pool, tmp_path / "pool")

    def stop(event: str, facts: dict[str, Any]) -> None:
        if event == "round" and facts["round"] == 1:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        run(serial, tmp_path / "resumed", watch=stop)
    monkeypatch.chdir("/")
    resume(tmp_path / "resumed")
    assert state(tmp_path / "serial") == state(tmp_path / "pool") == state(tmp_path / "resumed")


def test_several_labels_need_an_objective_for_them(table: dict[str, Any], tmp_path: Path) -> None:
    equipoise.store(
        [(PIXELS[i % COUNT], [i % 2, i // 2 % 2]) for i in range(60)],
        tmp_path / "set",
        overwrite=True,
        sites=["north" if i % 2 else "south" for i in range(60)],
    )
    with pytest.raises(ConfigError, match=r"train\.objective .* is for single-label data and this is multi"):
        run(resolve(table, tmp_path), tmp_path / "run")
    said = table["train"] | {"objective": "bce"}
    assert run(resolve(table | {"train": said}, tmp_path), tmp_path / "several").metrics


def test_a_run_of_the_same_images_from_a_csv_file_has_the_same_bits(clinic: Path) -> None:
    equipoise.frame(
        clinic / "labels.csv",
        clinic / "set",
        image="file",
        label="label",
        site="hospital",
        classes=NAMES,
        root=clinic / "images",
    )
    shared = {"partition": {"kind": "column"}, "train": {"rounds": 1}, "engine": {"device": "cpu"}}
    csv = {
        "kind": "csv",
        "path": "labels.csv",
        "images": "images",
        "label": "label",
        "site": "hospital",
        "classes": NAMES,
        "image_size": SIDE,
    }
    for name, data in (("stored", {"kind": "stored", "path": "set"}), ("csv", csv)):
        run(resolve(shared | {"data": data}, clinic), clinic / name)
    assert state(clinic / "stored") == state(clinic / "csv")


def test_a_run_does_not_go_on_with_another_set(table: dict[str, Any], tmp_path: Path) -> None:
    run(resolve(table, tmp_path), tmp_path / "run")
    clinics(tmp_path / "set", seed=5, overwrite=True)
    with pytest.raises(EquipoiseError, match="data"):
        resume(tmp_path / "run")


def test_compare_evaluate_and_predict(table: dict[str, Any], tmp_path: Path) -> None:
    plan = make_plan(table, ["fedavg", "local"], base=tmp_path)
    compare(plan, tmp_path / "table", processes=1)
    model = load(tmp_path / "table" / "fedavg" / "0")
    assert model.classes == tuple(sorted(NAMES)) and model.blueprint.input.image_size == 16
    rng = np.random.default_rng(9)
    new = [(rng.integers(0, 256, (24, 24, 3), dtype=np.uint8), NAMES[i % 3]) for i in range(9)]
    equipoise.store(new, tmp_path / "elsewhere")
    (tmp_path / "new.toml").write_text(f'base = "{tmp_path}"\n[data]\nkind = "stored"\npath = "elsewhere"\n')
    found = evaluate(model, tmp_path / "new.toml")
    assert found["images"] == 9 and found["data"] == "stored"
    Image.fromarray(new[0][0]).save(tmp_path / "new.png")
    (answer,) = model.predict([tmp_path / "new.png"])
    assert answer.probabilities is not None and sum(answer.probabilities) == pytest.approx(1)


def test_the_command_line_knows_a_stored_set(
    table: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    from equipoise.cli import main

    monkeypatch.chdir(tmp_path)
    (tmp_path / "mine.toml").write_text(
        '[data]\nkind = "stored"\npath = "set"\n[partition]\nkind = "column"\n[train]\nrounds = 1\n'
    )

    def ended(*words: str) -> object:
        with pytest.raises(SystemExit) as end:
            main(list(words))
        return end.value.code

    assert ended("data", "inspect", "mine.toml", "--json") == 0
    facts = json.loads(capsys.readouterr().out)
    assert re.search("north", json.dumps(facts)) and re.search("melanoma", json.dumps(facts))
    assert ended("check", "mine.toml") == 0
    assert ended("run", "mine.toml", "--out", "runs/mine", "--quiet") == 0
    assert ended("evaluate", "runs/mine", "--data", "mine.toml") == 0
    assert ended("verify", "set") == 0


def test_a_part_of_joined_data(tmp_path: Path) -> None:
    for name, kind in (("one", LABELS), ("two", LABELS), ("many", [[0, 1, 0]] * COUNT)):
        equipoise.store(zip(PIXELS, kind, strict=True), tmp_path / name, classes=NAMES)
    parts = [{"kind": "stored", "path": name, "source": name} for name in ("one", "two")]
    found = JoinedData(parts=parts, image_size=8).load(cache=tmp_path / "cache", base=tmp_path)
    assert found.labels.tolist() == LABELS * 2
    assert found.images[np.arange(2)].shape == (2, 8, 8, 3)
    parts[1] = {"kind": "stored", "path": "many", "source": "many"}
    with pytest.raises(DataError, match=r"data\.parts 'many' is multi-label data"):
        JoinedData(parts=parts, image_size=8).load(cache=tmp_path / "cache", base=tmp_path)


def test_a_part_of_joined_data_that_turns_out_to_be_multi_label(tmp_path: Path) -> None:
    np.savez(tmp_path / "set.npz", train_images=PIXELS, train_labels=np.eye(COUNT, dtype=np.uint8))
    assert NpzData(path="set.npz").load(cache=tmp_path / "cache", base=tmp_path).task == "multi"
    with pytest.raises(DataError, match=r"data\.parts 'npz' is multi-label data"):
        JoinedData(parts=[{"kind": "npz", "path": "set.npz"}]).load(cache=tmp_path / "cache", base=tmp_path)


def test_the_names_are_imported_when_they_are_used() -> None:
    code = "import sys, equipoise; sys.exit('torch' in sys.modules or 'equipoise.data' in sys.modules)"
    subprocess.run([sys.executable, "-c", code], check=True)
    assert {"store", "frame"} <= set(equipoise.__all__)
