"""FedDisco: sites whose labels are far from balanced count less in the average.

Ye, Xu, Wang, et al., "FedDisco: Federated learning with discrepancy-aware collaboration", ICML 2023. With p_k
= n_k/Σn and d_k the discrepancy between the site's class shares and uniform ones, d̄_k = d_k/Σd over the
participants:
    ω_k ∝ ReLU(p_k − a d̄_k + b)
a = b = 0 is FedAvg. Sites first answer with d_k and n_k, of which only the sums are known; each then weighs
its own answer. Several labels per image do not compete: d_k is the mean, over the labels a site annotates, of
the discrepancy between (½, ½) and the shares of the label's negatives and positives.
Choices: every measure is normalised to sum to 1 (the published code does so for KL only); a < 1 and b ≥ 0, so
that some weight is always positive: Σ (p_k − a d̄_k + b) = 1 − a + b K. FedSDC does not state its a and b.
Leaves the site: discrepancy and samples (sums), delta, loss (means). Stays: class counts.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any, ClassVar, Literal

import torch
import torch.nn.functional as F
from pydantic import Field
from torch import Tensor

from equipoise.exchange import Ask
from equipoise.leaves import SAMPLES, Limit, Sum, Upload
from equipoise.methods.base import Method
from equipoise.nets import Net
from equipoise.site import Loc
from equipoise.tree import Tree, plus

MEASURES: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
    "kl": lambda share, target: torch.special.xlogy(share, share / target).sum(1),
    "l1": lambda share, target: (share - target).abs().sum(1),
    "l2": lambda share, target: (share - target).norm(dim=1),
    "cosine": lambda share, target: 1 - F.cosine_similarity(share, target, dim=1),
}
"""how far each row of shares is from the target"""


class FedDisco(Method):
    """FedAvg weighted by size less label discrepancy."""

    paper: ClassVar[str] = "Ye et al. 2023"
    neutral: ClassVar[dict[str, Any] | None] = {"a": 0.0, "b": 0.0}

    a: float = Field(0.5, ge=0, lt=1)
    """how much discrepancy counts"""
    b: float = Field(0.1, ge=0)
    """weight every site has anyway"""
    measure: Literal["kl", "l1", "l2", "cosine"] = "kl"
    """of discrepancy"""

    def round(self, server: Tree, ask: Ask) -> Tree:
        s = ask(self.discrepancy)
        up = ask(self.train, model=server["model"], discrepancy=s["discrepancy"], samples=s["samples"])
        return {**server, "model": plus(server["model"], up["delta"])}

    def limits(self, classes: int, epochs: int) -> Mapping[str, Limit]:
        return {
            "train.delta": Limit(images=1.0, total=self.b),
            "discrepancy.samples": SAMPLES,
            "discrepancy.discrepancy": Limit(plain=2 + math.log(classes)),
        }

    def distance(self, loc: Loc) -> Tensor:
        """d_k, a float64 scalar."""
        if loc.task == "single":
            counts = loc.counts[None]
        else:
            positives = loc.counts[loc.annotated]
            counts = torch.stack([loc.total[loc.annotated] - positives, positives], 1)
        share = counts / counts.sum(1, keepdim=True).clamp_min(1)
        distances = MEASURES[self.measure](share, torch.full_like(share, 1 / share.shape[1]))
        return (distances.sum() / max(1, len(distances))).clamp_min(0)

    def discrepancy(self, net: Net, loc: Loc) -> Upload:
        """Question: how far the site's class shares are from uniform, and its samples."""
        return {"discrepancy": Sum(self.distance(loc)), "samples": Sum(torch.tensor(loc.samples))}

    def weight(self, loc: Loc) -> float:
        """Σn · ReLU(p_k − a d̄_k + b): FedAvg's own weight, n_k, when a = b = 0."""
        total = float(loc.down["samples"])
        share = float(self.distance(loc)) / max(float(loc.down["discrepancy"]), 1e-12)
        return max(0.0, loc.samples - total * self.a * share + total * self.b)
