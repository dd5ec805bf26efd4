"""CBAFed: class-balanced adaptive pseudo-labels, and a model that keeps part of its past.

Li, Li, Wang, "Class balanced adaptive pseudo labeling for federated semi-supervised learning", CVPR 2023;
with partial labels as in Sun et al. (FedMLP), 2024. After `warmup` rounds on the labels there are, a missing
cell of class c is taken as positive where its prediction is above τ_c, as negative where it is below 1 − τ_c,
and is left out otherwise;
    τ_c = clip(p_c + offset − std(p), floor, ceiling),   p_c = Σ_k u_kc / Σ_k Σ_c u_kc
with u_kc the labels and pseudo-labels of class c that site k used in the round before: a class with few has a
lower threshold. For the first pseudo-labels p_c is the share of images that are labelled for c, so these p do
not add up to 1. Sites are weighted by the labels they used, Σ_c u_kc / C (by samples while there are no
pseudo-labels). The model of the first round is kept as w_res; every `every` rounds after it w ← (1 − a) w + a
w_res and w_res ← w, with a = `warm_residual`. The first round after warm-up keeps its model anew, and from
then on a = `residual`.
Choices: pseudo-labels are made once per round by the received model on plain images, as the paper does
(`pseudo = "batch"`: in every batch by the net as it learns, as FedMLP's code); the loss is the base loss, one
mean over all used cells (`terms = "sum"`: the base loss of the labels, plus for each missing class the mean
over its pseudo-labels, positives weighted by how few they are in the batch, as FedMLP's code); the residual
of labelled sites becomes the coordinator's. The rule for tail classes needs one label per image and is not
built.
Leaves the site: delta, loss (means), used labels per class (sum). Stays: nothing.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar, Literal

import torch
from pydantic import Field
from torch import Tensor

from equipoise.exchange import Ask
from equipoise.leaves import SAMPLES, Limit, Sum, Upload
from equipoise.losses.multilabel import pseudo_loss
from equipoise.methods.base import Method
from equipoise.nets import Net
from equipoise.site import Batch, Loc
from equipoise.tree import Tree, combine, plus


class CBAFed(Method):
    """Pseudo-labels under thresholds that balance classes."""

    paper: ClassVar[str] = "Li et al. 2023"
    tasks = ("multi",)
    recommends: ClassVar[dict[str, Any]] = {"objective": {"name": "bce", "pos_weight": True}}
    neutral: ClassVar[dict[str, Any] | None] = {"pseudo": "none", "every": 0}
    presets: ClassVar[dict[str, dict[str, Any]]] = {
        "fedmlp": {
            "warmup": 50,
            "pseudo": "batch",
            "terms": "sum",
            "every": 5,
            "warm_residual": 0.8,
            "residual": 0.5,
        },
    }

    warmup: int = Field(50, ge=0)
    """rounds before there are pseudo-labels"""
    pseudo: Literal["fixed", "batch", "none"] = "fixed"
    """pseudo-labels once per round, anew in every batch, or not at all"""
    terms: Literal["mean", "sum"] = "mean"
    """the loss: one mean over labels and pseudo-labels, or the labels' mean plus one mean per missing
    class"""
    offset: float = Field(0.45, ge=0, le=1)
    """what is added to a class's share of the labels"""
    floor: float = Field(0.55, ge=0.5, le=1)
    """lowest threshold"""
    ceiling: float = Field(0.95, ge=0.5, le=1)
    """highest threshold"""
    every: int = Field(5, ge=0)
    """rounds between two mixings with the past model; 0 = never"""
    warm_residual: float = Field(0.8, ge=0, le=1)
    """share of the past model at a mixing in warm-up"""
    residual: float = Field(0.5, ge=0, le=1)
    """and after it"""

    def init(self, net: Net, shared: Mapping[str, Tensor]) -> Tree:
        return super().init(net, shared) | {"share": torch.zeros(net.classes, dtype=torch.float64)}

    def round(self, server: Tree, ask: Ask) -> Tree:
        up = ask(self.train, model=server["model"], threshold=self.thresholds(server["share"]))
        used, images = up["used"], up.weight["delta"]
        share = used / (used.sum() if self.late(ask.round) else images).clamp_min(1)
        return {"share": share} | self.mixed(plus(server["model"], up["delta"]), server, ask.round)

    def mixed(self, model: Tree, server: Tree, round: int) -> Tree:
        """The next model, and the past one: first that of round 0, then that of the first round after
        warm-up."""
        if not self.every:
            return {"model": model}
        start, share = (0, self.warm_residual) if round < self.warmup else (self.warmup, self.residual)
        if round == start:
            return {"model": model, "past": model}
        if (round - start) % self.every:
            return {"model": model, "past": server["past"]}
        model = combine(lambda new, old: torch.lerp(new, old, share), model, server["past"])
        return {"model": model, "past": model}

    def limits(self, classes: int, epochs: int) -> Mapping[str, Limit]:
        return {"train.used": SAMPLES}

    def thresholds(self, share: Tensor) -> Tensor:
        """τ_c from the share of each class, [C]."""
        spread = share.std(correction=1) if len(share) > 1 else 0.0
        return (share + self.offset - spread).clamp(self.floor, self.ceiling)

    def late(self, round: int) -> bool:
        """Whether there are pseudo-labels in this round."""
        return self.pseudo != "none" and round >= self.warmup

    @torch.no_grad()
    def prepare(self, net: Net, loc: Loc) -> None:
        loc.scratch["used"] = torch.zeros(len(loc.classes), dtype=torch.float64)
        if self.pseudo == "fixed" and self.late(loc.round):
            loc.scratch["score"] = torch.cat([net(batch.x).sigmoid() for batch in loc.scan()])

    def loss(self, net: Net, batch: Batch, loc: Loc) -> Tensor:
        logits = net(batch.x)
        if not self.late(loc.round):
            loc.scratch["used"] += batch.known.sum(0).cpu()
            return loc.objective(logits, batch.y)
        if self.pseudo == "batch":
            p = logits.detach().sigmoid()
        else:
            p = loc.scratch["score"][batch.index.to(logits.device)]
        threshold, own = loc.down["threshold"].to(p), batch.known
        positive = p > threshold
        known = own | positive | (p < 1 - threshold)
        loc.scratch["used"] += known.sum(0).cpu()
        if self.terms == "sum":
            return loc.objective(logits, batch.y, own) + pseudo_loss(logits, positive, known & ~own)
        return loc.objective(logits, torch.where(own, batch.y, positive.to(batch.y)), known)

    def used(self, loc: Loc) -> Tensor:
        """Labels and pseudo-labels of each class in an epoch of this round, u_k [C]."""
        result: Tensor = loc.scratch["used"] / max(1, loc.options.epochs)
        return result

    def weight(self, loc: Loc) -> float:
        used = self.used(loc)
        return float(used.sum()) / len(used) if self.late(loc.round) else loc.samples

    def train(self, net: Net, loc: Loc) -> Upload:
        return super().train(net, loc) | {"used": Sum(self.used(loc))}
