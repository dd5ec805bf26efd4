"""Files that are read back: each is written in one step and holds a digest, which is checked at every
reading.

| file | where its digest is | written with | read with |
|---|---|---|---|
| a JSON table | its key `sha256`, over all other keys | `write_json` | `read_json` |
| text with comments (TOML, HTML, Markdown) | its last line | `write_text` | `read_text` |
| JSON lines | `hash` of every line, over the line and the hash before it | `append_line` | `read_lines` |

Files of tensors hold theirs in the header: `exchange.codec.seal` and `site.store`.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, BinaryIO

from equipoise.errors import StorageError
from equipoise.opening import read_regular

DIGEST = "sha256"
LARGEST = 2**30
"""bytes of the largest file that is read whole"""
OLDER = ", or an older version wrote it"
FIRST = "0" * 64
"""what the first of several chained lines holds in place of the hash of the one before"""
CHAIN = ("prev", "hash")
LAST_LINE = re.compile(rb"(?:# |<!-- )sha256: ([0-9a-f]{64})(?: -->)?\n")
HASH = re.compile(r"[0-9a-f]{64}")
TAIL = 2**16
"""bytes at the end of a file in which its last line is looked for first"""


def sha256(data: bytes) -> str:
    """The digest of some bytes."""
    return hashlib.sha256(data).hexdigest()


def put(
    path: Path,
    data: bytes | Iterable[bytes | memoryview],
    recycle: Path | None = None,
    sync: bool = True,
    writer: str = "",
) -> None:
    """tmp → fsync → rename; data may come in pieces.

    An old file given to `recycle` is written over and renamed: its place on disk is there already. `writer`
    tells several processes apart that may write the same file at the same time.
    """
    part = path.with_name(f"{path.name}{writer}.part")
    if recycle is not None:
        os.replace(recycle, part)
    with open(part, "wb" if recycle is None else "r+b") as file:
        for piece in [data] if isinstance(data, bytes | bytearray) else data:
            file.write(piece)
        file.truncate()
        if sync:
            file.flush()
            os.fsync(file.fileno())
    os.replace(part, path)


def _unwritable(path: Path, error: OSError) -> StorageError:
    return StorageError(f"{path} cannot be written: {error.strerror}; free disk space, then continue the run")


def write_atomic(path: Path, data: bytes, recycle: Path | None = None) -> None:
    """`put`, with a failure told in one sentence."""
    try:
        put(path, data, recycle)
    except OSError as error:
        raise _unwritable(path, error) from error


# JSON tables ------------------------------------------------------------------------------------------------


def table_digest(table: Mapping[str, Any]) -> str:
    """The digest of a table as it is read from JSON, without the key that holds it."""
    rest = {key: value for key, value in table.items() if key != DIGEST}
    return sha256(json.dumps(rest, sort_keys=True).encode())


def sealed(table: Mapping[str, Any]) -> dict[str, Any]:
    """A table as JSON has it, with its digest."""
    plain = json.loads(json.dumps(table))
    return {**plain, DIGEST: table_digest(plain)}


def write_json(path: Path, table: Mapping[str, Any]) -> None:
    """Write a table with its digest."""
    write_atomic(path, json.dumps(sealed(table), indent=1).encode() + b"\n")


def read_json(path: Path, fix: str) -> dict[str, Any]:
    """The table in a file, without its digest; `fix` says what to do where it is not as it was written.

    A file that is not there is a FileNotFoundError.
    """
    try:
        table = json.loads(read_regular(path, LARGEST))
    except FileNotFoundError:
        raise
    except (OSError, ValueError, RecursionError):
        raise _damaged(path, fix) from None
    if not isinstance(table, dict) or DIGEST not in table:
        raise _damaged(path, fix, OLDER)
    if table.pop(DIGEST) != table_digest(table):
        raise _damaged(path, fix)
    return table


def _damaged(path: Path, fix: str, more: str = "") -> StorageError:
    return StorageError(f"{path} is damaged or was changed{more}: {fix}")


# Text with comments -----------------------------------------------------------------------------------------


def write_text(path: Path, text: str) -> None:
    """Write a text with its digest in a comment at its end."""
    data = text.encode()
    data += b"" if data.endswith(b"\n") else b"\n"
    comment = "# {}\n" if path.suffix == ".toml" else "<!-- {} -->\n"
    write_atomic(path, data + comment.format(f"{DIGEST}: {sha256(data)}").encode())


def read_text(path: Path, fix: str) -> str:
    """The text in a file, without its last line; a file that is not there is a FileNotFoundError."""
    try:
        data = read_regular(path, LARGEST)
    except FileNotFoundError:
        raise
    except OSError:
        raise _damaged(path, fix) from None
    place = data.rfind(b"\n", 0, -1) + 1
    match = LAST_LINE.fullmatch(data, place)
    if match is None:
        raise _damaged(path, fix, OLDER)
    if match[1].decode() != sha256(data[:place]):
        raise _damaged(path, fix)
    return data[:place].decode()


# JSON lines -------------------------------------------------------------------------------------------------


def line_hash(line: Mapping[str, Any]) -> str:
    """The hash of a line without its own hash."""
    rest = {key: value for key, value in line.items() if key != "hash"}
    return sha256(json.dumps(rest, sort_keys=True).encode())


def as_hash(value: Any) -> str | None:
    """What somebody says is the hash of a line, if it can be one."""
    return value if isinstance(value, str) and HASH.fullmatch(value) else None


def chained(row: Mapping[str, Any], prev: str) -> dict[str, Any]:
    """A row as a line that follows the one with the hash `prev`."""
    line = json.loads(json.dumps({**row, "prev": prev}))
    return {**line, "hash": line_hash(line)}


def as_bytes(line: Mapping[str, Any]) -> bytes:
    """A line as it is written."""
    return json.dumps(line).encode() + b"\n"


def bare(line: Mapping[str, Any]) -> dict[str, Any]:
    """A line without its place in the chain."""
    return {key: value for key, value in line.items() if key not in CHAIN}


def read_lines(path: Path) -> tuple[list[dict[str, Any]], int]:
    """All whole lines of a file and how many bytes they take; `StorageError` where the chain is broken.

    A last line without its end was cut short by a crash, or is being written: it is left out.
    """
    lines: list[dict[str, Any]] = []
    last, size = FIRST, 0
    if not path.exists():
        return lines, size
    *whole, rest = read_regular(path, LARGEST).split(b"\n")
    for number, raw in enumerate(whole, 1):
        line = _line(raw)
        if line is None or line["prev"] != last:
            raise StorageError(
                f"{path}: line {number} was changed or is damaged, or one before it is gone; it cannot be "
                f"trusted from there on"
            )
        last, size = line["hash"], size + len(raw) + 1
        lines.append(line)
    _check_rest(path, rest)
    return lines, size


def _check_rest(path: Path, rest: bytes) -> None:
    """A crash leaves less than a line; a whole line with something else at its end was changed."""
    if _line(rest[:-1]) is not None:
        raise StorageError(f"{path}: the end of the last line was changed or is damaged; restore it")


def _line(raw: bytes) -> dict[str, Any] | None:
    """One line of a chain, or None when it has not the hash it should."""
    try:
        line = json.loads(raw)
        return line if isinstance(line["prev"], str) and line["hash"] == line_hash(line) else None
    except (ValueError, KeyError, TypeError, RecursionError):
        return None


def append_line(path: Path, row: Mapping[str, Any], sync: bool = False) -> str:
    """Add a row to a file; the hash of its line. What a crash left of a line is dropped."""
    try:
        with open(path, "r+b" if path.exists() else "w+b") as file:
            raw, rest = _tail(file)
            _check_rest(path, rest)
            before = _line(raw) if raw else {"hash": FIRST}
            if before is None:
                raise _damaged(path, "restore it, or start the run anew")
            line = chained(row, before["hash"])
            file.seek(-len(rest), os.SEEK_END)
            file.truncate()
            file.write(as_bytes(line))
            if sync:
                file.flush()
                os.fsync(file.fileno())
    except OSError as error:
        raise _unwritable(path, error) from error
    result: str = line["hash"]
    return result


def _tail(file: BinaryIO) -> tuple[bytes, bytes]:
    """The last whole line of a file, and what comes after it."""
    size, wanted = file.seek(0, os.SEEK_END), TAIL
    while True:
        start = file.seek(max(0, size - wanted))
        *whole, rest = file.read().split(b"\n")
        if len(whole) > 1 or not start:
            return whole[-1] if whole else b"", rest
        wanted *= 4
