"""Folders and zip files as sources of images: what would fill memory, is damaged or locked is refused with a
sentence."""

from __future__ import annotations

import zipfile
from pathlib import Path

import pytest

from equipoise.data.files import LARGEST, PLAUSIBLE, open_files
from equipoise.errors import DataError


def test_an_entry_that_unpacks_out_of_all_proportion_is_refused(tmp_path: Path) -> None:
    with zipfile.ZipFile(tmp_path / "set.zip", "w", zipfile.ZIP_DEFLATED, compresslevel=1) as archive:
        archive.writestr("one.png", bytes(2 * PLAUSIBLE))
    with open_files(tmp_path / "set.zip") as files, pytest.raises(DataError, match="which no images do"):
        files.read("one.png")


def test_a_file_too_large_for_one_image_is_not_read(tmp_path: Path) -> None:
    with open(tmp_path / "one.png", "wb") as file:
        file.truncate(LARGEST + 1)  # a hole: no byte is written
    with open_files(tmp_path) as files, pytest.raises(ValueError, match="save it smaller"):
        files.read("one.png")


def test_a_damaged_entry_is_named(tmp_path: Path) -> None:
    path = tmp_path / "set.zip"
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("one.png", b"some bytes of an image")
    path.write_bytes(path.read_bytes().replace(b"some bytes", b"other byte"))
    with pytest.raises(DataError, match="is damaged"), open_files(path) as files:
        files.read("one.png")


def test_an_archive_with_a_password_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "set.zip"
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("one.png", b"some bytes")
    data = bytearray(path.read_bytes())
    data[data.index(b"PK\x01\x02") + 8] |= 1  # the flag of encryption, in the archive's directory
    path.write_bytes(data)
    with pytest.raises(DataError, match="password"), open_files(path):
        pass
