"""FCA: federated classifier anchoring.

Wicaksana, Yan, Cheng, "FCA: Taming long-tailed federated medical image classification by classifier
anchoring", 2023. Each site keeps a personal head v_k beside the federated head v on one body u; both are
debiased by the site's own class shares (the base loss; the paper uses balanced softmax, Eq. 2-3), and the
personal head guides the federated one (Eq. 4):
    L = λ_fed L(v) + λ_own L(v_k) + KL( sg σ(z_own) ‖ σ(z_fed) )
    (Eq. 5)
on raw logits, temperature 1, mean over the batch. Both heads read the same feature after the same dropout
mask.

`variant = "released"` follows the published code where it differs: the consistency term gets probabilities
where log-probabilities are due (so it is const − ⟨q, p⟩ / (B·C)), the mean of all personal heads is collected
and serves the union of test sets, and the federated head after local training serves the site's own test set.
All roles are always logged. A classifier re-trained by cRT takes the place of the mean of personal heads;
these stay as they were.
Personal heads that start as copies (the default) differ from the shared head by what a site has learnt alone:
in a federation of one site the first delta nearly shows the personal head; `own_init = "draw"` starts them
apart. Leaves the site: delta, loss (means); released also `own`, the personal heads as a mean. Stays:
head.own (except as said).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar, Literal

import torch
import torch.nn.functional as F
from pydantic import Field
from torch import Tensor

from equipoise.exchange import Ask
from equipoise.leaves import Mean, Upload
from equipoise.losses import kl
from equipoise.methods.base import Method
from equipoise.nets import HEAD, Net
from equipoise.site import Batch, Loc
from equipoise.tree import Tree, plus


class FCA(Method):
    """A personal classifier at each site anchors the federated one."""

    paper: ClassVar[str] = "Wicaksana et al. 2023"
    tasks = ("single",)
    heads = ("fed", "own")
    private = ("head.own.*",)
    recommends: ClassVar[dict[str, Any]] = {"objective": "balanced_softmax", "persist_optimizer": True}
    neutral: ClassVar[dict[str, Any] | None] = {"lambda_own": 0.0, "consistency": False}
    presets: ClassVar[dict[str, dict[str, Any]]] = {
        "paper": {},
        "released": {"variant": "released", "own_init": "draw"},
        "no-consistency": {"consistency": False},
        "federated-guides-personal": {"direction": "federated"},
        "mutual": {"direction": "mutual"},
        **{
            f"lambda-{f}-{o}": {"lambda_fed": f, "lambda_own": o}
            for f, o in ((1, 1), (1, 2), (1, 3), (2, 1), (3, 1))
        },
    }

    lambda_fed: float = Field(1.0, ge=0)
    """weight of the federated head's loss"""
    lambda_own: float = Field(3.0, ge=0)
    """weight of the personal head's loss"""
    consistency: bool = True
    """whether one head guides the other"""
    direction: Literal["personal", "federated", "mutual"] = "personal"
    """who guides: the personal head, the federated head, or each the other"""
    own_init: Literal["copy", "draw"] = "copy"
    """personal heads start as copies of the federated head, or as draws of their own"""
    variant: Literal["paper", "released"] = "paper"
    """head roles and consistency term of the paper or of the published code"""

    def init(self, net: Net, shared: Mapping[str, Tensor]) -> Tree:
        own = {"own": {n: p.detach().clone() for n, p in net.head["own"].named_parameters()}}
        return super().init(net, shared) | (own if self.variant == "released" else {})

    def round(self, server: Tree, ask: Ask) -> Tree:
        up = ask(self.train, model=server["model"])
        own = {"own": up["own"]} if self.variant == "released" else {}
        return {"model": plus(server["model"], up["delta"])} | own

    def finish(self, server: Tree, ask: Ask) -> Tree:
        server = super().finish(server, ask)
        if not self.crt or self.variant == "paper":
            return server
        return server | {"own": {name: server["model"][HEAD + name] for name in server["own"]}}

    def serving(self, server: Tree) -> Tree:
        return server

    def init_site(self, net: Net, loc: Loc) -> Tree:
        if self.own_init == "copy":
            net.head["own"].load_state_dict(net.head["fed"].state_dict())
        else:
            draw = loc.generator("own head")
            for p in net.head["own"].parameters():
                bound = net.width**-0.5
                p.data.copy_((torch.rand(p.shape, generator=draw) * 2 - 1) * bound)
        return {}

    def loss(self, net: Net, batch: Batch, loc: Loc) -> Tensor:
        z = net.features(batch.x)
        fed, own = net.head["fed"](z), net.head["own"](z)
        shared, personal = loc.objective(fed, batch.y), loc.objective(own, batch.y)
        calibrated = self.lambda_fed * shared + self.lambda_own * personal
        if not self.consistency:
            return calibrated
        guide = kl if self.variant == "paper" else released_consistency
        if self.direction == "personal":
            return calibrated + guide(own.detach(), fed)
        if self.direction == "federated":
            return calibrated + guide(fed.detach(), own)
        return calibrated + guide(own.detach(), fed) + guide(fed.detach(), own)

    def train(self, net: Net, loc: Loc) -> Upload:
        up = super().train(net, loc)
        if self.variant == "released":
            own = {n: p.detach().clone() for n, p in net.head["own"].named_parameters()}
            up["own"] = Mean(own, loc.samples)
        return up

    def predict(self, net: Net, x: Tensor, mine: Tree | None, server: Tree) -> dict[str, Tensor]:
        z = net.features(x)
        scores = {"fed": net.head["fed"](z)}
        if mine is not None:
            scores["own"] = net.head["own"](z)
        elif "own" in server:
            scores["own_mean"] = F.linear(z, server["own"]["weight"].to(z), server["own"]["bias"].to(z))
        first = (mine is None) == (self.variant == "paper")
        order = ("fed", "own", "own_mean") if first else ("own_mean", "own", "fed")
        return {name: scores[name] for name in order if name in scores}


def released_consistency(teacher: Tensor, student: Tensor) -> Tensor:
    """The published code's term: a KL whose prediction is a probability instead of a log-probability, mean
    over B·C."""
    q, p = teacher.softmax(1) + 1e-11, student.softmax(1) + 1e-11
    return (q * (q.log() - p)).mean()
