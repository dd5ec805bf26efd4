"""Data that can be read and may be wrong: every warning names rows and the fix, and sound data has none."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from equipoise.data import CsvData, FolderData, PhantomData, Samples
from equipoise.data.pixels import survey
from equipoise.data.sets.chestxray14 import ChestXray14
from equipoise.data.sets.hyperkvasir import HyperKvasir
from equipoise.data.sets.matek19 import Matek19
from equipoise.data.warn import MISSING, alike, warnings_of


def made(labels: list[str], site: list[str] | None = None, group: list[str] | None = None) -> Samples:
    """Different visible images with these columns."""
    classes = tuple(sorted(set(labels)))
    images = np.random.default_rng(0).integers(0, 256, (len(labels), 8, 8, 3), dtype=np.uint8)
    return Samples(
        images=images,
        labels=np.array([classes.index(label) for label in labels]),
        classes=classes,
        task="single",
        ids=np.array([f"{i}.png" for i in range(len(labels))]),
        fingerprint="",
        site=None if site is None else np.array(site),
        group=None if group is None else np.array(group),
    )


def warnings(samples: Samples, declared: bool = False, **splits: Any) -> list[str]:
    rows = np.arange(len(samples))
    parts = {"train": rows, "validation": rows, "test": rows} | splits
    return warnings_of(samples, parts, survey(samples), declared)


def test_sound_data_has_none() -> None:
    assert (
        warnings(made(["mel", "nv", "bcc", "scc"] * 5, ["north", "south"] * 10, [str(i) for i in range(20)]))
        == []
    )


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("MEL", "mel"), ("Mel ", "Mel"), ("basal cell", "basal_cell"), ("basal-cell", "BasalCell"),
        ("mell", "mel"), ("nevus", "naevus"), ("melanoma", "melonoma"), ("mle", "mel"),
        ("squamous cell", "squamus cell"),
    ],
)  # fmt: skip
def test_names_that_are_nearly_the_same(one: str, other: str) -> None:
    assert alike(one, other) is not None
    (found,) = warnings(made([one, *[other] * 5]))
    assert found.startswith(f"class '{one}' (1 row: '0.png') and class '{other}' (5 rows: '1.png', ")
    assert found.endswith(": write them the same way, or list all in data.classes if they are right")
    assert warnings(made([one, *[other] * 5]), declared=True) == []
    (found,) = warnings(made(["a", "b"] * 3, [one, *[other] * 5]))
    assert found.startswith(f"site '{one}' (1 row: '0.png')") and found.endswith("write them the same way")


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("bcc", "scc"), ("grade 1", "grade 2"), ("T1", "T2"), ("typical", "atypical"), ("site a", "site b"),
        ("north", "south"), ("oesophagitis-a", "oesophagitis-b-d"), ("MOB", "MON"), ("male", "female"),
        ("hyperthyroid", "hypothyroid"), ("-", "?"),
    ],
)  # fmt: skip
def test_names_that_merely_look_alike(one: str, other: str) -> None:
    assert alike(one, other) is None


@pytest.mark.parametrize("kind", [HyperKvasir, Matek19, ChestXray14])
def test_classes_of_published_sets_are_not_mistaken(kind: Any) -> None:
    classes = kind(path="x").classes
    assert [(a, b) for a in classes for b in classes if a != b and alike(a, b)] == []


@pytest.mark.parametrize("word", ["NaN", "N/A", "none", "Unknown", "?", "NULL", "Not  available"])
def test_words_for_missing(word: str) -> None:
    (found,) = warnings(made(["mel", word, "nv", word]))
    assert found == (
        f"class '{word}' (2 rows: '1.png', '3.png') is a word for a missing value: fill it in, or remove the "
        "rows, or list all in data.classes if they are right"
    )
    (found,) = warnings(made(["mel", "nv"], ["north", word]))
    assert found.startswith(f"site '{word}' (1 row: '1.png') is a word for a missing value")
    (found,) = warnings(made(["mel", "nv"] * 2, group=["p", word, word, word]))
    assert found.startswith(f"patient or group '{word}' (3 rows: '1.png', '2.png', '3.png') is a word for")
    assert all(word == word.lower() for word in MISSING)


def test_patients_at_two_sites() -> None:
    labels, site = ["mel", "nv"] * 3, ["north", "south", "south", "north", "north", "south"]
    (found,) = warnings(made(labels, site, ["p1", "p1", "p2", "p3", "", ""]))
    assert found.startswith("1 patient or group is at several sites ('p1' at north, south): if they are diff")
    (found,) = warnings(made(["mel", "nv"] * 5, ["north", "south"] * 5, [f"p{i // 2}" for i in range(10)]))
    assert "5 patients or groups are at several sites ('p0' at north, south; " in found
    assert "; and 2 more)" in found
    assert warnings(made(labels, group=["p1"] * 6)) == []


def test_classes_absent_from_a_split() -> None:
    data = made(["mel", "nv", "df", "nv"])
    (found,) = warnings(data, test=np.array([0, 1, 3]))
    assert found == (
        "no image for test is of class 'df' (1 row: '2.png'), so nothing will be known of them: add images, "
        "or change data.split"
    )
    (found,) = warnings(data, train=np.array([1]))
    assert (
        "no image for train is of class 'df' (1 row: '2.png'), 'mel' (1 row: '0.png'), so they cannot"
        in found
    )
    (found,) = warnings(data, validation=np.array([0, 1]))
    assert found.startswith("no image for validation is of class 'df' (1 row: '2.png'): add images")
    assert warnings(data, validation=np.array([], int)) == []


def test_a_class_without_any_image(tmp_path: Path) -> None:
    data = made(["mel", "nv"])
    both = Samples(data.images, data.labels, ("mel", "nv", "vasc"), "single", data.ids, "")
    (found,) = warnings(both, declared=True)
    assert found == "class 'vasc' has no image at all: add some, or remove it from data.classes"


def test_the_same_picture_under_different_labels() -> None:
    data = made(["mel", "nv", "mel", "nv", "mel"])
    data.images[3] = data.images[0]
    data.images[4] = data.images[2]  # the same label: nothing to say
    (found,) = warnings(data)
    assert found == (
        "the same picture stands under different labels: '0.png' (mel) and '3.png' (nv): correct the labels, "
        "or remove the rows"
    )


def test_several_findings() -> None:
    data = made(["a"] * 4)
    labels = np.array([[1, 0], [1, 1], [0, 0], [0, 1]], np.float32)
    several = Samples(data.images, labels, ("Mass", "Edema"), "multi", data.ids, "")
    assert warnings(several, declared=True) == []
    several.images[2] = several.images[1]
    (found,) = warnings(several, declared=True, test=np.array([0, 1, 3]))
    assert "'1.png' (Mass, Edema) and '2.png' (none)" in found
    (found,) = warnings(made_multi_names(several))
    assert "class 'mass' " in found


def made_multi_names(data: Samples) -> Samples:
    images = np.random.default_rng(1).integers(0, 256, data.images.shape, dtype=np.uint8)
    return Samples(images, data.labels, ("Mass", "mass"), "multi", data.ids, "")


def test_images_that_show_hardly_anything() -> None:
    data = made(["mel", "nv", "mel", "nv"])
    data.images[1] //= 4
    data.images[2] = 200
    dark, flat = warnings(data)
    assert dark.startswith("1 of 4 images have no pixel brighter than 63 of 255 (1 row: '1.png'): see them")
    assert flat.startswith("1 of 4 images have fewer than 8 levels of 256 between darkest and brightest")
    assert "(1 row: '2.png')" in flat and flat.endswith(
        "set data.bits or data.window if they were read wrongly"
    )


def test_who_has_declared_the_classes() -> None:
    assert PhantomData().declared and Matek19(path="x").declared
    assert CsvData(path="x", labels=("a", "b")).declared
    assert CsvData(path="x", label="y", classes=("a", "b")).declared
    assert not CsvData(path="x", label="y").declared
    assert not FolderData(path="x").declared and FolderData(path="x", classes=("a", "b")).declared


def test_the_same_file_twice_in_a_table(tmp_path: Path) -> None:
    for i in range(4):
        Image.effect_noise((16, 16), 80 + i).save(tmp_path / f"{i}.png")
    (tmp_path / "copy.png").write_bytes((tmp_path / "0.png").read_bytes())
    (tmp_path / "rows.csv").write_text("file,label\n0.png,mel\n1.png,nv\n2.png,mel\n3.png,nv\ncopy.png,nv\n")
    options = CsvData(path="rows.csv", label="label", image_size=8)
    (found,) = warnings(options.load(cache=tmp_path / "cache", base=tmp_path))
    assert "'0.png' (mel) and 'copy.png' (nv)" in found
