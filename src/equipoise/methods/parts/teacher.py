"""Teachers for semi-supervised methods: frozen copies of a net, one of which follows it, and how their weight
rises."""

from __future__ import annotations

import copy
import math

import torch
from torch import Tensor

from equipoise.nets import Net, load, state
from equipoise.site import Loc


def still(net: Net) -> Net:
    """A copy that does not learn, in eval mode."""
    return copy.deepcopy(net).eval().requires_grad_(False)


class Teacher:
    """The exponential mean of a net over its local steps, BatchNorm statistics included;
    `loc.mine["teacher"]` keeps it.

    It starts as the first model the site received, and no later one resets it.
    """

    def __init__(self, net: Net, loc: Loc, decay: float) -> None:
        self.net, self.decay = still(net), decay
        load(self.net, loc.mine.get("teacher", {}))
        # The live memory: the site keeps what the teacher will have become.
        loc.mine["teacher"] = state(self.net)

    def follow(self, net: Net) -> None:
        """θ_T ← decay · θ_T + (1 − decay) · θ, for every tensor."""
        live = state(net)
        torch._foreach_lerp_(list(state(self.net).values()), list(live.values()), 1 - self.decay)

    @torch.no_grad()
    def __call__(self, x: Tensor) -> Tensor:
        result: Tensor = self.net(x)
        return result


def rise(round: int, ramp: int) -> float:
    """exp(−5 (1 − t)²) with t = round / ramp kept between 0 and 1: from almost 0 to 1 over `ramp` rounds."""
    t = min(max(round / ramp, 0.0), 1.0) if ramp else 1.0
    return math.exp(-5 * (1 - t) ** 2)
