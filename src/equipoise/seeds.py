"""Every random draw comes from here: a generator derived from the run's seed and what the draw is for.

No generator state is ever saved. The same (seed, round, site, question, purpose) gives the same draws in any
process, in any order and after any crash.
"""

from __future__ import annotations

import hashlib

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
