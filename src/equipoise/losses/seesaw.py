"""Cross-entropy in which frequent classes push rare ones down less, and classes seen differently weigh more
(PRR-Imb)."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

LEAST = 1e-9
"""smallest factor: a class nobody has is all but left out, with a finite logarithm"""


def mitigation(counts: Tensor, beta: float) -> Tensor:
    """S [C, C]: S_yj = (n_j / n_y)^beta where class y is the larger, else 1."""
    n = counts.to(torch.float64)
    ratio = n[None, :] / n[:, None].clamp_min(1)
    return torch.where(n[:, None] > n[None, :], ratio, 1.0).pow(beta).clamp_min(LEAST)


def seesaw(logits: Tensor, y: Tensor, counts: Tensor, beta: float, weight: Tensor | None = None) -> Tensor:
    """Mean of −log e^{z_y} / (e^{z_y} + Σ_{j≠y} S_yj e^{z_j}), each image times its class's `weight` [C]."""
    shift = mitigation(counts, beta).log().to(logits)
    loss = F.cross_entropy(logits + shift[y], y, reduction="none")
    return (loss if weight is None else loss * weight.to(loss)[y]).mean()


def refinement(own: Tensor, shared: Tensor, tau: float) -> Tensor:
    """[C]: (1 + tau) / (cos + tau) between a site's class prototypes and the shared ones."""
    return (1 + tau) / (F.cosine_similarity(own, shared, dim=1) + tau)


def shared_prototypes(mean: Tensor, square: Tensor, draw: torch.Generator | None) -> Tensor:
    """[C, d] from the moments over the sites that have a class: drawn around their mean, or the mean."""
    if draw is None:
        return mean
    spread = (square - mean**2).clamp_min(0).sqrt().clamp_min(1)
    return mean + spread * torch.randn(mean.shape, generator=draw)
