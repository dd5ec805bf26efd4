"""Published losses, composed of our parts as an objective composes them: held against numbers by hand."""

from __future__ import annotations

from typing import Literal

import torch.nn.functional as F
from torch import Tensor

from equipoise.losses.multilabel import Over, bce_cells, masked_bce, masked_mean
from equipoise.losses.shaping import binary_margin_shift, margin_shift, odds_shift, prior_shift, restriction
from equipoise.losses.single import Reduction, focus, strict_cross_entropy


def balanced_softmax(logits: Tensor, y: Tensor, prior: Tensor, reduction: Reduction = "mean") -> Tensor:
    """Cross-entropy of `z + log prior` (Ren et al. 2020); counts and frequencies give the same loss."""
    return F.cross_entropy(prior_shift(prior)(logits), y, reduction=reduction)


def logit_adjustment(
    logits: Tensor, y: Tensor, prior: Tensor, tau: float = 1.0, reduction: Reduction = "mean"
) -> Tensor:
    """Cross-entropy of `z + tau * log prior` (Menon et al. 2021)."""
    return F.cross_entropy(prior_shift(prior, tau)(logits), y, reduction=reduction)


def fedlc(
    logits: Tensor,
    y: Tensor,
    counts: Tensor,
    tau: float = 1.0,
    strict: bool = False,
    reduction: Reduction = "mean",
) -> Tensor:
    """Cross-entropy of `z - tau * n^(-1/4)` (FedLC, Zhang et al. 2022)."""
    shaped = margin_shift(counts, tau)(logits)
    return (
        strict_cross_entropy(shaped, y, reduction)
        if strict
        else F.cross_entropy(shaped, y, reduction=reduction)
    )


def fedrs(
    logits: Tensor,
    y: Tensor,
    counts: Tensor,
    alpha: float = 0.5,
    mode: Literal["binary", "proportional"] = "binary",
    reduction: Reduction = "mean",
) -> Tensor:
    """Cross-entropy with the logits of absent classes times `alpha` (FedRS, Li & Zhan 2021)."""
    return F.cross_entropy(restriction(counts, alpha, mode)(logits), y, reduction=reduction)


def adjusted_bce(
    logits: Tensor, y: Tensor, prior: Tensor, mask: Tensor | None = None, over: Over = "labelled"
) -> Tensor:
    """Binary cross-entropy of `z + log(p1 / p0)`, `prior` being p1 per label (FedMLP Eq. 3-4); see
    `positive_prior`."""
    return masked_bce(odds_shift(prior)(logits), y, mask, over=over)


def masked_focal(
    logits: Tensor, y: Tensor, gamma: float = 2.0, mask: Tensor | None = None, over: Over = "labelled"
) -> Tensor:
    """Sigmoid focal loss over the cells that count."""
    return masked_mean(focus(bce_cells(logits, y), gamma), mask, over)


def fedlc_bce(
    logits: Tensor,
    y: Tensor,
    positives: Tensor,
    negatives: Tensor,
    tau: float = 1.0,
    mask: Tensor | None = None,
    over: Over = "labelled",
) -> Tensor:
    """Binary cross-entropy with FedLC's margin between the two sides of each label."""
    return masked_bce(binary_margin_shift(positives, negatives, tau)(logits), y, mask, over=over)
