"""Byte strings in one body: before each its length, in four bytes."""

from __future__ import annotations

import struct
from collections.abc import Iterable

LENGTH = struct.Struct(">I")


def pack(parts: Iterable[bytes]) -> bytes:
    """One body of all parts."""
    return b"".join(piece for part in parts for piece in (LENGTH.pack(len(part)), part))


def unpack(body: bytes) -> list[bytes]:
    """The parts of a body, at least one; a `ValueError` if it is none."""
    parts, place = list[bytes](), 0
    while place < len(body) or not parts:
        if place + LENGTH.size > len(body):
            raise ValueError("a body that is cut off")
        (length,) = LENGTH.unpack_from(body, place)
        place += LENGTH.size
        if place + length > len(body):
            raise ValueError("a body that is cut off")
        parts.append(body[place : place + length])
        place += length
    return parts
