"""MOON: contrast between the received model and the site's own previous one.

Li, He, Song, "Model-contrastive federated learning", CVPR 2021. A projector stands inside the main path,
f → Linear(d, d) → ReLU → Linear(d, 256) = q → Linear(256, C), and the current q is pulled towards the
received model's and pushed away from that of the model this site trained last, all on the same images:
    L = base + μ mean −log[ e^{cos(q, q_glob)/T} / (e^{cos(q, q_glob)/T} + e^{cos(q, q_prev)/T}) ]
    (Eq. 3)
Both other models are frozen, in eval mode. At its first participation a site has no previous model and the
term is absent (the received model in its place would add the constant log 2). Everything, the projector too,
is averaged as in FedAvg. Choices: `hidden = 256` is FCA's projector; Fed-MAS sends previous models through
its coordinator, here they never leave; it also clips gradients (`train.clip_norm = 5`). FCA does not state
its μ. Leaves the site: delta (mean), loss (mean). Stays: the previous local model.
"""

from __future__ import annotations

from typing import Any, ClassVar

import torch
import torch.nn.functional as F
from pydantic import Field
from torch import Tensor, nn

from equipoise.leaves import Upload
from equipoise.methods.base import Method
from equipoise.methods.parts.teacher import still
from equipoise.nets import HEAD, Net, ProjectorSpec, load, state
from equipoise.site import Batch, Loc


class MOON(Method):
    """FedAvg with features held near the received model's and away from the site's previous ones."""

    paper: ClassVar[str] = "Li et al. 2021"
    classifier: ClassVar[str] = f"{HEAD}3."
    presets: ClassVar[dict[str, dict[str, Any]]] = {
        "fediic": {"mu": 10.0},
        "fca": {"hidden": 256},
        "fedmas": {"mu": 1.0},
    }

    mu: float = Field(1.0, ge=0)
    """weight of the contrast; 0 is FedAvg with this head"""
    temperature: float = Field(0.5, gt=0)
    """T of the contrast"""
    hidden: int = Field(0, ge=0)
    """width of the projector's first layer; 0 = the width of the features"""
    size: int = Field(256, ge=1)
    """width of the projector's output"""

    def make_head(self, width: int, classes: int) -> nn.Sequential:
        projector = ProjectorSpec((self.hidden, self.size), activation=True).make(width)
        return nn.Sequential(*projector, nn.Linear(self.size, classes))

    def prepare(self, net: Net, loc: Loc) -> None:
        if self.mu > 0 and "previous" in loc.mine:
            received, previous = still(net), still(net)
            load(previous, loc.mine["previous"])
            loc.scratch["others"] = received, previous

    def loss(self, net: Net, batch: Batch, loc: Loc) -> Tensor:
        q, logits = project(net, batch.x)
        base = loc.objective(logits, batch.y)
        if "others" not in loc.scratch:
            return base
        with torch.no_grad():
            received, previous = (project(other, batch.x)[0] for other in loc.scratch["others"])
        return base + self.mu * contrast(q, received, previous, self.temperature)

    def train(self, net: Net, loc: Loc) -> Upload:
        up = super().train(net, loc)
        if self.mu > 0:
            previous = {name: tensor.detach().cpu().clone() for name, tensor in state(net).items()}
            loc.mine = {"previous": previous}
        return up


def project(net: Net, x: Tensor) -> tuple[Tensor, Tensor]:
    """What the last layer of the head reads, and the logits it makes of it."""
    head = net.head["fed"]
    assert isinstance(head, nn.Sequential)
    q = head[:-1](net.features(x))
    return q, head[-1](q)


def contrast(q: Tensor, received: Tensor, previous: Tensor, temperature: float) -> Tensor:
    """Cross-entropy of two cosines, the first being the right one; mean over the batch."""
    cosines = torch.stack([F.cosine_similarity(q, received), F.cosine_similarity(q, previous)], 1)
    return F.cross_entropy(cosines / temperature, torch.zeros(len(q), dtype=torch.int64, device=q.device))
