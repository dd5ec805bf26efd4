"""The journal: a chain that shows every change, and recovers from a line cut short."""

from __future__ import annotations

import json
import resource
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from equipoise.errors import StorageError
from equipoise.server import Journal
from equipoise.server.journal import FIRST, line_hash, read


@pytest.fixture
def path(tmp_path: Path) -> Path:
    journal = Journal(tmp_path / "journal.jsonl")
    for n in range(4):
        journal.write("committed", round=n, note="ä\nb")
    journal.close()
    return tmp_path / "journal.jsonl"


def test_lines_are_chained(path: Path) -> None:
    lines, size = read(path)
    assert size == path.stat().st_size
    assert [line["round"] for line in lines] == [0, 1, 2, 3]
    assert [line["seq"] for line in lines] == [0, 1, 2, 3]
    assert [line["prev"] for line in lines] == [FIRST, *(line["hash"] for line in lines[:-1])]
    assert all(line["hash"] == line_hash(line) for line in lines)


def test_times_can_be_read(path: Path) -> None:
    times = [datetime.fromisoformat(line["time"]) for line in read(path)[0]]
    assert times == sorted(times) and all(time.utcoffset() == timedelta(0) for time in times)
    assert abs(datetime.now(UTC) - times[-1]) < timedelta(minutes=1)


def test_opening_again_goes_on_with_the_chain(path: Path) -> None:
    journal = Journal(path)
    journal.write("resumed")
    journal.close()
    lines, _ = read(path)
    assert [line["seq"] for line in lines] == [0, 1, 2, 3, 4]
    assert lines[4]["prev"] == lines[3]["hash"]


def test_no_file_is_an_empty_journal(tmp_path: Path) -> None:
    assert read(tmp_path / "none") == ([], 0)


def tampered(lines: list[str], how: str) -> list[str]:
    if how == "changed":
        return [lines[0], lines[1].replace('"round": 1', '"round": 9'), *lines[2:]]
    if how == "removed":
        return [lines[0], *lines[2:]]
    if how == "first removed":
        return lines[1:]
    if how == "swapped":
        return [lines[0], lines[2], lines[1], lines[3]]
    if how == "repeated":
        return [lines[0], lines[0], *lines[1:]]
    if how == "no json":
        return [lines[0], "hello\n", *lines[2:]]
    if how == "no table":
        return [lines[0], "[1]\n", *lines[2:]]
    line = json.loads(lines[1]) | {"round": 9}
    line["hash"] = line_hash(line)
    return [lines[0], json.dumps(line) + "\n", *lines[2:]]


@pytest.mark.parametrize(
    ("how", "number"),
    [
        ("changed", 2),
        ("removed", 2),
        ("first removed", 1),
        ("swapped", 2),
        ("repeated", 2),
        ("no json", 2),
        ("no table", 2),
        ("changed with its hash", 3),
    ],
)
def test_tampering_is_found_at_its_line(how: str, number: int, path: Path) -> None:
    lines = path.read_text().splitlines(keepends=True)
    path.write_text("".join(tampered(lines, how)))
    for opening in (read, Journal):
        with pytest.raises(StorageError, match=f"line {number} was changed or is damaged"):
            opening(path)


@pytest.mark.parametrize("cut", [1, 5, 100])
def test_a_line_cut_short_is_dropped_and_said_so(cut: int, path: Path) -> None:
    whole = path.read_bytes()
    last = len(whole.splitlines(keepends=True)[-1])
    path.write_bytes(whole[:-cut])
    assert len(read(path)[0]) == 3
    journal = Journal(path)
    journal.write("resumed")
    journal.close()
    lines, _ = read(path)
    assert [line["event"] for line in lines[3:]] == ["recovered", "resumed"]
    assert lines[3]["bytes_dropped"] == last - cut


@contextmanager
def file_size_limit(size: int) -> Iterator[None]:
    """No file may grow beyond `size` bytes: a disk that fills up in the middle of a write."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


def test_a_disk_that_fills_up_in_a_line_is_told_and_recovered_from(path: Path) -> None:
    journal = Journal(path)
    with file_size_limit(path.stat().st_size + 50):
        with pytest.raises(
            StorageError, match=r"cannot be written: .*; free disk space, then continue the run"
        ):
            journal.write("committed", round=4)
        journal.close()  # what the disk does not take must not hide the first error
    assert len(read(path)[0]) == 4
    again = Journal(path)
    again.write("resumed")
    again.close()
    assert [line["event"] for line in read(path)[0][4:]] == ["recovered", "resumed"]


def test_a_journal_that_cannot_be_opened_is_told(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(StorageError, match=r"the journal .* cannot be written"):
        Journal(tmp_path / "file" / "journal.jsonl")


def test_one_process_at_a_time_writes(tmp_path: Path) -> None:
    journal = Journal(tmp_path / "journal.jsonl")
    with pytest.raises(
        StorageError, match="is in use by another process: wait until that one ends, or choose another folder"
    ):
        Journal(tmp_path / "journal.jsonl")
    journal.write("still whole")
    journal.close()
    Journal(tmp_path / "journal.jsonl").close()
    assert [line["event"] for line in read(tmp_path / "journal.jsonl")[0]] == ["still whole"]
