"""Frames on a pipe: eight bytes of length, then the bytes. What a pool and its workers speak; nothing is
pickled."""

from __future__ import annotations

import os
import struct
import subprocess
import sys
from collections.abc import Sequence
from typing import IO, TYPE_CHECKING

if TYPE_CHECKING:
    from equipoise.engine.fork import Copy


def write(pipe: IO[bytes], *frames: bytes) -> None:
    """Send frames and flush."""
    for frame in frames:
        pipe.write(struct.pack("<Q", len(frame)))
        pipe.write(frame)
    pipe.flush()


def read(pipe: IO[bytes]) -> bytes:
    """The next frame; EOFError when the other end is gone."""
    (size,) = struct.unpack("<Q", _exactly(pipe, 8))
    return _exactly(pipe, size)


def _exactly(pipe: IO[bytes], size: int) -> bytearray:
    data = bytearray(size)
    view, done = memoryview(data), 0
    while done < size:
        count = pipe.readinto(view[done:])  # type: ignore[attr-defined]
        if not count:
            raise EOFError("the other end of the pipe is gone")
        done += count
    return data


def command(module: str) -> list[str]:
    """What starts a module of ours as a process."""
    return [sys.executable, "-m", module]


def begin(command: Sequence[str]) -> subprocess.Popen[bytes]:
    """Start a process that speaks in frames, on one core; Ctrl-C is for us: it ends when its input does."""
    environment = os.environ | {"OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1"}
    pipe = subprocess.PIPE
    return subprocess.Popen(command, stdin=pipe, stdout=pipe, env=environment, start_new_session=True)


def end(process: subprocess.Popen[bytes] | Copy) -> int:
    """End a process that speaks in frames: gently, by closing its input, then by force. Its exit code."""
    assert process.stdin is not None and process.stdout is not None
    try:
        process.stdin.close()
    except OSError:
        pass
    try:
        code = process.wait(timeout=5)
    except subprocess.TimeoutExpired:
        process.kill()
        code = process.wait()
    process.stdout.close()
    return code
