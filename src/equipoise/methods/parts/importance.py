"""How much each class shall count at a site that draws its images by class (ISFL)."""

from __future__ import annotations

import torch.nn.functional as F
from torch import Tensor

from equipoise.site import Loc


def own_shares(loc: Loc) -> Tensor:
    """π_k [C]."""
    return loc.counts / loc.counts.sum().clamp_min(1)


def members(loc: Loc) -> Tensor:
    """float64 [n, C]: which classes each training image belongs to."""
    y = loc.train.labels
    return (F.one_hot(y, len(loc.classes)) if loc.task == "single" else y).double()


def water_filling(prior: Tensor, share: Tensor, smoothness: Tensor, sigma: float) -> Tensor:
    """q = p + Γ a: away from classes with a large L, until the first reaches its floor σ π. Sums to 1 as p
    does."""
    present, square = prior > 0, smoothness**2 * (prior > 0)
    if not square.any():
        return prior
    gamma = (1 - present.sum() * square / square.sum()) * present
    falling = gamma < 0
    if not falling.any():
        return prior
    a = gamma / gamma.norm()
    step = ((prior - sigma * share)[falling] / -a[falling]).min().clamp_min(0)
    result: Tensor = prior + step * a
    return result
