"""The journal: what happened, in order, one JSON line each, every line holding the hash of the one before.

A line that was changed or removed later breaks the chain. A line cut short by a crash is dropped when the journal is opened
again, and said so. One process at a time has it open: two in one run folder would spoil each other's work.
"""

from __future__ import annotations

import hashlib
import json
import time
from pathlib import Path
from typing import Any, BinaryIO

from equipoise.errors import StorageError

FIRST = "0" * 64


def line_hash(line: dict[str, Any]) -> str:
    """The hash of a line without its own hash."""
    return hashlib.sha256(json.dumps({k: v for k, v in line.items() if k != "hash"}, sort_keys=True).encode()).hexdigest()


def read(path: Path) -> tuple[list[dict[str, Any]], int]:
    """All whole lines of a journal and how many bytes they take; `StorageError` where the chain is broken."""
    lines: list[dict[str, Any]] = []
    last, size = FIRST, 0
    if not path.exists():
        return lines, size
    data = path.read_bytes()
    for number, raw in enumerate(data.splitlines(keepends=True), 1):
        if not raw.endswith(b"\n"):
            break
        try:
            line = json.loads(raw)
            broken = line["prev"] != last or line["hash"] != line_hash(line)
        except (ValueError, KeyError, TypeError):
            broken = True
        if broken:
            raise StorageError(f"{path}: line {number} was changed or is damaged; the journal cannot be trusted from there on")
        last, size = line["hash"], size + len(raw)
        lines.append(line)
    return lines, size


def lock(file: BinaryIO, path: Path) -> None:
    """Keep others out until the file is closed or the process ends, however it ends; where the system has no such locks, trust."""
    try:
        import fcntl
    except ImportError:
        return
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        raise StorageError(
            f"{path.parent} is in use by another process: wait until that one ends, or choose another folder"
        ) from None


class Journal:
    """Appends events to one file."""

    def __init__(self, path: Path) -> None:
        try:
            self._file = open(path, "ab")
            try:
                lock(self._file, path)
                self._recover(path)
            except BaseException:
                self._file.close()
                raise
        except OSError as error:
            raise StorageError(
                f"the journal {path} cannot be written: {error.strerror}; check the folder and disk space"
            ) from error

    def _recover(self, path: Path) -> None:
        """Go on after the last whole line."""
        lines, size = read(path)
        self._last, self._count = (lines[-1]["hash"] if lines else FIRST), len(lines)
        cut = self._file.tell() - size
        if cut > 0:
            self._file.truncate(size)
            self.write("recovered", bytes_dropped=cut)

    def write(self, event: str, **facts: Any) -> None:
        """One event."""
        line = {"seq": self._count, "time": round(time.time(), 3), "event": event, **facts, "prev": self._last}
        line["hash"] = line_hash(line)
        try:
            self._file.write(json.dumps(line, sort_keys=True).encode() + b"\n")
            self._file.flush()
        except OSError as error:
            raise StorageError(
                f"the journal cannot be written: {error.strerror}; free disk space, then `equipoise resume`"
            ) from error
        self._last, self._count = line["hash"], self._count + 1

    def close(self) -> None:
        try:
            self._file.close()
        except OSError:
            pass  # bytes a full disk did not take: `write` has said so, and a cut line is dropped at the next opening
