"""Losses for one label per image: `logits` [N, C], `y` int64 [N].

`reduction` is "mean" or "none" (one loss per image). With class weights the mean is the weighted one, Σ
w·loss / Σ w.
"""

from __future__ import annotations

from typing import Literal

import torch
import torch.nn.functional as F
from torch import Tensor

from equipoise.losses.shaping import quarter

Reduction = Literal["mean", "none"]

ABSENT = -1e9
"""logit of a class that is left out: its softmax is exactly 0, and unlike -inf it can be scaled and
shifted"""


def among(logits: Tensor, present: Tensor) -> Tensor:
    """Logits whose softmax is over the present classes (bool [C]) alone."""
    return logits.masked_fill(~present.to(logits.device), ABSENT)


def focus(loss: Tensor, gamma: float) -> Tensor:
    """`(1 - p)^gamma * loss` for losses that are `-log p`: the focal factor, for softmax and sigmoid
    alike."""
    # The clamp keeps the gradient finite for gamma < 1 where p rounds to one.
    miss = (-torch.expm1(-loss)).clamp_min(torch.finfo(loss.dtype).tiny)
    return miss.pow(gamma) * loss


def focal(logits: Tensor, y: Tensor, gamma: float = 2.0, reduction: Reduction = "mean") -> Tensor:
    """`-(1 - p_y)^gamma * log p_y` (Lin et al. 2017)."""
    loss = focus(F.cross_entropy(logits, y, reduction="none"), gamma)
    return loss if reduction == "none" else loss.mean()


def effective_weight(counts: Tensor, beta: float = 0.9999) -> Tensor:
    """`(1 - beta) / (1 - beta^n)` scaled to sum to the number of present classes; 0 for absent ones.

    `beta` = 0 weighs all present classes alike, `beta` = 1 (the limit) by inverse frequency. Classes are the
    last dimension.
    """
    n = counts.to(torch.float64)
    present = n > 0
    n = n.clamp_min(1.0)
    weight = 1.0 / n if beta == 1.0 else (1.0 - beta) / (1.0 - beta**n)
    weight = weight * present
    total = weight.sum(-1, keepdim=True).clamp_min(torch.finfo(weight.dtype).tiny)
    return weight * (present.sum(-1, keepdim=True) / total)


def weighted(loss: Tensor, y: Tensor, weight: Tensor, reduction: Reduction) -> Tensor:
    """Losses [N] times the weight of their class, and their weighted mean (0 where all weights are 0)."""
    each = weight.to(loss)[y]
    if reduction == "none":
        return each * loss
    return (each * loss).sum() / each.sum().clamp_min(torch.finfo(loss.dtype).tiny)


def class_balanced(
    logits: Tensor, y: Tensor, counts: Tensor, beta: float = 0.9999, reduction: Reduction = "mean"
) -> Tensor:
    """Cross-entropy weighted by the effective number of samples per class (Cui et al. 2019)."""
    loss = F.cross_entropy(logits, y, reduction="none")
    return weighted(loss, y, effective_weight(counts, beta), reduction)


def ldam_margin(counts: Tensor, max_margin: float = 0.5) -> Tensor:
    """`max_margin * n^(-1/4)` relative to the rarest present class (classes: last dimension); 0 for absent
    ones."""
    margin = quarter(counts) * (counts > 0)
    return max_margin * margin / margin.amax(-1, keepdim=True).clamp_min(torch.finfo(margin.dtype).tiny)


def ldam(
    logits: Tensor,
    y: Tensor,
    counts: Tensor,
    max_margin: float = 0.5,
    scale: float = 30.0,
    weight: Tensor | None = None,
    reduction: Reduction = "mean",
) -> Tensor:
    """Cross-entropy of `scale * (cos - margin on the true class)` (Cao et al. 2019).

    `logits` are `scale * cos`, as a cosine head of that scale gives them, and whatever was added to them
    since. `weight` [C] is the deferred re-weighting, see `effective_weight`.
    """
    margin = scale * ldam_margin(counts, max_margin).to(logits)
    shaped = logits - margin * F.one_hot(y, logits.shape[1])
    if weight is None:
        return F.cross_entropy(shaped, y, reduction=reduction)
    return weighted(F.cross_entropy(shaped, y, reduction="none"), y, weight, reduction)


def strict_cross_entropy(logits: Tensor, y: Tensor, reduction: Reduction = "mean") -> Tensor:
    """Cross-entropy whose denominator leaves out the true class, as FedLC prints it; unbounded below."""
    true = F.one_hot(y, logits.shape[1]).bool()
    others = logits.masked_fill(true, -torch.inf).logsumexp(1)
    loss = others - logits.gather(1, y[:, None])[:, 0]
    return loss if reduction == "none" else loss.mean()


def kl(teacher: Tensor, student: Tensor) -> Tensor:
    """KL(teacher ‖ student) of two sets of logits: sum over classes, mean over the batch.

    The caller detaches the side that shall not learn.
    """
    log_p, log_q = F.log_softmax(student, dim=1), F.log_softmax(teacher, dim=1)
    return F.kl_div(log_p, log_q, reduction="batchmean", log_target=True)
