"""Masks: uniform words that cancel out."""

from __future__ import annotations

import numpy as np
import torch
from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes
from hypothesis import given, settings
from hypothesis import strategies as st

from equipoise.exchange.secure.streams import PIECE, add_streams, stream


def test_a_stream_is_the_cipher_s() -> None:
    key, count = b"0123456789abcdef", PIECE + 77
    cipher = Cipher(algorithms.AES(key), modes.CTR(bytes(16))).encryptor()
    expected = np.frombuffer(cipher.update(bytes(8 * count)), dtype=np.int64)
    assert np.array_equal(stream(key, count).numpy(), expected)
    # AES-128 of a block of zeros under this key, as `openssl enc -aes-128-ecb` gives it
    block = Cipher(algorithms.AES(key), modes.ECB()).encryptor().update(bytes(16))
    assert stream(key, 2).numpy().tobytes() == block


@settings(max_examples=25, deadline=None)
@given(
    values=st.lists(st.integers(-(2**63), 2**63 - 1), min_size=1, max_size=40),
    keys=st.lists(st.tuples(st.sampled_from([1, -1]), st.binary(min_size=16, max_size=16)), max_size=5),
)
def test_what_is_added_can_be_taken_away(values: list[int], keys: list[tuple[int, bytes]]) -> None:
    words = torch.tensor(values, dtype=torch.int64)
    masked = words.clone()
    add_streams(masked, keys)
    add_streams(masked, [(-sign, key) for sign, key in keys])
    assert torch.equal(masked, words)


def test_words_look_uniform_whatever_they_hide() -> None:
    """Kolmogorov-Smirnov on a million masked words: zeros, and values as a model's change has them."""
    for words in (torch.zeros(10**6, dtype=torch.int64), (torch.randn(10**6) * 2**28).long()):
        add_streams(words, [(1, b"k" * 16), (-1, b"l" * 16)])
        assert distance(words) < 1.95 / 1000  # the bound that chance exceeds once in a thousand times


def distance(words: torch.Tensor) -> float:
    """The largest difference between the distribution of words and the uniform one."""
    unit = np.sort(words.numpy().view(np.uint64).astype(np.float64) / 2.0**64)
    rank = np.arange(1, len(unit) + 1) / len(unit)
    return float(np.maximum(rank - unit, unit - rank + 1 / len(unit)).max())


def test_the_test_of_uniformity_can_fail() -> None:
    assert distance((torch.randn(10**4) * 2**28).long()) > 0.4
