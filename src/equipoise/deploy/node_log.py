"""What Flower's SuperNode says in its log: whether it reaches the coordinator, and whether it is still of
use."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from pathlib import Path

DROPPED = (b"Ignoring message ", b"Failed to receive message ", b"Server error '", b"Client error '")
"""what the SuperNode says of a message it drops on its way in, and before it stops to work without ending"""
REACHED = (b"SuperNode ID: ", b"Connection successful after ")
LOST = (b"Connection attempt failed, retrying ",)
LONGEST = max(map(len, (*DROPPED, *REACHED, *LOST)))
DOUBT = 3.0
"""seconds without the coordinator before it is said: a single call may fail and be made again"""


class Log:
    """What the SuperNode has said since we started it. `tell` is called with True when the coordinator has
    been reached, and with False when it no longer is."""

    def __init__(self, path: Path, tell: Callable[[bool], None] = lambda online: None) -> None:
        self.path, self._tell, self._told = path, tell, False
        self._one_at_a_time = threading.Lock()
        self.begin()

    def begin(self) -> None:
        """Forget what was said: a SuperNode is about to be started."""
        with self._one_at_a_time:
            self._start = self._read = self.path.stat().st_size if self.path.exists() else 0
            self._tail, self._astray = b"", False
            self._online, self._since = False, time.monotonic()

    def text(self) -> str:
        return self.path.read_bytes()[self._start :].decode(errors="replace")

    def _look(self) -> None:
        """Read what is new."""
        if not self.path.exists():
            return
        with self._one_at_a_time, open(self.path, "rb") as file:
            file.seek(self._read)
            new = file.read()
            self._read += len(new)
            said = self._tail + new
            self._astray = self._astray or any(word in said for word in DROPPED)
            reached, lost = (max(map(said.rfind, words)) for words in (REACHED, LOST))
            if reached != lost and (reached > lost) != self._online:
                self._online, self._since = reached > lost, time.monotonic()
            self._tail = said[-LONGEST:]

    def astray(self) -> bool:
        """Whether the SuperNode is of no more use, though it runs.

        A message that it drops on its way in, as when a run is stopped (a coordinator that was killed), is
        still in its books: it never tells us, and from then on sends with every message the answer to the one
        before. And an error of the server ends its work, but not its process.
        """
        self._look()
        return self._astray

    def online(self) -> bool:
        """Whether the coordinator was reached when the SuperNode last tried."""
        self._look()
        return self._online

    def report(self) -> None:
        """Tell of a change, once."""
        online = self.online()
        if online != self._told and (online or time.monotonic() - self._since >= DOUBT):
            self._told = online
            self._tell(online)
