"""How a process treats memory it has freed. Only glibc knows these knobs; elsewhere nothing changes."""

from __future__ import annotations

import contextlib
import ctypes

M_TRIM_THRESHOLD, M_TOP_PAD, M_MMAP_MAX = -1, -2, -4
"""glibc's names for what `keep_memory` sets"""


def keep_memory() -> None:
    """Ask the C library to keep large freed blocks for reuse instead of giving them back to the system after
    every batch: otherwise each step's activations arrive as fresh pages that the kernel has to clear first.
    For a process that trains."""
    with contextlib.suppress(OSError, AttributeError):
        libc = ctypes.CDLL("libc.so.6")
        for knob, value in ((M_MMAP_MAX, 0), (M_TRIM_THRESHOLD, 2**31 - 1), (M_TOP_PAD, 2**26)):
            libc.mallopt(knob, value)


def free_memory() -> None:
    """Give what is freed back to the system now."""
    with contextlib.suppress(OSError, AttributeError):
        ctypes.CDLL("libc.so.6").malloc_trim(0)
