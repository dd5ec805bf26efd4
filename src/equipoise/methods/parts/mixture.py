"""A mixture of two Gaussians with diagonal covariances, fitted by expectation maximisation, and which sites
it finds noisy (FedNoRo)."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Generator, Tensor

ABSENT = -1.0
"""mean loss of a class the site lacks"""
FLOOR = 1e-6
"""added to every variance, so that a group of one point has a density"""


@dataclass(frozen=True)
class Mixture:
    """Two groups: shares [2], means and variances [2, D]."""

    share: Tensor
    mean: Tensor
    variance: Tensor

    @classmethod
    def of(cls, x: Tensor, member: Tensor) -> Mixture:
        """The maximisation step: x [N, D], of which point n belongs to group g with probability `member` [N,
        2]."""
        count = member.sum(0) + 10 * torch.finfo(x.dtype).eps
        mean = member.T @ x / count[:, None]
        variance = torch.einsum("ng,ngd->gd", member, (x[:, None] - mean) ** 2) / count[:, None] + FLOOR
        return cls(count / count.sum(), mean, variance)

    def density(self, x: Tensor) -> Tensor:
        """log(share · density) of every point in both groups, [N, 2]."""
        apart = (x[:, None] - self.mean) ** 2 / self.variance + self.variance.log() + math.log(2 * math.pi)
        return self.share.log() - 0.5 * apart.sum(2)


def two_groups(x: Tensor, draw: Generator, steps: int = 100, tolerance: float = 1e-3) -> Mixture:
    """Fit x [N, D], N ≥ 2: from the two means of k-means until the mean log-likelihood gains less than
    `tolerance`."""
    x = x.double()
    mixture, before = Mixture.of(x, F.one_hot(two_means(x, draw), 2).double()), -math.inf
    for _ in range(steps):
        density = mixture.density(x)
        likelihood = float(density.logsumexp(1).mean())
        mixture = Mixture.of(x, density.softmax(1))
        if abs(likelihood - before) < tolerance:
            break
        before = likelihood
    return mixture


def two_means(x: Tensor, draw: Generator) -> Tensor:
    """k-means from two points drawn as centres: the group of every point, int64 [N]."""
    centres = x[torch.randperm(len(x), generator=draw)[:2]]
    group = torch.cdist(x, centres).argmin(1)
    for _ in range(len(x)):
        if not 0 < int(group.sum()) < len(x):
            break
        centres = torch.stack([x[group == 0].mean(0), x[group == 1].mean(0)])
        group, before = torch.cdist(x, centres).argmin(1), group
        if torch.equal(group, before):
            break
    return group


def noisy_sites(losses: Tensor, draws: Sequence[torch.Generator]) -> Tensor:
    """bool [K]: the sites that most mixtures put in the group of larger losses, from losses [K, C]."""
    least = losses.masked_fill(losses == ABSENT, torch.inf).amin(0, keepdim=True)
    scaled = torch.where(losses == ABSENT, least, losses) - least
    largest = scaled.amax(0).clamp_min(torch.finfo(torch.float64).tiny)
    scaled = torch.where(least.isfinite(), scaled / largest, 0.0)
    votes = torch.zeros(len(losses))
    if len(losses) > 1 and scaled.any():
        for draw in draws:
            mixture = two_groups(scaled, draw)
            high = mixture.density(scaled).argmax(1) == mixture.mean.sum(1).argmax()
            votes += high & ~high.all()
    return votes > len(draws) / 2
