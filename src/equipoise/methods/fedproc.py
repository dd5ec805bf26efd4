"""FedProc: contrast with global class prototypes first, the classifier later.

Mu, Shen, Cheng, et al., "FedProc: Prototypical contrastive federated learning on non-IID data", FGCS 2023.
The head is MOON's with the projection normalised before the last layer: q = normalize(projector(f)). After
training, every site adds up q per class over its plain images; sums and counts of all sites give the
prototypes c. In the next round
    L = α base + (1 − α) L_gpc,   L_gpc = mean −log[ e^{⟨q, ĉ_y⟩} / Σ_j e^{⟨q, ĉ_j⟩} ],   α = min(r / ramp, 1)
with ĉ normalised and no temperature. A class nobody has shown yet has the prototype 0; later it keeps its
last one. The first round is the base loss alone (so the published extra pass for prototypes before it would
change nothing, and is left out). Several labels per image: two prototypes per label, of negatives and of
positives, and a softmax over the two for every label the site annotates.
Choices: prototypes come from plain images in eval mode (published: augmented, BatchNorm in train mode).
FedIIC's 200 rounds ramp over 100; a shorter run ramps over all its rounds.
Leaves the site: sums and counts per class (sums), delta, loss (means). Stays: nothing.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar

import torch
import torch.nn.functional as F
from pydantic import Field
from torch import Tensor, nn

from equipoise.exchange import Ask
from equipoise.leaves import SAMPLES, Limit, Sum, Upload
from equipoise.losses import masked_bce
from equipoise.methods.base import Method
from equipoise.methods.moon import project
from equipoise.nets import HEAD, Net, ProjectorSpec
from equipoise.site import Batch, Loc
from equipoise.tree import Tree, plus


class Unit(nn.Module):
    """Vectors of length one."""

    def forward(self, z: Tensor) -> Tensor:
        return F.normalize(z)


class FedProc(Method):
    """Features learn from shared class prototypes before the classifier takes over."""

    paper: ClassVar[str] = "Mu et al. 2023"
    classifier: ClassVar[str] = f"{HEAD}4."

    ramp: int | None = Field(None, ge=1)
    """rounds until the base loss counts alone; none = 100, or all rounds of a shorter run"""
    hidden: int = Field(0, ge=0)
    """width of the projector's first layer; 0 = the width of the features"""
    size: int = Field(256, ge=1)
    """width of the projector's output"""

    def make_head(self, width: int, classes: int) -> nn.Sequential:
        projector = ProjectorSpec((self.hidden, self.size), activation=True).make(width)
        return nn.Sequential(*projector, Unit(), nn.Linear(self.size, classes))

    def round(self, server: Tree, ask: Ask) -> Tree:
        up = ask(self.train, **server)
        count = up["counts"][..., None]
        old = server.get("prototypes", torch.zeros(up["sums"].shape))
        prototypes = torch.where(count > 0, up["sums"] / count.clamp_min(1), old).float()
        return {**server, "model": plus(server["model"], up["delta"]), "prototypes": prototypes}

    def limits(self, classes: int, epochs: int) -> Mapping[str, Limit]:
        return {"train.sums": Limit(images=1.0, signed=True), "train.counts": SAMPLES}

    def alpha(self, round: int, rounds: int) -> float:
        """Share of the base loss."""
        return min(round / (self.ramp or max(1, min(100, rounds))), 1.0)

    def loss(self, net: Net, batch: Batch, loc: Loc) -> Tensor:
        q, logits = project(net, batch.x)
        base, alpha = loc.objective(logits, batch.y), self.alpha(loc.round, loc.rounds)
        if "prototypes" not in loc.down or alpha == 1:
            return base
        unit = F.normalize(loc.down["prototypes"].to(q), dim=-1)
        if loc.task == "single":
            near = F.cross_entropy(q @ unit.T, batch.y)
        else:  # a softmax over two is a sigmoid of their difference
            near = masked_bce(q @ (unit[:, 1] - unit[:, 0]).T, batch.y)
        return alpha * base + (1 - alpha) * near

    def train(self, net: Net, loc: Loc) -> Upload:
        up = super().train(net, loc)
        return up | self._describe(net, loc)

    @torch.no_grad()
    def _describe(self, net: Net, loc: Loc) -> Upload:
        """Sum of q and number of images per class, [C, d] and [C]; for several labels per negatives and
        positives, [C, 2, …]."""
        q, y = torch.cat([project(net, batch.x)[0].cpu().double() for batch in loc.scan()]), loc.train.labels
        if loc.task == "single":
            member = F.one_hot(y, len(loc.classes)).double()
        else:
            member = torch.stack([1 - y, y], 2).nan_to_num(0.0).double()
        return {"sums": Sum(torch.einsum("n...,nd->...d", member, q)), "counts": Sum(member.sum(0))}
