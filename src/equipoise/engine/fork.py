"""Workers as copies of the run's own process, where that is safe.

A copy starts in no time: it has imported what it needs, found its images and built its networks, and it
shares that memory until it writes to it. A process with several threads is not copied (a lock that another
thread holds at that moment would stay locked in the copy), nor one that may have used a GPU; its workers are
started anew.
"""

from __future__ import annotations

import gc
import os
import signal
import subprocess
import sys
import time
import traceback
from collections.abc import Callable
from typing import IO

import torch

THREADS = "/proc/self/task"
PAUSE = 0.01
"""seconds between two looks at whether a copy has ended"""


def can_fork() -> bool:
    """Whether a copy of this process would be whole."""
    return sys.platform == "linux" and len(os.listdir(THREADS)) == 1 and not torch.cuda.is_initialized()


class Copy:
    """A copy of this process that does some work and ends; to its maker it is like a `subprocess.Popen`."""

    def __init__(self, work: Callable[[], None]) -> None:
        inbox, to_copy = os.pipe()
        from_copy, outbox = os.pipe()
        for stream in (sys.stdout, sys.stderr):
            stream.flush()
        before = gc.get_freeze_count()
        gc.freeze()  # what is there now is left alone by the copy's collector, so its memory stays shared
        self.pid = os.fork()
        if self.pid == 0:
            _live(work, inbox, outbox)
        if not before:
            gc.unfreeze()
        os.close(inbox)
        os.close(outbox)
        self.stdin: IO[bytes] = os.fdopen(to_copy, "wb")
        self.stdout: IO[bytes] = os.fdopen(from_copy, "rb")
        self.returncode: int | None = None

    def poll(self) -> int | None:
        """How it ended, or None while it lives."""
        if self.returncode is None:
            found, status = os.waitpid(self.pid, os.WNOHANG)
            if found:
                self.returncode = os.waitstatus_to_exitcode(status)
        return self.returncode

    def wait(self, timeout: float | None = None) -> int:
        """How it ended; waits for that."""
        end = None if timeout is None else time.monotonic() + timeout
        while (code := self.poll()) is None:
            if end is not None and timeout is not None and time.monotonic() > end:
                raise subprocess.TimeoutExpired("a copy of this process", timeout)
            time.sleep(PAUSE)
        return code

    def kill(self) -> None:
        """End it by force."""
        if self.poll() is None:
            os.kill(self.pid, signal.SIGKILL)


def _live(work: Callable[[], None], inbox: int, outbox: int) -> None:
    """Be the copy: with a session, signals and files of its own, and an end that is not its maker's."""
    code = 1
    try:
        os.setsid()
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            signal.signal(number, signal.SIG_DFL)
        os.dup2(inbox, 0)
        os.dup2(outbox, 1)
        _let_go()
        work()
        code = 0
    except BrokenPipeError:
        pass
    except BaseException:
        traceback.print_exc()
    finally:
        os._exit(code)


def _let_go() -> None:
    """Let go of every file but the standard ones. Their numbers stay taken, so that no object of the maker's
    closes a file of ours."""
    nothing = os.open(os.devnull, os.O_RDWR)
    for number in map(int, os.listdir("/proc/self/fd")):
        if number > 2 and number != nothing:
            try:
                os.fstat(number)
            except OSError:  # that of the listing itself
                continue
            os.dup2(nothing, number, inheritable=False)
