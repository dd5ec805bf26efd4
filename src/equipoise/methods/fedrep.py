"""FedRep: one shared body, a head of its own at every site.

Collins, Hassani, Mokhtari, Shakkottai, "Exploiting shared representations for personalized federated
learning", ICML 2021, Algorithm 1. A site trains first its head on the received body (which stays in eval
mode, so its BatchNorm statistics do not drift), then the body under that head (`train.epochs`); bodies are
averaged by samples. All heads start alike. The published code trains heads for ten epochs a round and ten
more at the very end (preset "released"); cRT, which draws heads anew, takes the place of the latter.
A site's own predictor is the averaged body with its head. There is no global head, so generalisation needs a
choice: the mean over sites of each site's predictor on the union of test sets, as for training alone
(default); or, as the published code does, the mean of the heads (`global_head = "mean"`, preset "fca").
Either is asked for in evaluation only; training never sends a head.
Leaves the site: delta of the body, loss (means); in evaluation the head (each, or mean), which only a
simulation needs. Stays: head.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar, Literal

import torch
from pydantic import Field

from equipoise.exchange import Ask
from equipoise.leaves import Each, Mean, Upload
from equipoise.methods.base import Method
from equipoise.nets import Net, state
from equipoise.site import Loc
from equipoise.tree import Tree


def of_head(name: str) -> bool:
    """Whether a tensor belongs to a head."""
    return name.startswith("head.")


class FedRep(Method):
    """Sites share a body and keep their heads."""

    paper: ClassVar[str] = "Collins et al. 2021"
    private = ("head.*",)
    keeps_tuned: ClassVar[bool] = False
    presets: ClassVar[dict[str, dict[str, Any]]] = {
        "fca": {"global_head": "mean"},
        "released": {"head_epochs": 10, "final_epochs": 10, "global_head": "mean"},
    }

    head_epochs: int | None = Field(None, ge=0)
    """epochs of the head before those of the body; none = train.epochs"""
    final_epochs: int = Field(0, ge=0)
    """epochs of the head on the final body, at all sites"""
    global_head: Literal["each", "mean"] = "each"
    """generalisation: the mean over sites of every head's result, or the result of the mean head"""

    def fit(self, net: Net, loc: Loc) -> float:
        body = loc.options.epochs
        head = body if self.head_epochs is None else self.head_epochs
        loc.fit(net, self.loss, epochs=head, only=of_head)
        return loc.fit(net, self.loss, epochs=range(head, head + body), only=lambda name: not of_head(name))

    def finish(self, server: Tree, ask: Ask) -> Tree:
        server = super().finish(server, ask)
        if self.final_epochs and not self.crt:
            ask(self.tune, model=server["model"])
        return server

    def tune(self, net: Net, loc: Loc) -> Upload:
        """Question: train the head on the final body, at the last round's rate; only the loss leaves."""
        loss = loc.fit(net, self.loss, epochs=self.final_epochs, only=of_head, rate=loc.last_rate)
        return {"loss": Mean(torch.tensor(loss, dtype=torch.float64), loc.samples)}

    def reveal(self, net: Net, loc: Loc) -> Upload:
        """Question: the site's head, by itself or as part of the mean, so that it can be tested elsewhere."""
        head = {name: tensor.detach().cpu().clone() for name, tensor in state(net).items() if of_head(name)}
        return {"head": Each(head) if self.global_head == "each" else Mean(head, loc.samples)}

    def predictors(self, server: Tree, ask: Ask) -> Mapping[str, Tree]:
        revealed = ask(self.reveal, model=server["model"])["head"]
        heads = revealed if self.global_head == "each" else {"mean": revealed}
        return {name: {"model": {**server["model"], **head}} for name, head in heads.items()}
