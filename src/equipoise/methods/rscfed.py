"""RSCFed: random sampling consensus among sites.

Liang, Lin, Fu, Zhu, Li, "RSCFed: Random sampling consensus federated semi-supervised learning", CVPR 2022;
with partial labels as in Sun et al. (FedMLP), 2024. Every site trains once. The coordinator then draws M
groups of m sites; in a group, with w̄ the mean model, d_k = Σ over tensors ‖w_k − w̄‖ and n_k samples,
    ω_k ∝ p_k exp(−β d_k / n_k),   w_group = Σ ω_k w_k,   and the new model is the mean of the M group models.
Locally, where a site misses labels: base loss (view 1) + λ · mean over missing cells of (σ(student, view 1) −
σ(teacher, view 2))², with a mean teacher that follows every step (θ_T ← α θ_T + (1 − α) θ) and is never
reset. Choices: groups are drawn among the sites that answered, m = min(group, K − 1) of them; w̄ weighs sites
by samples as the paper does (`centre = "uniform"` as FedMLP's code); the paper trains a site anew in each
group it is drawn for, here and in FedMLP it trains once; the teacher predicts in eval mode and without the
paper's early ramp of α; all sites have labels, so no site counts as unlabelled. A site without missing
labels, as in single-label tasks, trains with the base loss alone: the consensus remains. With β = 0 and one
group of all sites this is FedAvg, and no single model is shown. Leaves the site: delta and samples (each: the
coordinator sees every site's model), loss (mean). Stays: teacher.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar, Literal

import torch
from pydantic import Field
from torch import Tensor

from equipoise.exchange import Ask
from equipoise.leaves import Limit, Upload
from equipoise.losses import masked_mean
from equipoise.methods.base import Method
from equipoise.methods.parts.apart import COUNTED, Change, blend, distance, shown
from equipoise.methods.parts.teacher import Teacher
from equipoise.nets import Net
from equipoise.site import Batch, Loc
from equipoise.tree import Tree, plus


class RSCFed(Method):
    """The mean of many small consensuses, in which sites far from the others count less."""

    paper: ClassVar[str] = "Liang et al. 2022"
    views = ("weak", "weak")
    recommends: ClassVar[dict[str, Any]] = {"objective": {"name": "bce", "pos_weight": True}}
    neutral: ClassVar[dict[str, Any] | None] = {"groups": 1, "group": 0, "beta": 0.0, "strength": 0.0}
    presets: ClassVar[dict[str, dict[str, Any]]] = {
        "fedmlp": {
            "groups": 10,
            "group": 6,
            "beta": 0.01,
            "centre": "uniform",
            "strength": 1.0,
            "decay": 0.999,
        },
    }

    groups: int = Field(10, ge=1)
    """M: groups drawn per round"""
    group: int = Field(6, ge=0)
    """m: sites in a group, at most all but one; 0 = all"""
    beta: float = Field(0.01, ge=0)
    """how strongly distance from the group's mean counts against a site"""
    centre: Literal["samples", "uniform"] = "samples"
    """how a group's mean model weighs its sites"""
    strength: float = Field(1.0, ge=0)
    """λ: consistency with the teacher where labels are missing"""
    decay: float = Field(0.999, ge=0, le=1)
    """α: how much of itself the teacher keeps at each step"""

    @property
    def averages(self) -> bool:
        """Whether the consensus is the plain mean, so that no single model has to be seen."""
        return self.beta == 0 and self.group == 0

    def round(self, server: Tree, ask: Ask) -> Tree:
        if self.averages:
            return super().round(server, ask)
        up = ask(self.train, model=server["model"])
        samples = torch.stack(list(up["samples"].values())).double()
        weight = self.consensus(up["delta"], samples, ask.generator("groups"))
        return {**server, "model": plus(server["model"], blend(up["delta"], weight))}

    def limits(self, classes: int, epochs: int) -> Mapping[str, Limit]:
        return {"train.samples": COUNTED}

    def consensus(self, changes: Mapping[str, Change], samples: Tensor, draw: torch.Generator) -> Tensor:
        """The weight of each site in the mean of all groups' models, float64 [K]."""
        names, total = list(changes), torch.zeros(len(changes), dtype=torch.float64)
        size = min(self.group, max(1, len(names) - 1)) or len(names)
        for _ in range(self.groups):
            chosen = torch.randperm(len(names), generator=draw)[:size].sort().values
            group, n = {names[i]: changes[names[i]] for i in chosen.tolist()}, samples[chosen]
            base = n if self.centre == "samples" else torch.ones_like(n)
            mean = blend(group, base / base.sum())
            far = torch.tensor([distance(change, mean) for change in group.values()], dtype=torch.float64)
            # As a softmax: p_k exp(−β d_k / n_k) alone would vanish for a large β.
            total[chosen] += (n.log() - self.beta * far / n).softmax(0)
        return total / self.groups

    def prepare(self, net: Net, loc: Loc) -> None:
        if self.strength > 0 and loc.labelled is not None:
            loc.scratch["teacher"] = Teacher(net, loc, self.decay)

    def fit(self, net: Net, loc: Loc) -> float:
        teacher = loc.scratch.get("teacher")
        return loc.fit(net, self.loss, after=teacher.follow if teacher else None)

    def train(self, net: Net, loc: Loc) -> Upload:
        up = super().train(net, loc)
        return up if self.averages else shown(up, loc)

    def loss(self, net: Net, batch: Batch, loc: Loc) -> Tensor:
        logits = net(batch.x)
        total = loc.objective(logits, batch.y)
        if "teacher" not in loc.scratch:
            return total
        guide = loc.scratch["teacher"](batch.views[-1]).sigmoid()
        return total + self.strength * masked_mean((logits.sigmoid() - guide) ** 2, ~batch.known)
