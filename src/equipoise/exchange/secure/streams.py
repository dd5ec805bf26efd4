"""Masks: streams of uniformly random words from a key, added and taken away modulo 2^64.

A stream is AES-128 in counter mode over zeros, a fresh key for every stream. It is made and added a piece at
a time, so that it never leaves the processor's cache.
"""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np
import torch
from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes
from torch import Tensor

KEY_BYTES = 16
PIECE = 2**15
"""words of a stream that are made at a time"""
_BLANK = bytes(8 * PIECE)

Stream = tuple[int, bytes]
"""the sign with which a stream counts, and its key"""


def add_streams(words: Tensor, streams: Iterable[Stream]) -> None:
    """words += Σ sign · stream, modulo 2^64, in place; `words` is an int64 vector."""
    total = words.numpy().view(np.uint64)
    made = bytearray(8 * PIECE + 16)  # the cipher wants room for one block more
    mask = np.frombuffer(made, dtype=np.uint64, count=PIECE)
    ciphers = [(sign, Cipher(algorithms.AES(key), modes.CTR(bytes(16))).encryptor()) for sign, key in streams]
    for start in range(0, len(total), PIECE):
        piece = total[start : start + PIECE]
        for sign, cipher in ciphers:
            cipher.update_into(_BLANK[: 8 * len(piece)], made)
            part = mask[: len(piece)]
            if sign > 0:
                np.add(piece, part, out=piece)
            else:
                np.subtract(piece, part, out=piece)


def stream(key: bytes, count: int) -> Tensor:
    """The first words of one stream."""
    words = torch.zeros(count, dtype=torch.int64)
    add_streams(words, [(1, key)])
    return words
