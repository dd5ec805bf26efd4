"""Where the draws of differential privacy come from: a seed in a simulation, the operating system at a
hospital.

Who knows the draws can take the noise off again, so at a hospital nobody may: neither the noise nor which
images a step takes follows from the run's seed, which the coordinator knows. Numbers are of double precision,
and what they are added to is rounded to single precision afterwards: the last bits of a draw, which could
tell it from others, never leave.
"""

from __future__ import annotations

import math
import os
from collections.abc import Callable
from typing import Protocol

import numpy as np
import torch
from torch import Tensor

BITS = 53
"""of a double's fraction"""


class Draws(Protocol):
    """A source of random numbers, float64 [count]."""

    def uniform(self, count: int) -> Tensor:
        """From 0 up to, but not, 1."""
        ...

    def normal(self, count: int) -> Tensor:
        """Of mean 0 and standard deviation 1."""
        ...


Source = Callable[[torch.Generator], Draws]
"""draws for one purpose, for which this generator is derived from the run's seed"""


class Seeded:
    """Draws of a generator: the same whenever a simulation is repeated."""

    def __init__(self, generator: torch.Generator) -> None:
        self._generator = generator

    def uniform(self, count: int) -> Tensor:
        return torch.rand(count, generator=self._generator, dtype=torch.float64)

    def normal(self, count: int) -> Tensor:
        return torch.randn(count, generator=self._generator, dtype=torch.float64)


class Secret:
    """Draws of the operating system's cryptographic generator, which nobody can repeat."""

    def __init__(self, generator: torch.Generator) -> None:
        """The generator is what a simulation would use; it is left alone."""

    def uniform(self, count: int) -> Tensor:
        words = np.frombuffer(os.urandom(8 * count), dtype=np.uint64) >> np.uint64(64 - BITS)
        return torch.from_numpy(words.astype(np.float64)) * 2.0**-BITS

    def normal(self, count: int) -> Tensor:
        half = (count + 1) // 2
        radius = (-2 * torch.log1p(-self.uniform(half))).sqrt()  # Box and Muller 1958
        angle = 2 * math.pi * self.uniform(half)
        return torch.cat([radius * angle.cos(), radius * angle.sin()])[:count]
