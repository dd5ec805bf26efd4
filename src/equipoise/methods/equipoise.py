"""Equipoise: classes drawn evenly, and a classifier that is computed instead of trained.

The project's own method, made of the parts that helped on validation images (docs/results/own-method.md).

1. Draws. A site draws training images so that class c has the share s_c ∝ n_c^(1−b), and balances what is
   left by balanced softmax among its classes: L = CE(z + log s, y). Several labels per image: the positives
   and the negatives of each label weigh the same.
2. Momentum of the coordinator: v ← β v − Δ, w ← w − v; BatchNorm statistics move by Δ.
3. Closed form. Training teaches the body. The classifier that predicts is linear discriminant analysis of its
   features, from sums per class over the images of all sites, as if all classes were equally frequent
   (`parts/closed.py`): no site and no frequent class pulls at it, and it forgets no class. Its logits count
   κ, those of the trained head 1 − κ.
4. Own means. At a site its own predictor has class means of the site's own, drawn towards the federation's.
5. Limit. And it predicts the classes that the site has, no others.

The sums are made for every evaluation and after the last round; for a class that one site alone has they show
the mean feature there. `closed = 0` sends none; with `crt` the re-trained classifier predicts instead.
Leaves the site: delta, loss (means); sums, counts, second (sums). Stays: which classes it has, their sums.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from functools import partial
from typing import Any, ClassVar

import torch
import torch.nn.functional as F
from pydantic import Field
from torch import Tensor

from equipoise.exchange import Ask
from equipoise.leaves import SAMPLES, Limit, Sum, Upload
from equipoise.losses import among
from equipoise.methods.base import Method
from equipoise.methods.opt import heavy_ball, parameters
from equipoise.methods.parts import closed
from equipoise.methods.parts.crt import balanced_loss
from equipoise.nets import Net
from equipoise.site import Batch, Loc
from equipoise.tree import Tree, plus, zeros_like


class Equipoise(Method):
    """Classes drawn evenly, and a classifier in closed form from class sums of all sites."""

    paper: ClassVar[str] = "this project"
    keeps_tuned: ClassVar[bool] = False
    neutral: ClassVar[dict[str, Any] | None] = dict(
        draws=0.0, balance=False, beta=0.0, closed=0.0, own=None, limit=False
    )
    presets: ClassVar[dict[str, dict[str, Any]]] = {
        "no-draws": {"draws": 0.0},
        "no-momentum": {"beta": 0.0},
        "no-closed-form": {"closed": 0.0},
        "no-own-means": {"own": None},
        "no-limit": {"limit": False},
    }

    draws: float = Field(1.0, ge=0, le=1)
    """b: how evenly a site draws its classes; 0 = as they come, 1 = all alike"""
    balance: bool = True
    """balance in the loss what the draws left; off = the base loss of the config"""
    beta: float = Field(0.5, ge=0, lt=1)
    """momentum of the coordinator"""
    closed: float = Field(1.0, ge=0, le=1)
    """κ: share of the closed-form classifier in a prediction; 0 = the trained head alone"""
    ridge: float = Field(0.1, gt=0)
    """r: what is added to the covariance, in parts of its mean variance"""
    own: float | None = Field(200.0, ge=0)
    """images at which a site's own class means count as much as the federation's; none = those alone"""
    limit: bool = True
    """a site's own predictor knows the classes that the site has, and no others"""

    def init(self, net: Net, shared: Mapping[str, Tensor]) -> Tree:
        server = super().init(net, shared)
        return server | {"velocity": zeros_like(parameters(net, server["model"]))}

    def round(self, server: Tree, ask: Ask) -> Tree:
        up = ask(self.train, model=server["model"])
        velocity, moved = heavy_ball(server["velocity"], up["delta"], self.beta)
        return {"model": plus(server["model"], moved), "velocity": velocity}

    def finish(self, server: Tree, ask: Ask) -> Tree:
        return self.with_classifier(super().finish(server, ask), ask)

    def predictors(self, server: Tree, ask: Ask) -> Mapping[str, Tree]:
        ended = "closed" in server and ask.round >= ask.rounds
        return {"global": self.serving(server if ended else self.with_classifier(server, ask))}

    def serving(self, server: Tree) -> Tree:
        return {name: server[name] for name in ("model", "closed") if name in server}

    def with_classifier(self, server: Tree, ask: Ask) -> Tree:
        """The server tree with the closed-form classifier for its model."""
        if not self.closed or self.crt:
            return server
        total = ask(self.describe, model=server["model"])
        return server | {"closed": closed.solve({name: total[name] for name in total}, self.ridge)}

    def limits(self, classes: int, epochs: int) -> Mapping[str, Limit]:
        summed = Limit(images=1.0, least=-math.inf)
        return {"describe.sums": summed, "describe.counts": SAMPLES, "describe.second": summed}

    def init_site(self, net: Net, loc: Loc) -> Tree:
        return {"present": loc.counts > 0} if self.limit and loc.task == "single" else {}

    @torch.no_grad()
    def describe(self, net: Net, loc: Loc) -> Upload:
        """Question: the site's sums for the classifier; it keeps those of its classes."""
        found = closed.sums(net, loc)
        if self.own is not None and loc.task == "single":
            loc.mine = loc.mine | {name: found[name].float() for name in ("sums", "counts")}
        return {name: Sum(value) for name, value in found.items()}

    def fit(self, net: Net, loc: Loc) -> float:
        even = self.draws > 0 and loc.task == "single"
        return loc.fit(net, self.loss, order=partial(self.drawn, loc) if even else None)

    def drawn(self, loc: Loc, epoch: int) -> Tensor:
        """As many training rows as there are, drawn with replacement so that classes come in their shares."""
        chance, draw = loc.counts[loc.train.labels] ** -self.draws, loc.generator("draws", epoch)
        return torch.multinomial(chance, loc.samples, replacement=True, generator=draw)

    def loss(self, net: Net, batch: Batch, loc: Loc) -> Tensor:
        logits = net(batch.x)
        return self.balanced(logits, batch.y, loc) if self.balance else loc.objective(logits, batch.y)

    def balanced(self, logits: Tensor, y: Tensor, loc: Loc) -> Tensor:
        """The loss of the labels, all classes of the site counting alike."""
        if loc.task == "multi":
            return balanced_loss(logits, y, loc)
        share = torch.where(loc.counts > 0, loc.counts ** (1 - self.draws), 0.0)
        return F.cross_entropy(among(logits + share.clamp_min(0.5).log().to(logits), loc.counts > 0), y)

    def predict(self, net: Net, x: Tensor, mine: Tree | None, server: Tree) -> dict[str, Tensor]:
        z = net.features(x)
        found = {"trained": net.head["fed"](z)}
        if "closed" in server:
            solved = {name: tensor.to(z) for name, tensor in server["closed"].items()}
            mean = None
            if mine is not None and self.own is not None and "sums" in mine:
                mean = closed.own_means(solved, mine, self.own)
            computed = closed.logits(z, solved, mean)
            share = self.closed * (1.0 if solved["seen"].dim() == 1 else solved["seen"].amin(1))
            found = {"both": (1 - share) * found["trained"] + share * computed, **found, "computed": computed}
        if mine is None or not self.limit or "present" not in mine:
            return found
        return {name: closed.limited(logits, mine["present"]) for name, logits in found.items()}
