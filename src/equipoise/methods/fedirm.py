"""FedIRM: sites align how classes relate to each other.

Liu, Yang, Dou, Heng, "Federated semi-supervised medical image classification via inter-client relation
matching", MICCAI 2021; with partial labels as in Sun et al. (FedMLP), 2024, where every site is both teacher
and pupil. Row c of a relation matrix is R_c = σ(mean logits of the positives of c / T). Warm-up rounds train
with the base loss, summed over both views. From the last of them on, sites answer with the rows of the
classes they label, and row c of R* is the mean over those sites, weighted by samples. After it:
    L = Σ_views base loss + λ(r) [ 1/B Σ (σ(z) − σ(z_teacher))² + 1/C Σ_c ½ (KL(R*_c ‖ R^u_c) + KL(R^u_c ‖
    R*_c)) ]
with a mean teacher on the second view and all classes, λ(r) = strength · exp(−5 (1 − min(r, ramp)/ramp)²),
and R^u from the pseudo-labels 1[p > ½] of those images of the batch whose classes are all decided (p < low
or p > high) and whose entropy is small. The teacher starts as the model a site receives when warm-up ends.
Choices: the KL is that of Bernoulli variables, summed along a row (`kl = "released"`: of rows of sigmoids as
if they summed to 1); a row without pseudo-positives, or unknown in R*, adds 0 (the released code adds a
constant, so the gradients are the same); a site's rows are measured on plain images after training (released:
the mean over training batches); the teacher predicts in eval mode, follows without an early ramp, and its
entropy is not sampled by dropout. Sites are weighted by samples. Only several-label tasks have sites with
missing labels here.
Leaves the site: delta, loss (means); from the last warm-up round relation (mean masked by class). Stays:
teacher.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar, Literal

import torch
import torch.nn.functional as F
from pydantic import Field
from torch import Tensor

from equipoise.exchange import Ask
from equipoise.leaves import Mean, Upload
from equipoise.losses import bce_cells, class_means
from equipoise.methods.base import Method
from equipoise.methods.parts.teacher import Teacher, rise
from equipoise.nets import Net
from equipoise.site import Batch, Loc
from equipoise.tree import Tree, plus

EDGE = 1e-6
"""how near a relation may come to 0 and 1"""


class FedIRM(Method):
    """A mean teacher, and class relations that all sites share."""

    paper: ClassVar[str] = "Liu et al. 2021"
    tasks = ("multi",)
    views = ("weak", "weak")
    recommends: ClassVar[dict[str, Any]] = {"objective": {"name": "bce", "pos_weight": True}}
    presets: ClassVar[dict[str, dict[str, Any]]] = {
        "fedmlp": {
            "warmup": 20,
            "ramp": 30,
            "strength": 1.0,
            "decay": 0.99,
            "temperature": 2.0,
            "kl": "released",
        },
    }

    warmup: int = Field(20, ge=0)
    """rounds of the base loss alone"""
    ramp: int = Field(30, ge=0)
    """rounds, from the start of the run, over which λ rises"""
    strength: float = Field(1.0, ge=0)
    """λ once it has risen (15 in the original)"""
    decay: float = Field(0.99, ge=0, le=1)
    """how much of itself the teacher keeps at each step"""
    temperature: float = Field(2.0, gt=0)
    """T of the relations"""
    low: float = Field(0.3, ge=0, le=0.5)
    """a prediction below this counts as decided"""
    high: float = Field(0.7, ge=0.5, le=1)
    """and so does one above this"""
    entropy: float = Field(2.0, gt=0)
    """an image with more than this, in nats summed over classes, has no pseudo-labels"""
    kl: Literal["bernoulli", "released"] = "bernoulli"
    """divergence of relations: of Bernoulli variables, or as the published code applies it"""

    def init(self, net: Net, shared: Mapping[str, Tensor]) -> Tree:
        return super().init(net, shared) | {"relation": torch.zeros(net.classes, net.classes)}

    def phases(self, rounds: int) -> Sequence[int]:
        return (0, self.warmup - 1) if 1 < self.warmup <= rounds else (0,)

    def round(self, server: Tree, ask: Ask) -> Tree:
        up = ask(self.train, **server)
        model = plus(server["model"], up["delta"])
        if ask.round < self.warmup - 1:
            return server | {"model": model}
        seen = up.weight["relation"][:, None] > 0
        return {"model": model, "relation": torch.where(seen, up["relation"], server["relation"])}

    def prepare(self, net: Net, loc: Loc) -> None:
        if loc.round >= self.warmup and self.strength > 0:
            loc.scratch["teacher"] = Teacher(net, loc, self.decay)

    def fit(self, net: Net, loc: Loc) -> float:
        teacher = loc.scratch.get("teacher")
        return loc.fit(net, self.loss, after=teacher.follow if teacher else None)

    def train(self, net: Net, loc: Loc) -> Upload:
        up = super().train(net, loc)
        return up | {"relation": self._relation(net, loc)} if loc.round >= self.warmup - 1 else up

    def loss(self, net: Net, batch: Batch, loc: Loc) -> Tensor:
        logits = [net(x) for x in batch.views]
        total = torch.stack([loc.objective(z, batch.y) for z in logits]).sum()
        if loc.round < self.warmup or self.strength == 0:
            return total
        guide = loc.scratch["teacher"](batch.views[-1]).sigmoid()
        apart = ((logits[0].sigmoid() - guide) ** 2).sum(1).mean()
        apart = apart + self.mismatch(logits[0], loc.down["relation"].to(logits[0]))
        result: Tensor = total + self.strength * rise(loc.round, self.ramp) * apart
        return result

    def mismatch(self, logits: Tensor, known: Tensor) -> Tensor:
        """½ (KL(R* ‖ R^u) + KL(R^u ‖ R*)), the mean over all rows; 0 for a row that one of them lacks."""
        p = logits.detach().sigmoid()
        certain = bce_cells(logits.detach(), p).sum(1) < self.entropy
        decided = ((p < self.low) | (p > self.high)).all(1) & certain
        positive = (decided[:, None] & (p > 0.5)).to(logits)
        count = positive.sum(0)
        row = positive.T @ logits / count.clamp_min(1)[:, None] / self.temperature
        # KL(a ‖ b) + KL(b ‖ a) = Σ (a − b)(f(a) − f(b)), f being the log-odds for Bernoulli variables and the
        # log for rows.
        goal = known.clamp(EDGE, 1 - EDGE)
        gap = goal.logit() - row if self.kl == "bernoulli" else goal.log() - F.logsigmoid(row)
        both = (count > 0) & (known > 0).any(1)
        rows = 0.5 * ((goal - row.sigmoid()) * gap).sum(1)
        return rows.masked_fill(~both, 0.0).mean()

    @torch.no_grad()
    def _relation(self, net: Net, loc: Loc) -> Mean:
        """The rows of the classes the site labels and has seen, under the trained local net."""
        logits = torch.cat([net(batch.x).cpu() for batch in loc.scan()])
        means, count = class_means(logits, loc.train.labels)
        shows = count[:, 1] > 0
        return Mean((means[:, 1] / self.temperature).sigmoid(), loc.total * shows.double())
