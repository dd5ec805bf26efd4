"""CLIMB: no site's loss may be much above the mean of all.

Shen, Cervino, Hassani, Ribeiro, "An agnostic approach to federated learning with class imbalance", ICLR 2022.
Each site's constraint f_k ≤ mean f + ε has a multiplier λ_k ≥ 0 (0 at the start). Every `primal_rounds`
rounds, with f_k the loss of the received model on the site's training images:
    ω_k = 1 + λ_k − mean λ,    rounds of w ← w + Σ ω_k Δ_k / Σ ω_k,    λ_k ← clip(λ_k + η_d (f_k − mean f − ε)
    / K, 0, 100)
λ_k is kept by the site, and the coordinator learns only the sums of f and λ; means are over the participants
(K of them). Choices: one dual step per round, so that rounds compare with other methods' (published code: 5
rounds each); a weight below 0, possible when λ is very uneven, is 0; the base weights are uniform as
published (`by_samples` multiplies by n_k; with it η_d = 0 is FedAvg). A site that missed the dual step trains
with the weight of its last one, at first 1. Leaves the site: loss and multiplier (sums), delta, loss (means).
Stays: the multiplier λ_k and weight ω_k.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

import torch
from pydantic import Field

from equipoise.exchange import Ask
from equipoise.leaves import POSITIVE, Limit, Sum, Upload
from equipoise.methods.base import Method
from equipoise.nets import Net
from equipoise.site import Loc
from equipoise.tree import Tree, plus


class CLIMB(Method):
    """FedAvg that leans towards sites whose loss is above the mean."""

    paper: ClassVar[str] = "Shen et al. 2022"
    neutral: ClassVar[dict[str, Any] | None] = {"dual_lr": 0.0, "by_samples": True}
    presets: ClassVar[dict[str, dict[str, Any]]] = {
        "fediic": {"dual_lr": 0.1, "epsilon": 0.1},
        "fediic-real": {"dual_lr": 0.01, "epsilon": 0.1},
    }

    dual_lr: float = Field(1.0, ge=0)
    """step η_d of the multipliers"""
    epsilon: float = Field(1.0, ge=0)
    """how far above the mean a site's loss may be"""
    primal_rounds: int = Field(1, ge=1)
    """rounds between two steps of the multipliers"""
    largest: float = Field(100.0, gt=0)
    """upper bound of a multiplier"""
    by_samples: bool = False
    """multiply weights by the site's samples"""

    def round(self, server: Tree, ask: Ask) -> Tree:
        means: Tree = {}
        if ask.round % self.primal_rounds == 0:
            s = ask(self.constraint, model=server["model"])
            count = len(s.sites)
            means = {name: s[name] / count for name in ("loss", "multiplier")}
            means |= {"sites": torch.tensor(count)}
        up = ask(self.train, model=server["model"], **means)
        return {**server, "model": plus(server["model"], up["delta"])}

    def limits(self, classes: int, epochs: int) -> Mapping[str, Limit]:
        return {
            "train.delta": Limit(images=1 + self.largest)
            if self.by_samples
            else Limit(plain=1 + self.largest),
            "constraint.multiplier": Limit(plain=self.largest),
            "constraint.loss": POSITIVE,
        }

    def init_site(self, net: Net, loc: Loc) -> Tree:
        one = torch.ones((), dtype=torch.float64)
        return {"multiplier": 0 * one, "weight": one, "loss": 0 * one}

    @torch.no_grad()
    def constraint(self, net: Net, loc: Loc) -> Upload:
        """Question: mean loss of the received model on the site's training images, and the site's
        multiplier."""
        losses = torch.cat([loc.objective.each(net(batch.x), batch.y).cpu().double() for batch in loc.scan()])
        loc.mine = loc.mine | {"loss": losses.mean()}
        return {"loss": Sum(loc.mine["loss"]), "multiplier": Sum(loc.mine["multiplier"])}

    def train(self, net: Net, loc: Loc) -> Upload:
        if "multiplier" in loc.down:
            self._dual_step(loc)
        return super().train(net, loc)

    def weight(self, loc: Loc) -> float:
        return float(loc.mine["weight"]) * (loc.samples if self.by_samples else 1)

    def _dual_step(self, loc: Loc) -> None:
        """ω_k from the present multipliers, then the next λ_k."""
        multiplier, above = loc.mine["multiplier"], loc.mine["loss"] - loc.down["loss"]
        weight = (1 + multiplier - loc.down["multiplier"]).clamp_min(0)
        step = self.dual_lr * (above - self.epsilon) / loc.down["sites"]
        loc.mine = loc.mine | {"weight": weight, "multiplier": (multiplier + step).clamp(0, self.largest)}
        loc.note("multiplier", float(loc.mine["multiplier"]))
