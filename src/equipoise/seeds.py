"""Every random draw comes from here: a generator derived from the run's seed and what the draw is for.

No generator state is ever saved. The same (seed, round, site, question, purpose) gives the same draws in any
process, in any order and after any crash.
"""

from __future__ import annotations

import hashlib
import random
from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np
import torch


def derive(seed: int, *purpose: object) -> int:
    """A 63-bit seed for one purpose, e.g. `derive(seed, round, site, "train", "shuffle")`."""
    text = "\x1f".join([str(int(seed)), *map(str, purpose)])
    return int.from_bytes(hashlib.sha256(text.encode()).digest()[:8], "little") >> 1


def generator(seed: int, *purpose: object) -> torch.Generator:
    """A CPU torch generator for one purpose."""
    return torch.Generator().manual_seed(derive(seed, *purpose))


def numpy_generator(seed: int, *purpose: object) -> np.random.Generator:
    """A numpy generator for one purpose."""
    return np.random.default_rng(derive(seed, *purpose))


@contextmanager
def isolated(seed: int, device: torch.device) -> Iterator[None]:
    """Code that draws from a global generator (dropout; numpy's or Python's in code of one's own) finds it
    seeded; afterwards all are as they were before."""
    used = _global(device)
    before = [one.get_state() for one in used]
    of_numpy, of_python = np.random.get_state(), random.getstate()
    seed_all(seed, device)
    try:
        yield
    finally:
        for one, state in zip(used, before, strict=True):
            one.set_state(state)
        np.random.set_state(of_numpy)
        random.setstate(of_python)


def seed_all(seed: int, device: torch.device) -> None:
    """Seed the global generators of torch, numpy and Python."""
    for one in _global(device):
        one.manual_seed(seed)
    np.random.seed(seed % 2**32)
    random.seed(seed)


def _global(device: torch.device) -> list[torch.Generator]:
    """Torch's global generators that code on this device draws from."""
    if device.type == "cuda":
        return [torch.default_generator, torch.cuda.default_generators[device.index or 0]]
    return [torch.default_generator]
