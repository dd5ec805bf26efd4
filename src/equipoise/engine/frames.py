"""Frames on a pipe: eight bytes of length, then the bytes. What a pool and its workers speak; nothing is pickled."""

from __future__ import annotations

import struct
import subprocess
from typing import IO


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


def end(process: subprocess.Popen[bytes]) -> int:
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
