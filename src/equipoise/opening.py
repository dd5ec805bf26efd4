"""How a file is opened that somebody else may have put there: a regular file, and not larger than it can
honestly be.

A FIFO would make us wait for ever, a device would never end, and a huge file would fill the memory.
"""

from __future__ import annotations

import errno
import os
import stat
from pathlib import Path
from typing import BinaryIO

TEXT = 16 * 2**20
"""bytes of the largest text file that is read: a config, a policy, a key, a roster, a source file"""


def open_regular(path: str | os.PathLike[str], limit: int) -> BinaryIO:
    """A file opened for reading, without waiting; `OSError` if it is not a regular file of at most `limit`
    bytes."""
    number = os.open(path, os.O_RDONLY | os.O_CLOEXEC | getattr(os, "O_NONBLOCK", 0))
    try:
        status = os.fstat(number)
        if stat.S_ISDIR(status.st_mode):
            raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), str(path))
        if not stat.S_ISREG(status.st_mode):
            raise OSError(errno.EINVAL, "not a regular file", str(path))
        if status.st_size > limit:
            raise _too_large(path, limit)
        return os.fdopen(number, "rb")
    except BaseException:
        os.close(number)
        raise


def read_regular(path: str | os.PathLike[str], limit: int = TEXT) -> bytes:
    """The bytes of a regular file; never more than `limit`, also if it grows while it is read."""
    with open_regular(path, limit) as file:
        data = file.read(limit + 1)
    if len(data) > limit:
        raise _too_large(path, limit)
    return data


def read_text(path: str | os.PathLike[str], limit: int = TEXT) -> str:
    """The text (UTF-8) of a regular file."""
    return read_regular(path, limit).decode()


def _too_large(path: str | os.PathLike[str], limit: int) -> OSError:
    return OSError(errno.EFBIG, f"larger than {limit:,} bytes", str(Path(path)))
