"""Files that are read back: what was written comes out, and no changed bit of them does."""

from __future__ import annotations

import errno
import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from equipoise.errors import StorageError
from equipoise.exchange import seal, unseal
from equipoise.exchange.codec import CodecError
from equipoise.keeping import (
    DIGEST,
    FIRST,
    append_line,
    bare,
    put,
    read_json,
    read_lines,
    read_text,
    sealed,
    write_json,
    write_text,
)

TABLE = {"name": "ä", "numbers": [1, 2.5, None], "deep": {"yes": True}}
ROWS: list[dict[str, Any]] = [
    {"round": 1, "loss": 0.5},
    {"round": 2, "loss": float("nan")},
    {"round": 3, "site": "a-b"},
]


def flips(data: bytes) -> Iterator[bytes]:
    """The bytes with one bit changed, for every bit."""
    for place in range(len(data)):
        for bit in range(8):
            changed = bytearray(data)
            changed[place] ^= 1 << bit
            yield bytes(changed)


# JSON tables ------------------------------------------------------------------------------------------------


def test_a_table_comes_back_without_its_digest(tmp_path: Path) -> None:
    path = tmp_path / "x.json"
    write_json(path, TABLE)
    assert read_json(path, "") == TABLE
    assert json.loads(path.read_bytes()).keys() == {*TABLE, DIGEST}
    write_json(path, {"keys": {2: "b", 10: "a"}, "pair": (1, 2)})  # what JSON has in another form
    assert read_json(path, "") == {"keys": {"2": "b", "10": "a"}, "pair": [1, 2]}


def test_every_changed_bit_of_a_table_is_noticed_or_means_the_same(tmp_path: Path) -> None:
    path = tmp_path / "x.json"
    write_json(path, TABLE)
    noticed = 0
    for changed in flips(path.read_bytes()):
        path.write_bytes(changed)
        try:
            assert read_json(path, "do this") == TABLE
        except StorageError:
            noticed += 1
    assert noticed > 0.95 * 8 * path.stat().st_size


@pytest.mark.parametrize(
    "text", ["", "[1]", "{}", "null", "[" * 10**5, json.dumps(TABLE), json.dumps({DIGEST: None})]
)
def test_what_has_no_digest_is_refused(text: str, tmp_path: Path) -> None:
    path = tmp_path / "x.json"
    path.write_text(text)
    with pytest.raises(
        StorageError, match=r"x\.json is damaged or was changed(, or an older version wrote it)?: do this"
    ):
        read_json(path, "do this")


def test_a_missing_file_is_for_the_caller_to_judge(tmp_path: Path) -> None:
    for read in (read_json, read_text):
        with pytest.raises(FileNotFoundError):
            read(tmp_path / "none", "")


# Text -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("name", "comment"), [("c.toml", "# sha256: "), ("p.html", "<!-- sha256: ")])
@pytest.mark.parametrize("text", ["", "a = 1\n", "a = 1\n\nß = '2'\n"])
def test_text_comes_back_and_no_changed_bit_does(name: str, comment: str, text: str, tmp_path: Path) -> None:
    path = tmp_path / name
    write_text(path, text)
    assert read_text(path, "") == (text or "\n")
    assert path.read_text().splitlines()[-1].startswith(comment)
    for changed in flips(path.read_bytes()):
        path.write_bytes(changed)
        with pytest.raises(
            StorageError, match=r"is damaged or was changed(, or an older version wrote it)?: undo"
        ):
            read_text(path, "undo")


# JSON lines -------------------------------------------------------------------------------------------------


def fill(path: Path) -> list[dict[str, Any]]:
    for row in ROWS:
        append_line(path, row)
    return read_lines(path)[0]


