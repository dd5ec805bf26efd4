"""The journal: what happened, in order, one JSON line each, every line holding the hash of the one before.

A line that was changed or removed later breaks the chain. A line cut short by a crash is dropped when the
journal is opened again, and said so. One process at a time has it open: two in one run folder would spoil
each other's work.

A chain can still be cut at its end, or be written anew as a whole. So its newest hash, the head, is kept
elsewhere too: in every checkpoint and in the result, and where hospitals are real in the journals of the
others, who get it with every message. Every line has some random letters, so that nobody who has a head can
find out by guessing what the line says.

Times are in UTC. Rounds count from 1, as everywhere a user sees them; 0 is before the first.
"""

from __future__ import annotations

import os
import secrets
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, BinaryIO

from equipoise.errors import StorageError
from equipoise.keeping import FIRST, as_bytes, chained, line_hash
from equipoise.keeping import read_lines as read

__all__ = ["FIRST", "Journal", "line_hash", "lock", "read"]


def lock(file: BinaryIO, path: Path) -> None:
    """Keep others out until the file is closed or the process ends, however it ends; where the system has no
    such locks, trust."""
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
        self.head, self._count = (lines[-1]["hash"] if lines else FIRST), len(lines)
        self._hashes = {FIRST, *(line["hash"] for line in lines)}
        cut = self._file.tell() - size
        if cut > 0:
            self._file.truncate(size)
            self.write("recovered", bytes_dropped=cut)

    def write(self, event: str, **facts: Any) -> None:
        """One event."""
        facts = {
            "seq": self._count,
            "time": datetime.now(UTC).isoformat(timespec="milliseconds"),
            "event": event,
            **facts,
            "salt": secrets.token_hex(16),
        }
        line = chained(facts, self.head)
        try:
            self._file.write(as_bytes(dict(sorted(line.items()))))
            self._file.flush()
        except OSError as error:
            raise StorageError(
                f"the journal cannot be written: {error.strerror}; free disk space, then continue the run"
            ) from error
        self.head, self._count = line["hash"], self._count + 1
        self._hashes.add(self.head)

    def __contains__(self, head: object) -> bool:
        """Whether a hash is that of one of our lines."""
        return head in self._hashes

    def sync(self) -> None:
        """Wait until the disk holds all lines."""
        try:
            os.fsync(self._file.fileno())
        except OSError as error:
            raise StorageError(
                f"the journal cannot be written: {error.strerror}; free disk space, then continue the run"
            ) from error

    def close(self) -> None:
        try:
            self._file.close()
        except OSError:
            # bytes a full disk did not take: `write` has said so, and a cut line is dropped at the next
            # opening
            pass
