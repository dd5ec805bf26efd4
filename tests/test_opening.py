"""Files are opened without waiting, and only regular ones of a size that can be right."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from equipoise.opening import open_regular, read_regular, read_text


def test_a_regular_file_is_read(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_bytes("é\n".encode())
    assert read_regular(path, 3) == "é\n".encode() and read_text(path) == "é\n"
    with open_regular(path, 3) as file:
        assert file.read(1) == b"\xc3"


def test_anything_else_is_not(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "fifo")
    (tmp_path / "link").symlink_to(tmp_path / "fifo")
    for path in (tmp_path / "fifo", tmp_path / "link", Path("/dev/zero")):
        with pytest.raises(OSError, match="not a regular file"):
            read_regular(path)
    with pytest.raises(IsADirectoryError):
        read_regular(tmp_path)
    with pytest.raises(FileNotFoundError):
        read_regular(tmp_path / "none")


def test_a_file_that_is_too_large_is_not(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_bytes(b"12345")
    with pytest.raises(OSError, match="larger than 4 bytes"):
        open_regular(path, 4)
    with open(tmp_path / "sparse", "wb") as file:
        file.truncate(2**40)
    with pytest.raises(OSError, match="larger than"):
        read_regular(tmp_path / "sparse")


def test_a_file_that_grows_while_it_is_read_is_cut_off(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "file"
    path.write_bytes(b"123")
    real = os.fstat

    def slow(number: int) -> os.stat_result:
        found = real(number)
        path.write_bytes(b"123456")
        return found

    monkeypatch.setattr(os, "fstat", slow)
    with pytest.raises(OSError, match="larger than 4 bytes"):
        read_regular(path, 4)


def test_nothing_stays_open_after_a_refusal(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "fifo")
    before = len(os.listdir("/proc/self/fd")) if Path("/proc/self/fd").is_dir() else 0
    for _ in range(5):
        with pytest.raises(OSError, match="not a regular file"):
            read_regular(tmp_path / "fifo")
    assert (len(os.listdir("/proc/self/fd")) if before else 0) == before