def test_lines_come_back_in_a_chain(tmp_path: Path) -> None:
    path = tmp_path / "x.jsonl"
    lines = fill(path)
    assert [repr(bare(line)) for line in lines] == [
        repr(row) for row in ROWS
    ]  # NaN is no number that equals itself
    assert [line["prev"] for line in lines] == [FIRST, lines[0]["hash"], lines[1]["hash"]]
    assert append_line(path, {"round": 4}) == read_lines(path)[0][-1]["hash"]


def test_every_changed_bit_of_a_line_is_noticed_or_means_the_same(tmp_path: Path) -> None:
    path = tmp_path / "x.jsonl"
    lines = [repr(line) for line in fill(path)]
    noticed = 0
    for changed in flips(path.read_bytes()):
        path.write_bytes(changed)
        try:
            assert [repr(line) for line in read_lines(path)[0]] == lines
        except StorageError:
            noticed += 1
    assert noticed > 0.95 * 8 * path.stat().st_size


def test_a_lost_line_is_noticed(tmp_path: Path) -> None:
    path = tmp_path / "x.jsonl"
    fill(path)
    first, second, third = path.read_bytes().splitlines(keepends=True)
    for rest in (second + third, first + third, third, first + third + second):
        path.write_bytes(rest)
        with pytest.raises(
            StorageError, match=r"line \d was changed or is damaged, or one before it is gone"
        ):
            read_lines(path)


@pytest.mark.parametrize("cut", [1, 2, 30, 400])
def test_what_a_crash_left_of_a_line_is_dropped(cut: int, tmp_path: Path) -> None:
    path = tmp_path / "x.jsonl"
    fill(path)
    append_line(path, {"long": "x" * 300})
    path.write_bytes(path.read_bytes()[:-cut])
    assert len(read_lines(path)[0]) == 3
    append_line(path, {"round": 4})
    assert [bare(line) for line in read_lines(path)[0][-1:]] == [{"round": 4}]
    assert len(read_lines(path)[0]) == 4


def test_lines_longer_than_a_block_are_found_from_the_end(tmp_path: Path) -> None:
    path = tmp_path / "x.jsonl"
    for number in range(3):
        append_line(path, {"number": number, "long": "x" * 200_000})
    assert [line["number"] for line in read_lines(path)[0]] == [0, 1, 2]


def test_nothing_is_added_to_a_damaged_line(tmp_path: Path) -> None:
    path = tmp_path / "x.jsonl"
    fill(path)
    path.write_bytes(path.read_bytes().replace(b'"round": 3', b'"round": 4'))
    with pytest.raises(StorageError, match="is damaged or was changed"):
        append_line(path, {"round": 4})


# Files of tensors -------------------------------------------------------------------------------------------


def test_every_changed_bit_of_a_sealed_file_is_noticed_or_means_the_same() -> None:
    header, tensors = {"round": 3, "note": "ü"}, {"a/b": torch.tensor([1.0, 2.0]), "n": torch.tensor(7)}
    whole = seal(header, tensors)
    assert unseal(whole)[0] == header
    noticed = 0
    for changed in flips(bytes(whole)):
        try:
            found, flat = unseal(changed)
        except CodecError:
            noticed += 1
            continue
        assert found == header and flat.keys() == tensors.keys()
        assert all(
            torch.equal(flat[name], tensors[name]) and flat[name].dtype == tensors[name].dtype
            for name in tensors
        )
    assert noticed > 0.95 * 8 * len(whole)


# Writing ----------------------------------------------------------------------------------------------------


def test_a_failed_write_leaves_the_old_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "x.json"
    write_json(path, TABLE)

    def full(fd: int) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(StorageError, match="cannot be written: No space left on device"):
        write_json(path, {"other": 1})
    with pytest.raises(OSError, match="No space left"):
        put(path, b"x")
    with pytest.raises(StorageError, match="cannot be written: No space left on device"):
        append_line(tmp_path / "x.jsonl", {}, sync=True)
    assert read_json(path, "") == TABLE
    assert sealed(TABLE)[DIGEST] == json.loads(path.read_bytes())[DIGEST]
