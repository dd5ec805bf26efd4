"""Shamir's shares of a secret: any `threshold` of them give it back, fewer say nothing of it.

The secret is the value at 0 of a random polynomial over the integers modulo a prime; a share is its value at
the place of one site, from 1 up.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping

PRIME = 2**256 + 297
"""the smallest prime above any secret of 32 bytes"""
SHARE_BYTES = 33
_DRAWN = 48
"""bytes per coefficient: 128 bits more than the prime has, so that the rest by division is even"""


def split(secret: bytes, threshold: int, count: int, entropy: bytes) -> list[bytes]:
    """The shares of the places 1 … count. `entropy` are 32 random bytes that serve no other secret."""
    if not 1 <= threshold <= count < PRIME:
        raise ValueError(f"{threshold} of {count} shares cannot be")
    drawn = hashlib.shake_256(b"equipoise shares" + entropy).digest(_DRAWN * (threshold - 1))
    rest = [
        int.from_bytes(drawn[start : start + _DRAWN], "big") % PRIME for start in range(0, len(drawn), _DRAWN)
    ]
    polynomial = [int.from_bytes(secret, "big"), *rest]
    return [value_at(polynomial, place).to_bytes(SHARE_BYTES, "big") for place in range(1, count + 1)]


def value_at(polynomial: list[int], place: int) -> int:
    """The value of a polynomial, lowest coefficient first."""
    value = 0
    for coefficient in reversed(polynomial):
        value = (value * place + coefficient) % PRIME
    return value


def join(shares: Mapping[int, bytes], length: int = 32) -> bytes:
    """The secret, from at least `threshold` shares by place; ValueError where they belong to no secret of
    that length."""
    points = {place: int.from_bytes(share, "big") for place, share in shares.items()}
    secret = 0
    for place, value in points.items():
        above, below = 1, 1
        for other in points:
            if other != place:
                above = above * other % PRIME
                below = below * (other - place) % PRIME
        secret = (secret + value * above * pow(below, -1, PRIME)) % PRIME
    if secret >= 2 ** (8 * length):
        raise ValueError("the shares are not of one secret")
    return secret.to_bytes(length, "big")
