"""Whether a site reaches its coordinator."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

DOUBT = 3.0
"""seconds without the coordinator before it is reported: a single call may fail and be made again"""


class Contact:
    """Remembers how the last call to the coordinator went. `report` calls `changed` with True when the
    coordinator has been reached, and with False when it no longer is."""

    def __init__(self, changed: Callable[[bool], None] = lambda online: None) -> None:
        self._changed, self._reported = changed, False
        self._lock = threading.Lock()
        self._online, self._since = False, time.monotonic()

    def note(self, reached: bool) -> None:
        """Note how a call went, in whatever thread it was made."""
        with self._lock:
            if reached != self._online:
                self._online, self._since = reached, time.monotonic()

    def online(self) -> bool:
        """Whether the coordinator was reached by the last call."""
        with self._lock:
            return self._online

    def report(self) -> None:
        """Report a change, once."""
        with self._lock:
            online, since = self._online, self._since
        if online != self._reported and (online or time.monotonic() - since >= DOUBT):
            self._reported = online
            self._changed(online)

    def wait(self, seconds: float) -> None:
        """Wait, and report what changes meanwhile."""
        end = time.monotonic() + seconds
        self.report()
        while (left := end - time.monotonic()) > 0:
            time.sleep(min(left, 1.0))
            self.report()
