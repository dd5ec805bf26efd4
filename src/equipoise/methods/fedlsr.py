"""FedLSR: local self-regularisation against noisy labels.

Jiang, Sun, Wang, Liu, "Towards federated learning against noisy labels via local self-regularization", CIKM
2022. Two views of every image, logits z_1 and z_2; m ~ U(0, 1) is drawn for every batch, p = m softmax(z_1) +
      (1 − m) softmax(z_2) is sharpened to
p_s ∝ p^sharpen, and with q_i = softmax(z_i / T_d)
    L = CE(p_s, y) + γ_r JS(q_1, q_2) [+ λ_e H(q), the mean of both views: "FedLSR+"],   γ_r = γ min(r /
    warmup, 1).
With several labels per image (so Sun et al., FedMLP, 2024) every label is a Bernoulli variable: sigmoids in
place of softmax, the sharpened p_s = σ(sharpen · logit p), and JS as the mean over cells. It needs no labels,
so missing classes take part in it. Choices: CE is the base loss, given log p_s (logit p_s) as logits, so
other base losses compose. `variant = "released"` gives it the probability p_s itself (a second softmax or
sigmoid follows), divides the single-label JS by the number of classes, and with several labels takes the
positive side of each alone: ½ (q_1 log(q_1/m) + q_2 log(q_2/m)), m = (q_1 + q_2)/2, the mean over cells.
FedMLP's row also trains missing labels as negatives, which no preset can say: set
train.objective = {name = "bce", missing = "negative", pos_weight = true}.
Leaves the site: delta, loss (means), as FedAvg. Stays: nothing.
"""

from __future__ import annotations

from typing import Any, ClassVar, Literal

import torch
import torch.nn.functional as F
from pydantic import Field
from torch import Tensor

from equipoise.methods.base import Method
from equipoise.nets import Net
from equipoise.site import Batch, Loc

LEAST = 1e-6
"""smallest probability inside a logarithm"""


class FedLSR(Method):
    """Two views are mixed for the label, and must agree with each other."""

    paper: ClassVar[str] = "Jiang et al. 2022"
    views = ("weak", "weak")
    presets: ClassVar[dict[str, dict[str, Any]]] = {
        "fedmlp": {"gamma": 0.4, "warmup": 40, "sharpen": 2.0, "entropy": 0.0, "variant": "released"},
    }

    gamma: float = Field(0.4, ge=0)
    """weight of the agreement between views, once it has risen"""
    warmup: int | None = Field(None, ge=0)
    """rounds over which it rises; none = a fifth of the run"""
    sharpen: float = Field(2.0, gt=0)
    """exponent of the mixed prediction; 1 = as it is"""
    temperature: float = Field(1 / 3, gt=0)
    """T_d of the predictions that must agree"""
    entropy: float = Field(0.0, ge=0)
    """λ_e: weight of their entropy (0.6 in FedLSR+, for extreme noise)"""
    variant: Literal["paper", "released"] = "paper"
    """the loss of the paper or of the published code"""

    def prepare(self, net: Net, loc: Loc) -> None:
        loc.scratch["draw"] = loc.generator("mix")

    def loss(self, net: Net, batch: Batch, loc: Loc) -> Tensor:
        single, (a, b) = loc.task == "single", (net(x) for x in batch.views[:2])
        share = torch.rand((), generator=loc.scratch["draw"])
        mixed = self.sharpen * (mix if single else mix_odds)(a, b, share)
        if self.variant == "released":
            mixed = mixed.softmax(1) if single else mixed.sigmoid()
        total = loc.objective(mixed, batch.y)
        total = total + self.strength(loc) * self.agreement(a, b, single)
        if self.entropy == 0:
            return total
        return total + self.entropy * 0.5 * sum(entropy(self.soft(z, single)) for z in (a, b))

    def agreement(self, a: Tensor, b: Tensor, single: bool) -> Tensor:
        """JS(q_1, q_2)."""
        p, q = (self.soft(z, single) for z in (a, b))
        if self.variant == "paper":
            return jensen_shannon(p, q)
        if single:
            return jensen_shannon(p, q) / a.shape[1]
        return jensen_shannon(p[..., :1], q[..., :1])

    def soft(self, logits: Tensor, single: bool) -> Tensor:
        """q: distributions along the last dimension, [B, C] or, for several labels, [B, C, 2]."""
        z = logits / self.temperature
        return (z.softmax(1) if single else torch.stack([z, -z], -1).sigmoid()).clamp_min(LEAST)

    def strength(self, loc: Loc) -> float:
        """γ_r."""
        rounds = 0.2 * loc.rounds if self.warmup is None else self.warmup
        return self.gamma * (min(loc.round / rounds, 1.0) if rounds else 1.0)


def mix(a: Tensor, b: Tensor, m: Tensor) -> Tensor:
    """log(m softmax(a) + (1 − m) softmax(b))."""
    return torch.logaddexp(a.log_softmax(1) + m.log(), b.log_softmax(1) + (1 - m).log())


def mix_odds(a: Tensor, b: Tensor, m: Tensor) -> Tensor:
    """logit(m σ(a) + (1 − m) σ(b))."""
    yes, no = (
        torch.logaddexp(F.logsigmoid(s * a) + m.log(), F.logsigmoid(s * b) + (1 - m).log()) for s in (1, -1)
    )
    return yes - no


def entropy(p: Tensor) -> Tensor:
    """Of distributions along the last dimension, the mean over all others."""
    return -(p * p.log()).sum(-1).mean()


def jensen_shannon(p: Tensor, q: Tensor) -> Tensor:
    """H((p + q)/2) − (H(p) + H(q))/2."""
    return entropy((p + q) / 2) - 0.5 * (entropy(p) + entropy(q))
