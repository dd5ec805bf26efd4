"""Every published data set with every fault a download can have: one message that says where, what and what
to do."""

from __future__ import annotations

import re
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from equipoise.data import SETS, Samples
from equipoise.data.sets import check
from equipoise.errors import DataError

Make = Callable[[str], Path]
Load = Callable[..., Samples]
Pack = Callable[[Path], None]
SliceFile = Callable[..., bytes]

FIX = re.compile(
    r"take it from https|unpack |rename '|correct the path|copied whole|save it again|download it again"
    r"|correct them, or set bad_rows|valid: |did you mean"
)
"""what to do, in every form a message says it"""

IMAGES = {
    "fed-isic2019": "ISIC_2019_Training_Input/ISIC_0000000.jpg",
    "isic2019": "ISIC_2019_Training_Input/ISIC_0000001.jpg",
    "isic2019-tone": "ISIC_2019_Training_Input/ISIC_0000001.jpg",
    "ham10000": "HAM10000_images_part_2/ISIC_0029306.jpg",
    "ph2": "PH2 Dataset images/IMD003/IMD003_Dermoscopic_Image/IMD003.bmp",
    "derm7pt": "release_v0/images/NEL/Nel028.jpg",
    "rsna-ich": "stage_2_train/ID_000000002.dcm",
    "chestxray14": "images_001/images/00000001_000.png",
    "hyperkvasir": "labeled-images/lower-gi-tract/some-findings/polyps/000c.jpg",
    "matek19": "AML-Cytomorphology_LMU/NGB/NGB_0001.tiff",
    "acevedo20": "PBC_dataset_normal_DIB/ig/MMY_4.jpg",
    "bodzas23": "data/Monocyte/1.bmp",
}
"""one image of each miniature"""

TABLES = {
    "fed-isic2019": "train_test_split",
    "isic2019": "ISIC_2019_Training_GroundTruth.csv",
    "isic2019-tone": "isic_train_20-19-18-17.csv",
    "ham10000": "HAM10000_metadata",
    "ph2": "PH2_dataset.txt",
    "derm7pt": "release_v0/meta/meta.csv",
    "rsna-ich": "stage_2_train.csv",
    "chestxray14": "Data_Entry_2017.csv",
    "hyperkvasir": "5_fold_split.csv",
}
"""the sets with a table, and one of each"""

NAMES = {
    "fed-isic2019": ("train_test_split", ",SCC,", ",SSC,", "SSC"),
    "isic2019": ("ISIC_2019_Training_GroundTruth.csv", ",SCC,", ",SSC,", "SSC"),
    "isic2019-tone": ("ISIC_2019_Training_GroundTruth.csv", ",SCC,", ",SSC,", "SSC"),
    "ham10000": ("HAM10000_metadata", ",df,", ",dff,", "dff"),
    "ph2": ("PH2_dataset.txt", "                  1 ||", "                  5 ||", "'5'"),
    "derm7pt": ("release_v0/meta/meta.csv", "blue nevus", "blue naevus", "blue naevus"),
    "rsna-ich": ("stage_2_train.csv", "ID_000000001_epidural", "ID_000000001_epidurall", "epidurall"),
    "chestxray14": ("Data_Entry_2017.csv", "Mass|", "Mas|", "Mas"),
}
"""table, what it says, what it is made to say, and what of that the message names"""

FOLDERS = {
    "hyperkvasir": ("labeled-images/lower-gi-tract/some-findings/polyps", "polypps"),
    "matek19": ("AML-Cytomorphology_LMU/NGB", "NGBB"),
    "acevedo20": ("PBC_dataset_normal_DIB/monocyte", "monocytes"),
    "bodzas23": ("data/Monocyte", "Monocytes"),
}
"""folder of a class, and another name for it"""


def options(name: str) -> dict[str, Any]:
    """What makes a reader look at all its tables."""
    return {"fold": 0} if name == "hyperkvasir" else {}


def refused(load: Load, name: str, root: Path, *named: str) -> str:
    """The message: one sentence with place and fix, and rows below it only where rows are at fault."""
    with pytest.raises(DataError) as error:
        load(name, root, **options(name))
    text = str(error.value)
    first, *rows = text.split("\n")
    assert str(root) in first and FIX.search(first), text
    assert all(row.startswith("  ") for row in rows) and bool(rows) == ("rows cannot be used" in first), text
    for word in named:
        assert word in text, text
    return text


def test_every_set_is_here() -> None:
    assert set(IMAGES) == set(SETS) == set(NAMES) | set(FOLDERS)
    assert set(TABLES) == {name for name in SETS if name not in ("matek19", "acevedo20", "bodzas23")}


# Files and folders ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", SETS)
def test_no_download_at_all(name: str, load: Load, tmp_path: Path) -> None:
    refused(load, name, tmp_path / "nowhere", "does not exist")
    (tmp_path / "empty").mkdir()
    refused(load, name, tmp_path / "empty", "has no", SETS[name].facts.title)


@pytest.mark.parametrize("name", SETS)
def test_the_folder_of_images_is_missing(name: str, make: Make, load: Load) -> None:
    root = make(name)
    shutil.rmtree(root / IMAGES[name].partition("/")[0])
    refused(load, name, root, "has no", SETS[name].facts.title)


@pytest.mark.parametrize("name", TABLES)
def test_the_table_is_missing(name: str, make: Make, load: Load) -> None:
    root = make(name)
    (root / TABLES[name]).unlink()
    refused(load, name, root, f"has no file '{Path(TABLES[name]).name}'")


