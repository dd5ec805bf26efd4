"""Layers and dropout draw from the global generator: here it starts alike in every test, and is put back
after."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from tests.light import sparing

from equipoise.config import Config


@pytest.fixture(autouse=True)
def seeded():
    with torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(0)
        yield


@pytest.fixture(scope="session")
def tiny(tiny: Callable[..., Config]) -> Callable[..., Config]:
    return sparing(tiny)
