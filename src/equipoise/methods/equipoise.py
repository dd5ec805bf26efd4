"""Equipoise: classes drawn evenly, mixup, and a classifier that is computed instead of trained.

The project's own, of parts that helped on validation images (docs/results/own-method.md).
1. Draws. The classes of a site come equally often, and the loss is among them: CE(z, y), or where images come
   as they are balanced softmax, CE(z + log n, y). Several labels: the base loss alone, without 1 and 2.
2. Mixup (`parts/mixup.py`): a rare image that is drawn again and again is not learnt by heart.
3. Momentum of the coordinator: v ← β v − Δ, w ← w − v; BatchNorm statistics move by Δ.
4. Closed form. Training teaches the body. The classifier that predicts is discriminant analysis of its
   features, from sums per class over all sites (`parts/closed.py`): no site and no frequent class pulls at
   it. Its logits count κ, those of the trained head 1 − κ.
5. Even covariance: the mean of those of all classes; where images are many, classes have more of their own.
   Corrected: without the bias that few images give a class. Mirrors: the mean features of four mirror images.
6. Own means and limit. In the end a site's own predictor has class means drawn towards its own. In all rounds
   a class that the site lacks loses log(1 + 5 e) of its logit, e being the images of it that were expected.

Sums are made for evaluations and the end (not with `closed = 0` or `crt`): of C classes and d features
C (d + 1)(d + 4) / 2 numbers. d² come back, or C d²; they show how a class that one site alone has is spread.
Leaves the site: delta, loss (means); sums, counts, second (sums). Stays: which classes it has, their sums.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

import torch
import torch.nn.functional as F
from pydantic import Field
from torch import Tensor

from equipoise.exchange import Ask
from equipoise.leaves import Limit, Sum, Upload
from equipoise.losses import among
from equipoise.methods.opt import FedAvgM
from equipoise.methods.parts import closed
from equipoise.methods.parts.mirror import mirrored
from equipoise.methods.parts.mixup import mixed_loss
from equipoise.nets import Net
from equipoise.site import Batch, Loc
from equipoise.tree import Tree


class Equipoise(FedAvgM):
    """Classes drawn evenly, mixup, and a classifier in closed form from class sums of all sites."""

    paper: ClassVar[str] = "this project"
    keeps_tuned: ClassVar[bool] = False
    recommends: ClassVar[dict[str, Any]] = {"objective": {"name": "bce"}}
    neutral: ClassVar[dict[str, Any] | None] = dict(
        draws=False, balance=False, mixup=0.0, beta=0.0, closed=0.0, own=None, limit=False
    ) | dict(even_covariance=False, own_covariance=None, corrected=False, mirrors=False)
    presets: ClassVar[dict[str, dict[str, Any]]] = {
        "no-draws": {"draws": False},
        "no-balance": {"balance": False},
        "no-mixup": {"mixup": 0.0},
        "no-momentum": {"beta": 0.0},
        "no-closed-form": {"closed": 0.0},
        "no-even-covariance": {"even_covariance": False},
        "no-own-covariance": {"own_covariance": None},
        "no-correction": {"corrected": False},
        "no-mirrors": {"mirrors": False},
        "no-own-means": {"own": None},
        "no-limit": {"limit": False},
    }

    draws: bool = True
    """one label per image: draw the classes of a site equally often; off = images as they come"""
    balance: bool = True
    """one label: the loss among the site's classes, balanced where draws are not; off = that of the config"""
    mixup: float = Field(0.4, ge=0, le=0.5)
    """m: one label per image: the largest share of another image in an image; 0 = images as they are"""
    beta: float = Field(0.5, ge=0, lt=1)
    """momentum of the coordinator"""
    closed: float = Field(1.0, ge=0, le=1)
    """κ: share of the closed-form classifier in a prediction; 0 = the trained head alone"""
    ridge: float = Field(6.0, gt=0)
    """k: k · features ÷ images of its mean variance are added to the covariance"""
    even_covariance: bool = True
    """one label per image: classes weigh alike in the covariance, sites send one of each; off = images do"""
    own_covariance: float | None = Field(10.0, gt=0)
    """s: classes have their own by h / (h + s · features), of h images a class; "none": one for all"""
    corrected: bool = True
    """a class of few images is not predicted less often for the chance in its mean"""
    mirrors: bool = True
    """predict by the mean features of an image and its mirror images, where no stage is frozen"""
    own: float | None = Field(200.0, ge=0)
    """one label per image: images at which a site's class means count half; "none": the federation's alone"""
    limit: bool = True
    """one label per image: a site's predictor is held back from classes it lacks, by how many are expected"""

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
        return server | {"closed": closed.solve(total, self.ridge, self.corrected, self.own_covariance)}

    def limits(self, classes: int, epochs: int) -> Mapping[str, Limit]:
        return closed.LIMITS

    def init_site(self, net: Net, loc: Loc) -> Tree:
        return closed.held(loc) if self.limit and loc.task == "single" else {}

    @torch.no_grad()
    def describe(self, net: Net, loc: Loc) -> Upload:
        """Question: the site's sums for the classifier; it keeps those of its classes."""
        found = closed.sums(net, loc, self.features, self.even_covariance)
        if self.own is not None and loc.task == "single":
            loc.mine = loc.mine | {name: found[name].float() for name in ("sums", "counts")}
        return {name: Sum(value) for name, value in found.items()}

    def fit(self, net: Net, loc: Loc) -> float:
        loc.scratch["blend"] = loc.generator("blend")
        return loc.fit(net, self.loss, order=loc.balanced if self.draws and loc.task == "single" else None)

    def loss(self, net: Net, batch: Batch, loc: Loc) -> Tensor:
        if loc.task == "multi":
            return loc.objective(net(batch.x), batch.y)
        return mixed_loss(net, batch, lambda z, y: self.balanced(z, y, loc), self.mixup, loc.scratch["blend"])

    def balanced(self, logits: Tensor, y: Tensor, loc: Loc) -> Tensor:
        """The loss of one label per image; with `balance` all classes of the site count alike."""
        if not self.balance:
            return loc.objective(logits, y)
        if not self.draws:
            logits = logits + loc.counts.clamp_min(0.5).log().to(logits)
        return F.cross_entropy(among(logits, loc.counts > 0), y)

    def features(self, net: Net, x: Tensor) -> Tensor:
        return mirrored(net, x) if self.mirrors else net.features(x)

    def predict(self, net: Net, x: Tensor, mine: Tree | None, server: Tree) -> dict[str, Tensor]:
        z = self.features(net, x)
        found = {"trained": net.head["fed"](z)}
        if "closed" in server:
            found = closed.beside(found["trained"], z, server["closed"], self.closed, mine, self.own)
        if mine is None or not self.limit or "present" not in mine:
            return found
        share = server.get("closed", {}).get("share")
        return {name: closed.limited(logits, mine, share) for name, logits in found.items()}