# Archives ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", SETS)
def test_a_truncated_archive(name: str, make: Make, load: Load, pack: Pack) -> None:
    root = make(name)
    pack(root)
    archive = root.with_name(f"{name}.zip")
    archive.write_bytes(archive.read_bytes()[:-40])
    refused(load, name, archive, "copied whole")


@pytest.mark.parametrize("name", [name for name, kind in SETS.items() if kind.parts])
def test_a_truncated_part(name: str, make: Make, load: Load, pack: Pack) -> None:
    root = make(name)
    part = next(part for part in SETS[name].parts if (root / part).is_dir())
    pack(root / part)
    archive = root / f"{part}.zip"
    archive.write_bytes(archive.read_bytes()[:-40])
    refused(load, name, root, f"{part}.zip", "copied whole")


@pytest.mark.parametrize("name", SETS)
def test_an_archive_with_a_damaged_image(name: str, make: Make, load: Load, pack: Pack) -> None:
    root = make(name)
    archive = damaged(root, IMAGES[name], pack)
    refused(load, name, archive, Path(IMAGES[name]).name, "is broken: Bad CRC-32")


@pytest.mark.parametrize("name", TABLES)
def test_an_archive_with_a_damaged_table(name: str, make: Make, load: Load, pack: Pack) -> None:
    root = make(name)
    archive = damaged(root, TABLES[name], pack)
    refused(load, name, archive, Path(TABLES[name]).name, "Bad CRC-32")


def damaged(root: Path, file: str, pack: Pack) -> Path:
    """The whole download as one zip file, with one bit of a file other than it was."""
    inside = (root / file).read_bytes()
    pack(root)
    archive = root.with_name(f"{root.name}.zip")
    data = bytearray(archive.read_bytes())
    place = bytes(data).index(inside)  # the files are stored as they are
    data[place + len(inside) // 2] ^= 1
    archive.write_bytes(data)
    return archive


# Images -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", sorted(set(TABLES)))
def test_labels_without_their_image(name: str, make: Make, load: Load) -> None:
    root = make(name)
    if name == "hyperkvasir":  # a folder without any image is another fault
        write_again(root / IMAGES[name])
    (root / IMAGES[name]).unlink()
    refused(load, name, root, Path(IMAGES[name]).stem, "is not in")


def write_again(image: Path) -> None:
    shutil.copy(image, image.with_name("ffff.jpg"))
    split = image.parents[4] / TABLES["hyperkvasir"]
    split.write_text(split.read_text() + "ffff.jpg;polyps;1\n")


@pytest.mark.parametrize("name", SETS)
@pytest.mark.parametrize("fault", ["text", "cut", "empty", "no pixels"])
def test_an_image_that_is_none(
    name: str, fault: str, make: Make, load: Load, slice_file: SliceFile, tmp_path: Path
) -> None:
    root = make(name)
    path = root / IMAGES[name]
    path.write_bytes(
        {
            "text": b"<html>404 not found</html>",
            "cut": path.read_bytes()[: len(path.read_bytes()) // 2],
            "empty": b"",
            "no pixels": slice_file(np.zeros((8, 8), np.int16), PixelData=None),
        }[fault]
    )
    refused(load, name, root, path.name, "is broken: ", *["no pixel data"] * (fault == "no pixels"))
    found = check(SETS[name](path=str(root), **options(name)), tmp_path)
    assert any(path.name in text and "is broken: " in text for text in found["problems"]), found["problems"]


def test_a_patient_is_asked_of_what_is_no_dicom_file(make: Make, load: Load) -> None:
    root = make("rsna-ich")
    (root / IMAGES["rsna-ich"]).write_bytes(b"<html>404 not found</html>" * 20)
    with pytest.raises(
        DataError, match=r"1 of 2 rows cannot be used.*\n  slice ID_000000002: .*is not a DICOM file"
    ):
        load("rsna-ich", root, patients=True)


# Names ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", NAMES)
def test_a_wrong_class_name_in_a_table(name: str, make: Make, load: Load) -> None:
    root = make(name)
    table, right, wrong, named = NAMES[name]
    path = root / table
    assert right in path.read_text()
    path.write_text(path.read_text().replace(right, wrong))
    refused(load, name, root, path.name, named)


@pytest.mark.parametrize("name", FOLDERS)
def test_a_wrong_class_name_of_a_folder(name: str, make: Make, load: Load) -> None:
    root = make(name)
    folder, other = FOLDERS[name]
    (root / folder).rename((root / folder).with_name(other))
    refused(load, name, root, f"has no folder '{Path(folder).name}'", f"rename '{other}'")


# Tables -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", TABLES)
def test_a_table_that_is_empty_or_not_text(name: str, make: Make, load: Load) -> None:
    root = make(name)
    path = root / TABLES[name]
    text = path.read_text()
    path.write_bytes(b"")
    refused(load, name, root, path.name)
    path.write_bytes(text.encode("utf-16"))
    refused(load, name, root, path.name)


@pytest.mark.parametrize("name", sorted(set(TABLES) - {"ph2"}))
def test_a_table_cut_in_the_middle_of_a_row(name: str, make: Make, load: Load) -> None:
    root = make(name)
    path = root / TABLES[name]
    *rest, last = path.read_text().splitlines()
    path.write_text("\n".join([*rest, last[:3]]))
    refused(load, name, root, path.name, "fields where the header has")
