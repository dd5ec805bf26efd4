"""FedBABU: the body alone is federated, under a random head that never moves; sites fine-tune at the end.

Oh, Kim, Yun, "FedBABU: Toward enhanced representation for federated image classification", ICLR 2022,
Algorithm 1. The head is drawn once, is the same everywhere, and stays out of the optimiser during federation
(no momentum or weight decay touches it). At the end every site fine-tunes the whole model (or a part of it)
on its own images, at the last round's rate; that model is its own predictor, whatever `evaluate.own` says,
and stays with it. Generalisation is the federated body under the frozen head. The published code averages
sites without weights (`uniform`). Leaves the site: delta of the body, loss (means); of fine-tuning only the
loss. Stays: the fine-tuned model.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any, ClassVar, Literal

import torch
from pydantic import Field

from equipoise.exchange import Ask
from equipoise.leaves import ONE, Limit, Mean, Upload
from equipoise.methods.base import PERSONAL, Method
from equipoise.methods.fedrep import of_head
from equipoise.nets import Net, state
from equipoise.site import Loc
from equipoise.tree import Tree, plus


class FedBABU(Method):
    """A shared body under a frozen head, then fine-tuning at each site."""

    paper: ClassVar[str] = "Oh et al. 2022"
    presets: ClassVar[dict[str, dict[str, Any]]] = {"fca": {}, "released": {"uniform": True}}

    uniform: bool = False
    """all sites weigh the same; off = by samples"""
    tune_epochs: int = Field(5, ge=0)
    """epochs of fine-tuning after the last round"""
    tune_part: Literal["all", "body", "head"] = "all"
    """what is fine-tuned"""

    def round(self, server: Tree, ask: Ask) -> Tree:
        up = ask(self.train, model=server["model"])
        body = {name: tensor for name, tensor in server["model"].items() if not of_head(name)}
        return {**server, "model": server["model"] | plus(body, up["delta"])}

    def fit(self, net: Net, loc: Loc) -> float:
        return loc.fit(net, self.loss, only=lambda name: not of_head(name))

    def limits(self, classes: int, epochs: int) -> Mapping[str, Limit]:
        return {"train.delta": ONE} if self.uniform else {}

    def train(self, net: Net, loc: Loc) -> Upload:
        up = super().train(net, loc)
        body = {name: delta for name, delta in loc.delta(net).items() if not of_head(name)}
        return up | {"delta": replace(up["delta"], value=body)}

    def weight(self, loc: Loc) -> float:
        return 1.0 if self.uniform else loc.samples

    def finish(self, server: Tree, ask: Ask) -> Tree:
        server = super().finish(server, ask)
        if self.tune_epochs:
            ask(self.tune, model=server["model"])
        return server

    def tune(self, net: Net, loc: Loc) -> Upload:
        """Question: fine-tune for the site's own patients; only the loss leaves."""
        only = None if self.tune_part == "all" else lambda name: of_head(name) == (self.tune_part == "head")
        loss = loc.fit(net, self.loss, epochs=self.tune_epochs, only=only, rate=loc.last_rate)
        loc.mine = {PERSONAL: {name: state(net)[name].detach().cpu().clone() for name in loc.down["model"]}}
        return {"loss": Mean(torch.tensor(loss, dtype=torch.float64), loc.samples)}
