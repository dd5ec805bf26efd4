from __future__ import annotations

import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from equipoise.data import FolderData, Samples
from equipoise.errors import DataError


def load(base: Path, path: str = "set", **options: Any) -> Samples:
    return FolderData(path=path, image_size=8, **options).load(cache=base / "cache", base=base)


def plant(root: Path, files: dict[str, bytes]) -> None:
    for name, data in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(data)


@pytest.fixture
def plain(encode: Any) -> dict[str, bytes]:
    return {
        "nv/b.jpg": encode(20, 60, 90),
        "mel/deep/er/a.JPG": encode(10, 60, 90),
        "nv/c.png": encode(30, 60, 90, form="PNG"),
        "nv/notes.txt": b"not looked at",
        ".hidden/x/d.jpg": b"not looked at",
    }


def test_one_folder_per_class(tmp_path: Path, plain: dict[str, bytes]) -> None:
    plant(tmp_path / "set", plain)
    samples = load(tmp_path)
    assert samples.classes == ("mel", "nv")
    assert samples.task == "single"
    assert samples.split is None
    assert samples.ids.tolist() == ["mel/deep/er/a.JPG", "nv/b.jpg", "nv/c.png"]
    assert samples.labels.tolist() == [0, 1, 1]
    np.testing.assert_allclose(samples.images[:, 0, 0, 0], [10, 20, 30], atol=3)


def test_folders_for_the_splits(tmp_path: Path, encode: Any) -> None:
    names = ["train/nv/a.jpg", "train/mel/b.jpg", "Val/nv/c.jpg", "test/mel/d.jpg"]
    plant(tmp_path / "set", {name: encode(1, 2, 3) for name in names})
    samples = load(tmp_path)
    assert samples.split is not None
    parts = dict(zip(samples.ids.tolist(), samples.split.tolist(), strict=True))
    assert parts == dict(zip(names, ["train", "train", "validation", "test"], strict=True))
    assert samples.classes == ("mel", "nv")


def test_a_zip_with_a_folder_around_everything(tmp_path: Path, plain: dict[str, bytes]) -> None:
    with zipfile.ZipFile(tmp_path / "set.zip", "w") as archive:
        for name, data in plain.items():
            archive.writestr(f"my set/{name}", data)
        archive.writestr("__MACOSX/my set/nv/._b.jpg", b"")
    samples = load(tmp_path, "set.zip")
    assert samples.classes == ("mel", "nv")
    assert samples.labels.tolist() == [0, 1, 1]


def test_bad_files_are_refused_or_skipped(tmp_path: Path, plain: dict[str, bytes], noise_jpeg: bytes) -> None:
    bad = {"stray.jpg": plain["nv/b.jpg"], "nevus/e.jpg": plain["nv/b.jpg"], "nv/torn.jpg": noise_jpeg[:900]}
    plant(tmp_path / "set", plain | bad)
    reasons = [
        "nevus/e.jpg: unknown label 'nevus'",
        "nv/torn.jpg: image 'nv/torn.jpg' is broken",
        "stray.jpg: lies",
    ]
    with pytest.raises(DataError, match="3 of 6 rows") as refusal:
        load(tmp_path, classes=["mel", "nv"])
    samples = load(tmp_path, classes=["mel", "nv"], bad_rows="skip")
    assert samples.labels.tolist() == [0, 1, 1]
    for listed in (str(refusal.value).splitlines()[1:], samples.skipped):
        assert [line.strip().startswith(why) for line, why in zip(listed, reasons, strict=True)] == [True] * 3


def test_nothing_to_read(tmp_path: Path) -> None:
    (tmp_path / "set").mkdir()
    with pytest.raises(DataError, match="holds no samples"):
        load(tmp_path)
    with pytest.raises(DataError, match="does not exist"):
        load(tmp_path, "elsewhere")
