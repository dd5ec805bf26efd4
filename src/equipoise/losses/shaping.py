"""Affine transforms of logits: most losses for class imbalance are one of these in front of cross-entropy.

A transform is `z' = scale * z + shift`, class by class. It is applied in training only; predictions use the
raw logits. Of several transforms no scale touches a shift: a prior is a prior, whatever is scaled beside it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

PRIOR_FLOOR = 1e-9
"""Added to a prior before its logarithm: an absent class is shifted by -20.7, finite also inside a KL
term."""

COUNT_FLOOR = 1e-8
"""Least count in n^(-1/4): an absent class gets the margin 100, which takes it out of the softmax."""

SIDE_FLOOR = 0.5
"""Least count of positives or negatives of one label: where one side is lacking, the other still has to
learn."""


@dataclass(frozen=True)
class Shaper:
    """`z' = scale * z + shift` with `scale` and `shift` of shape [C]; None stands for 1 and for 0."""

    scale: Tensor | None = None
    shift: Tensor | None = None

    def __call__(self, logits: Tensor) -> Tensor:
        if self.scale is not None:
            logits = logits * self.scale.to(logits)
        if self.shift is not None:
            logits = logits + self.shift.to(logits)
        return logits

    def beside(self, other: Shaper) -> Shaper:
        """Both at once, in no order: scales multiply, shifts add up, and are added after the scale."""
        scale, shift = self.scale, self.shift
        if other.scale is not None:
            scale = other.scale if scale is None else scale * other.scale
        if other.shift is not None:
            shift = other.shift if shift is None else shift + other.shift
        return Shaper(scale, shift)


def prior_of(counts: Tensor) -> Tensor:
    """Class frequencies of a site in float64; all zero when the site has no sample."""
    counts = counts.to(torch.float64)
    return counts / counts.sum().clamp_min(1.0)


def prior_shift(prior: Tensor, tau: float = 1.0) -> Shaper:
    """`tau * log prior`: balanced softmax (tau = 1) and logit adjustment."""
    return Shaper(shift=tau * torch.log(prior.to(torch.float64) + PRIOR_FLOOR))


def quarter(counts: Tensor) -> Tensor:
    """n^(-1/4) in float64, finite for absent classes."""
    return counts.to(torch.float64).clamp_min(COUNT_FLOOR).pow(-0.25)


def margin_shift(counts: Tensor, tau: float = 1.0) -> Shaper:
    """`-tau * n^(-1/4)`: FedLC's margin, single-label."""
    return Shaper(shift=-tau * quarter(counts))


def binary_margin_shift(positives: Tensor, negatives: Tensor, tau: float = 1.0) -> Shaper:
    """`tau * (n0^(-1/4) - n1^(-1/4))`: FedLC's margin between the two sides of each label.

    A lacking side counts as half a sample.
    """
    no, yes = (quarter(count.clamp_min(SIDE_FLOOR)) for count in (negatives, positives))
    return Shaper(shift=tau * (no - yes))


def restriction(
    counts: Tensor, alpha: float = 0.5, mode: Literal["binary", "proportional"] = "binary"
) -> Shaper:
    """FedRS: logits of absent classes times `alpha`; or every logit by its count relative to the largest
    class."""
    counts = counts.to(torch.float64)
    presence = (counts > 0).to(torch.float64) if mode == "binary" else counts / counts.max().clamp_min(1.0)
    return Shaper(scale=alpha + (1.0 - alpha) * presence)


def positive_prior(positives: Tensor, total: int | Tensor) -> Tensor:
    """Share of positives per label, within [1/(2n), 1 - 1/(2n)] so that its log-odds are finite; 1/2 when n =
    0."""
    n = torch.as_tensor(total, dtype=torch.float64, device=positives.device).clamp_min(1.0)
    edge = 0.5 / n
    return (positives.to(torch.float64) / n).clamp(edge, 1.0 - edge)


def odds_shift(prior: Tensor, tau: float = 1.0) -> Shaper:
    """`tau * log(p / (1 - p))`: the two-class form of the prior shift; `prior` is the share of positives per
    label."""
    return Shaper(shift=tau * torch.logit(prior.to(torch.float64)))
