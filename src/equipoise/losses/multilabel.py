"""Losses for several labels per image, of which some may be missing: `logits` and `y` [N, C].

A cell of `y` is 0, 1, or NaN where the image has no label for the class. `mask` says which cells count: bool
[C] (classes) or [N, C] (single cells); None counts all.
`over` is what the sum is divided by: the cells that count ("labelled") or all N·C ("all", as FedMLP does).
"""

from __future__ import annotations

from typing import Literal

import torch
import torch.nn.functional as F
from torch import Tensor

from equipoise.losses.shaping import SIDE_FLOOR
from equipoise.losses.single import effective_weight, ldam_margin

Over = Literal["labelled", "all"]
BLANK = 0.0
"""what `filled` puts where there is no label; no result depends on it"""


def known(y: Tensor) -> Tensor:
    """bool, as `y`: the cells that have a label."""
    return ~y.isnan()


def filled(y: Tensor) -> Tensor:
    """The targets with a number in every cell, so that a loss can be computed; where there is no label it
    must count nowhere."""
    return y.nan_to_num(BLANK)


def masked_mean(cells: Tensor, mask: Tensor | None = None, over: Over = "labelled") -> Tensor:
    """Mean of the cells that count; 0 (still part of the graph) when none does."""
    if mask is None:
        return cells.mean()
    mask = mask.to(cells.device).expand_as(cells)
    total = cells.masked_fill(~mask, 0.0).sum()
    return total / (cells.numel() if over == "all" else mask.sum().clamp_min(1))


def positive_weight(positives: Tensor, total: int | Tensor, labelled: Tensor | None = None) -> Tensor:
    """Weight n/positives of the positive side, from observed labels only; 1 for labels unknown or never
    positive."""
    positives = positives.to(torch.float64)
    known = positives > 0 if labelled is None else (positives > 0) & labelled
    return torch.where(known, torch.as_tensor(total, device=positives.device) / positives.clamp_min(1.0), 1.0)


def bce_cells(logits: Tensor, y: Tensor, pos_weight: Tensor | None = None) -> Tensor:
    """Binary cross-entropy of every cell, [N, C]."""
    weight = None if pos_weight is None else pos_weight.to(logits)
    return F.binary_cross_entropy_with_logits(logits, y.to(logits.dtype), pos_weight=weight, reduction="none")


def side_margin(sides: Tensor, max_margin: float = 0.5) -> Tensor:
    """LDAM's margins within each label, [C, 2]: of its negatives and positives (`sides`) the rarer has
    `max_margin`.

    A lacking side counts as half a sample, so that the margin of the other stays small.
    """
    return ldam_margin(sides.clamp_min(SIDE_FLOOR), max_margin)


def side_weight(sides: Tensor, beta: float = 0.9999) -> Tensor:
    """Weights of the two sides of each label by effective number, [C, 2].

    Their mean over the images of a label is 1, so that no label gains on another.
    """
    weight = effective_weight(sides, beta)
    mean = (weight * sides).sum(-1, keepdim=True) / sides.sum(-1, keepdim=True)
    return torch.where(mean > 0, weight / mean, 1.0)


def ldam_cells(
    logits: Tensor, y: Tensor, margin: Tensor, scale: float = 30.0, weight: Tensor | None = None
) -> Tensor:
    """LDAM per label, [N, C]: binary cross-entropy of `z - s m1` for positives and of `z + s m0` for
    negatives.

    `logits` are `scale * cos`; `margin` and `weight` [C, 2] are those of negatives and positives, see
    `side_margin` and `side_weight`.
    """
    negative, positive = (scale * margin.to(logits)).unbind(1)
    cells = bce_cells(logits - torch.where(y > 0, positive, -negative), y)
    if weight is None:
        return cells
    negative, positive = weight.to(cells).unbind(1)
    return cells * torch.where(y > 0, positive, negative)


def masked_bce(
    logits: Tensor,
    y: Tensor,
    mask: Tensor | None = None,
    pos_weight: Tensor | None = None,
    over: Over = "labelled",
) -> Tensor:
    """Binary cross-entropy over the cells that count and have a label."""
    cells = bce_cells(logits, filled(y), pos_weight)
    return masked_mean(cells, known(y) if mask is None else mask.to(y.device) & known(y), over)


def class_means(features: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
    """Mean feature of the negatives and of the positives of every label, [C, 2, d], and how many there were,
    [C, 2]; an image without the label is neither."""
    member = torch.stack([1 - y, y], 1).nan_to_num(0.0)
    count = member.sum(0).T
    return torch.einsum("nkc,nd->ckd", member, features) / count.clamp_min(1)[..., None], count


def pseudo_loss(logits: Tensor, positive: Tensor, chosen: Tensor) -> Tensor:
    """Σ over classes of the mean over chosen cells, with positives weighted by chosen cells per positive."""
    count, positives = chosen.sum(0), (chosen & positive).sum(0)
    weight = torch.where(positives > 0, count / positives.clamp_min(1), 1.0)
    cells = bce_cells(logits, positive, pos_weight=weight).masked_fill(~chosen, 0.0)
    return (cells.sum(0) / count.clamp_min(1)).sum()
