"""CReFF: the classifier re-trained at the coordinator, on features made up to match the sites' gradients.

Shang, Lu, Huang, Wang, "Federated learning on heterogeneous and long-tailed data via classifier re-training
with federated features", IJCAI 2022 (FCA's tables call it CReRF). Training is FedAvg's, on FedAvg's own head.
Beside it, every site answers for each class it has with the gradient of cross-entropy at the re-trained head
h̃ on the received body,
    g_c = mean_i (softmax(h̃(f_i)) − e_c) (f_i, 1)ᵀ      over `draws` draws of at most `images` augmented
    images of class c,
averaged plainly over the sites that have c. The coordinator moves its federated features U [C, m, d], kept
from round to round,
    min_U Σ_c Σ_rows (1 − cos(row of g_c(U_c), row of g_c)) + (1 − cos of the bias parts)
and trains a fresh linear head on U: the next h̃. The body with h̃ is the predictor that counts (`retrained`;
`fed` is also logged). Classes no site answered for are not matched; their features still train the head.
Steps are plain SGD. Augmentation is the run's own first view instead of the published one. For the gradient
of row j is E[(p_j − 1{j=c}) f], it nearly shows class-mean features.
Leaves the site: delta, loss (means); gradient of the head per class (mean over the sites that have the
class). Stays: nothing.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

import torch
import torch.nn.functional as F
from pydantic import Field
from torch import Tensor

from equipoise.errors import MethodError
from equipoise.exchange import Ask
from equipoise.leaves import ONE, Limit, Mean, Upload
from equipoise.losses.matching import class_gradient, match, train_head
from equipoise.methods.base import Method
from equipoise.methods.parts.crt import BIAS, WEIGHT, fresh
from equipoise.nets import Net
from equipoise.site import Loc
from equipoise.tree import Tree, plus


class CReFF(Method):
    """FedAvg whose classifier is re-trained on balanced, generated features."""

    paper: ClassVar[str] = "Shang et al. 2022"
    tasks = ("single",)
    # Whatever becomes of the re-trained head, the model is FedAvg's.
    neutral: ClassVar[dict[str, Any] | None] = {}
    presets: ClassVar[dict[str, dict[str, Any]]] = {"fca": {}, "fediic": {}, "fedmas": {}}

    features: int = Field(100, ge=1)
    """m: federated features per class"""
    match_steps: int = Field(100, ge=0)
    """steps on the features per round"""
    match_rate: float = Field(0.1, gt=0)
    """step size on the features"""
    head_epochs: int = Field(300, ge=0)
    """passes over the features for a fresh head"""
    head_rate: float = Field(0.01, gt=0)
    """step size of the head"""
    head_batch: int = Field(32, ge=1)
    """features per step of the head"""
    draws: int = Field(10, ge=1)
    """draws of images per class and round"""
    images: int = Field(32, ge=1)
    """most images per draw"""

    def init(self, net: Net, shared: Mapping[str, Tensor]) -> Tree:
        server = super().init(net, shared)
        if BIAS not in shared:
            raise MethodError('CReFF re-trains a linear classifier with a bias: set net.head = "linear"')
        return server | {"head": {"weight": shared[WEIGHT].clone(), "bias": shared[BIAS].clone()}}

    def round(self, server: Tree, ask: Ask) -> Tree:
        up = ask(self.train, model=server["model"], head=server["head"])
        classes, width = server["head"]["weight"].shape
        features = server.get("features")
        if features is None:
            features = torch.randn(classes, self.features, width, generator=ask.generator("features"))
        seen = up.weight["gradient"] > 0
        features = match(features, server["head"], up["gradient"], seen, self.match_steps, self.match_rate)
        head = fresh(server["head"], ask.generator("head"))
        draw = ask.generator("order")
        head = train_head(head, features, self.head_epochs, self.head_rate, self.head_batch, draw)
        return {"model": plus(server["model"], up["delta"]), "head": head, "features": features}

    def limits(self, classes: int, epochs: int) -> Mapping[str, Limit]:
        return {"train.gradient": ONE}

    def finish(self, server: Tree, ask: Ask) -> Tree:
        server = super().finish(server, ask)
        if not self.crt:
            return server
        return server | {"head": {"weight": server["model"][WEIGHT], "bias": server["model"][BIAS]}}

    def train(self, net: Net, loc: Loc) -> Upload:
        gradient = self._class_gradients(net, loc)
        return super().train(net, loc) | {"gradient": Mean(gradient, (loc.counts > 0).double())}

    @torch.no_grad()
    def _class_gradients(self, net: Net, loc: Loc) -> dict[str, Tensor]:
        """Head gradients [C, C, d] and [C, C], zero for classes the site lacks."""
        head, classes = loc.down["head"], len(loc.classes)
        gradients = {name: torch.zeros(classes, *head[name].shape) for name in ("weight", "bias")}
        draw, looks = loc.generator("gradient"), loc.generator("gradient views")
        view = loc.view((loc.options.views or self.views)[0])
        for c in loc.counts.nonzero().flatten().tolist():
            rows = (loc.train.labels == c).nonzero().flatten()
            for _ in range(self.draws):
                some = rows[torch.randperm(len(rows), generator=draw)[: self.images]]
                z = net.body(loc.train.take(some, [view], [looks]).x).cpu()
                g = class_gradient(z[None], head, torch.tensor([c]))
                for name, total in gradients.items():
                    total[c] += g[name][0] / self.draws
        return gradients

    def serving(self, server: Tree) -> Tree:
        return {"model": server["model"], "head": server["head"]}

    def predict(self, net: Net, x: Tensor, mine: Tree | None, server: Tree) -> dict[str, Tensor]:
        z = net.features(x)
        head = server["head"]
        return {"retrained": F.linear(z, head["weight"].to(z), head["bias"].to(z)), "fed": net.head["fed"](z)}
