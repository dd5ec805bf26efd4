"""Messages in memory that a pool and its workers share, instead of copies through a pipe.

Each is in a file of memory without a name (Linux only), which the other side opens through /proc and which is
gone when nobody has it open, however a process ends. It is written once, by who makes it; a reader that
writes into what it mapped has those pages for itself.
"""

from __future__ import annotations

import json
import mmap
import os
import sys

from equipoise.exchange.codec import ALIGNED

FOLDER = "/proc/self/fd"


def can_share() -> bool:
    """Whether this system has files of memory that other processes can open."""
    return sys.platform == "linux" and hasattr(os, "memfd_create") and os.path.isdir(FOLDER)


class Rooms:
    """Room for one message at a time; the one before is let go of when the next is made."""

    def __init__(self) -> None:
        self._file: int | None = None
        self._message: memoryview | None = None
        self._start = 0

    def room(self, size: int, begin: int) -> memoryview:
        """Room for a message of so many bytes; its tensors, from `begin` on, lie as torch lays its own."""
        self.close()
        self._start = -begin % ALIGNED
        self._file = os.memfd_create("message")
        os.ftruncate(self._file, self._start + size)
        self._message = memoryview(mmap.mmap(self._file, 0))[self._start :]
        return self._message

    def place(self, message: bytes | memoryview) -> bytes:
        """Where the other side finds a message; nothing, where it is not in this room."""
        if self._message is None or message is not self._message:
            return b""
        path = f"/proc/{os.getpid()}/fd/{self._file}"
        return json.dumps({"path": path, "start": self._start}).encode()

    def close(self) -> None:
        """Let go of the message; those who have mapped it keep it."""
        if self._file is not None:
            os.close(self._file)
        self._file = self._message = None


def mapped(place: bytes) -> memoryview:
    """The message at a place."""
    facts = json.loads(place)
    with open(facts["path"], "rb") as file:
        whole = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_COPY)
    return memoryview(whole)[facts["start"] :]
