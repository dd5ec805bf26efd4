"""Shamir's shares against values worked out by hand, over every subset, and for any secret."""

from __future__ import annotations

import hashlib
from itertools import combinations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from equipoise.exchange.secure.shamir import PRIME, SHARE_BYTES, join, split, value_at


def test_a_polynomial_worked_out_by_hand() -> None:
    """f(x) = 1234 + 166 x + 94 x²: f(1) = 1494, f(2) = 1942, f(3) = 2578."""
    polynomial = [1234, 166, 94]
    assert [value_at(polynomial, x) for x in (0, 1, 2, 3)] == [1234, 1494, 1942, 2578]
    shares = {x: value_at(polynomial, x).to_bytes(SHARE_BYTES, "big") for x in (2, 4, 5)}
    assert join(shares) == (1234).to_bytes(32, "big")


def test_values_wrap_around_at_the_prime() -> None:
    assert value_at([PRIME - 1, 1], 1) == 0
    assert value_at([0, PRIME - 2], 3) == PRIME - 6


def test_the_prime_is_one() -> None:
    """Fermat's test to several bases, and that no smaller number above 2^256 passes it."""
    assert all(pow(base, PRIME - 1, PRIME) == 1 for base in (2, 3, 5, 7, 11))
    assert not any(pow(3, n - 1, n) == 1 for n in range(2**256 + 1, PRIME, 2))


@pytest.mark.parametrize(("threshold", "count"), [(1, 1), (2, 3), (3, 4), (5, 7), (7, 7)])
def test_every_subset_that_is_large_enough_gives_the_secret(threshold: int, count: int) -> None:
    secret = hashlib.sha256(f"{threshold} {count}".encode()).digest()
    shares = dict(enumerate(split(secret, threshold, count, b"e" * 32), 1))
    for size in range(threshold, count + 1):
        for places in combinations(shares, size):
            assert join({place: shares[place] for place in places}) == secret


def test_one_share_too_few_fits_every_secret() -> None:
    """Two of three shares: for any claimed secret there is a third share that would make it true."""
    shares = split(b"\7" * 32, 3, 3, b"e" * 32)
    for claim in (0, 1, 2**256 - 1):
        # Through (0, claim), (1, y1), (2, y2) goes exactly one polynomial of degree 2; its value at 3 is
        # claim - 3 y1 + 3 y2.
        y1, y2 = (int.from_bytes(share, "big") for share in shares[:2])
        third = (claim - 3 * y1 + 3 * y2) % PRIME
        made = {1: shares[0], 2: shares[1], 3: third.to_bytes(SHARE_BYTES, "big")}
        assert join(made) == claim.to_bytes(32, "big")


@settings(max_examples=30, deadline=None)
@given(
    secret=st.binary(min_size=32, max_size=32),
    entropy=st.binary(min_size=32, max_size=32),
    count=st.integers(3, 20),
    data=st.data(),
)
def test_any_secret_comes_back(secret: bytes, entropy: bytes, count: int, data: st.DataObject) -> None:
    threshold = 2 * count // 3 + 1
    shares = split(secret, threshold, count, entropy)
    places = data.draw(st.lists(st.integers(1, count), min_size=threshold, max_size=threshold, unique=True))
    assert join({place: shares[place - 1] for place in places}) == secret
    assert all(len(share) == SHARE_BYTES for share in shares)


def test_impossible_numbers_are_refused() -> None:
    with pytest.raises(ValueError, match="4 of 3"):
        split(bytes(32), 4, 3, bytes(32))
    with pytest.raises(ValueError, match="not of one secret"):
        join({1: (PRIME - 1).to_bytes(SHARE_BYTES, "big")})
