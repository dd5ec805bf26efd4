"""A mixture of two Gaussians with diagonal covariances, fitted by expectation maximisation."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Generator, Tensor

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
