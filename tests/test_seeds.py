"""Seeds: the same purpose gives the same draws, another purpose others; no global state is touched."""

from __future__ import annotations

import random

import numpy as np
import torch

from equipoise.seeds import derive, generator, numpy_generator

KNOWN = 3_679_341_126_744_792_709


def test_a_known_value() -> None:
    # sha256("7␟3␟bcn␟train␟shuffle"), first eight bytes little-endian, without the last bit; made with
    # sha256sum
    assert derive(7, 3, "bcn", "train", "shuffle") == KNOWN
    assert 0 <= KNOWN < 2**63


def test_purposes_do_not_run_into_each_other() -> None:
    seeds = [
        derive(0),
        derive(1),
        derive(0, "a"),
        derive(0, "ab"),
        derive(0, "a", "b"),
        derive(0, 1, 23),
        derive(0, 12, 3),
        derive(0, "a", ""),
    ]
    assert len(set(seeds)) == len(seeds)


def test_same_purpose_same_draws() -> None:
    assert torch.equal(torch.rand(5, generator=generator(1, "x")), torch.rand(5, generator=generator(1, "x")))
    assert not torch.equal(
        torch.rand(5, generator=generator(1, "x")), torch.rand(5, generator=generator(2, "x"))
    )
    assert (numpy_generator(1, "x").random(5) == numpy_generator(1, "x").random(5)).all()
    assert (numpy_generator(1, "x").random(5) != numpy_generator(1, "y").random(5)).all()


def test_global_state_is_left_alone() -> None:
    before = torch.get_rng_state(), np.random.get_state()[1].tolist(), random.getstate()
    torch.rand(3, generator=generator(5, "x"))
    numpy_generator(5, "x").random(3)
    assert torch.equal(torch.get_rng_state(), before[0])
    assert np.random.get_state()[1].tolist() == before[1]
    assert random.getstate() == before[2]
