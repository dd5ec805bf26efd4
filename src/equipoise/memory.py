"""How a process treats memory it has freed. Only glibc knows these knobs; elsewhere nothing changes."""

from __future__ import annotations

import contextlib
import ctypes

M_TRIM_THRESHOLD, M_TOP_PAD, M_MMAP_THRESHOLD, M_MMAP_MAX, M_ARENA_MAX = -1, -2, -3, -4, -8
"""glibc's names of what can be set"""


def keep_memory() -> None:
    """Ask the C library to keep large freed blocks for reuse instead of giving them back to the system after
    every batch: otherwise each step's activations arrive as fresh pages that the kernel has to clear first.
    For a process that trains."""
    _set({M_MMAP_MAX: 0, M_TRIM_THRESHOLD: 2**31 - 1, M_TOP_PAD: 2**26})


def return_memory() -> None:
    """Ask the C library to return large blocks to the system as soon as they are free. For a server, where
    pieces of models come and go in many threads, each of which would otherwise keep some."""
    _set({M_MMAP_THRESHOLD: 2**20, M_ARENA_MAX: 2})


def free_memory() -> None:
    """Give what is freed back to the system now."""
    with contextlib.suppress(OSError, AttributeError):
        ctypes.CDLL("libc.so.6").malloc_trim(0)


def _set(values: dict[int, int]) -> None:
    with contextlib.suppress(OSError, AttributeError):
        libc = ctypes.CDLL("libc.so.6")
        for knob, value in values.items():
            libc.mallopt(knob, value)
