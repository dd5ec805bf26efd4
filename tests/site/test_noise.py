"""The draws of differential privacy: as wide as they should be, repeatable in a simulation and nowhere
else."""

from __future__ import annotations

import os

import numpy as np
import pytest
import torch

from equipoise.seeds import generator
from equipoise.site.noise import Secret, Seeded, Source

MANY = 10**6


@pytest.mark.parametrize("source", [Seeded, Secret])
def test_draws_are_normal(source: Source) -> None:
    """A million of them: mean, standard deviation and tails."""
    found = source(generator(0, "noise")).normal(MANY)
    assert found.shape == (MANY,) and found.dtype == torch.float64
    assert abs(float(found.mean())) < 0.01
    assert float(found.std()) == pytest.approx(1.0, rel=0.02)
    for distance, share in ((1.0, 0.31731), (2.0, 0.04550), (3.0, 0.00270)):
        assert float((found.abs() > distance).double().mean()) == pytest.approx(share, rel=0.1)


@pytest.mark.parametrize("source", [Seeded, Secret])
def test_chances_are_even(source: Source) -> None:
    found = source(generator(0, "chance")).uniform(MANY)
    assert float(found.min()) >= 0 and float(found.max()) < 1
    counts = np.histogram(found.numpy(), 10, (0, 1))[0]
    assert np.abs(counts / MANY - 0.1).max() < 0.002


def test_a_seed_repeats_its_draws_and_the_system_does_not() -> None:
    assert torch.equal(Seeded(generator(7)).normal(9), Seeded(generator(7)).normal(9))
    draw = generator(7)
    before = draw.get_state()
    assert not torch.equal(Secret(draw).normal(9), Secret(draw).normal(9))
    assert torch.equal(draw.get_state(), before)


def test_secret_draws_are_the_systems(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every bit comes from its cryptographic generator."""
    monkeypatch.setattr(os, "urandom", lambda size: bytes(size))
    assert Secret(generator(0)).uniform(3).tolist() == [0, 0, 0]
    monkeypatch.setattr(os, "urandom", lambda size: b"\xff" * size)
    assert float(Secret(generator(0)).uniform(1)) == 1 - 2**-53
    assert bool(torch.isfinite(Secret(generator(0)).normal(4)).all())


def test_an_odd_number_of_draws() -> None:
    assert len(Secret(generator(0)).normal(5)) == 5 and len(Secret(generator(0)).normal(0)) == 0
