"""Fed-MAS: aggregation by self-supervised priors.

Elbatel, Wang, Martí, Fu, Li, "Federated model aggregation via self-supervised priors for highly imbalanced
medical image classification", MICCAI workshop 2023. Each site measures, class by class, how far the received
model's projected features are from a frozen self-supervised network's, L_f = 2 − 2 cos(y, y') (Eq. 1-2),
before training (w_k) and while training (ŵ_k), pulls its features towards that network (L = L_sup + λ_f mean
L_f, Eq. 4), and is aggregated by its rescue factor  RF = Σ_k w_k ŵ_k  (Eq. 3). The rescue factor is the
weight of a mean, so the coordinator never sees a single one; a site notes its own in its own folder.

`variant = "released"`: w and ŵ are first normalised to sum 1 over classes (which rewards sites with few
classes, where the paper's form rewards many), and a second classifier on the projector shares the loss. The
preset `released` also clips gradients at 5. The frozen network is in eval mode from the start and has the
same digest at all sites, or the run is refused. w is measured on plain images, and the frozen network's
features of those are computed once (they serve training too where its view is deterministic).
Leaves the site: delta (mean weighted by rescue factor), loss (mean), the frozen network's digest (sums).
Stays: the rescue factor.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar, Literal, Self

import torch
from pydantic import Field, PrivateAttr, ValidationInfo, model_validator
from torch import Tensor

from equipoise.errors import MethodError
from equipoise.exchange import Ask
from equipoise.leaves import SAMPLES, Limit, Upload
from equipoise.methods.base import Method
from equipoise.methods.parts.frozen import LIMITS, all_equal, feature_distance, fingerprint, rescue_factor
from equipoise.nets import NETS, Net, NetOptions, ProjectorSpec
from equipoise.nets.registry import NetName
from equipoise.site import Batch, Loc
from equipoise.tree import Tree, digest


class FedMAS(Method):
    """Sites are weighted by how much their classes still differ from a shared self-supervised view."""

    paper: ClassVar[str] = "Elbatel et al. 2023"
    tasks = ("single",)
    recommends: ClassVar[dict[str, Any]] = {"objective": "balanced_softmax"}
    neutral: ClassVar[dict[str, Any] | None] = {"lambda_f": 0.0, "mas": False}
    presets: ClassVar[dict[str, dict[str, Any]]] = {
        "bsm": {"lambda_f": 0.0, "mas": False},
        "kd": {"mas": False},
        "kd-1": {"mas": False, "lambda_f": 1.0},
        "lambda-1": {"lambda_f": 1.0},
        "lambda-3": {"lambda_f": 3.0},
        "released": {"variant": "released", "clip_norm": 5.0},
    }

    lambda_f: float = Field(3.0, ge=0)
    """pull towards the frozen network's features"""
    mas: bool = True
    """aggregate by rescue factor; off = by samples (the KD-only arm)"""
    variant: Literal["paper", "released"] = "paper"
    """rescue factor and auxiliary classifier of the paper or of the published code"""
    clip_norm: float | None = Field(None, gt=0)
    """largest gradient norm, if any; `train.clip_norm` goes before it"""
    target: NetName = "resnet50"
    """architecture of the frozen network: one of Equipoise's, or of your own (FILE.py:Name)"""
    target_weights: str | None = None
    """its self-supervised weights: a local file; without one the network is random, for trials only"""
    target_sha256: str | None = None
    """expected sha256 of that file; may be left out for files Equipoise knows"""

    _target: NetOptions = PrivateAttr()

    @model_validator(mode="after")
    def _find(self, info: ValidationInfo) -> Self:
        """Find the frozen network, which may be one of the user's own."""
        self._target = NetOptions.model_validate(
            {"name": self.target, "weights": self.target_weights, "sha256": self.target_sha256},
            context={**(info.context or {}), "where": "method.target"},
        )
        return self

    def projection(self) -> ProjectorSpec:
        released = self.variant == "released"
        width = NETS[self.target].width if self.target in NETS else 0
        return ProjectorSpec((0, width), batch_norm=True, activation=True, classifier=released, like="target")

    def frozen(self) -> Mapping[str, NetOptions]:
        return {"target": self._target} if self.lambda_f or self.mas else {}

    def round(self, server: Tree, ask: Ask) -> Tree:
        if ask.round == 0 and not all_equal(ask(self.target_digest, everyone=True)):
            fix = "give every site the same method.target_weights file, and its sha256"
            raise MethodError(f"the sites' frozen target networks differ: {fix}")
        return super().round(server, ask)

    def limits(self, classes: int, epochs: int) -> Mapping[str, Limit]:
        delta = Limit(plain=16.0 * classes * max(1, epochs)) if self.mas else SAMPLES
        return {"train.delta": delta} | {f"target_digest.{leaf}": limit for leaf, limit in LIMITS.items()}

    def target_digest(self, net: Net, loc: Loc) -> Upload:
        """Question: the digest of the frozen network, in a form that shows only whether all are equal."""
        return fingerprint(digest(loc.frozen["target"].state_dict()) if loc.frozen else "")

    def prepare(self, net: Net, loc: Loc) -> None:
        loc.scratch["during"] = torch.zeros(len(loc.classes), dtype=torch.float64)
        if self.mas:
            loc.scratch["before"] = self._divergence(net, loc)

    def weight(self, loc: Loc) -> float:
        if not self.mas:
            return loc.samples
        factor = rescue_factor(loc.scratch["before"], loc.scratch["during"], self.variant == "released")
        loc.note("rescue_factor", factor)
        return factor

    def fit(self, net: Net, loc: Loc) -> float:
        return loc.fit(net, self.loss, clip_norm=self.clip_norm)

    @torch.no_grad()
    def _divergence(self, net: Net, loc: Loc) -> Tensor:
        """w_k: mean L_f per class of the received model (0 for classes the site lacks)."""
        target = self._plain_targets(loc)
        total = torch.zeros(len(loc.classes), dtype=torch.float64)
        for batch in loc.scan():
            assert net.projector is not None
            distance = feature_distance(net.projector(net.body(batch.x)), target[batch.index])
            total.index_add_(0, batch.y.cpu(), distance.cpu().double())
        return total / loc.counts.clamp_min(1)

    @staticmethod
    def _plain_targets(loc: Loc) -> Tensor:
        """The frozen network's features of the site's plain training images, computed once."""
        net = loc.frozen["target"]
        targets: Tensor = loc.cached("target", lambda: torch.cat([net(batch.x) for batch in loc.scan()]))
        return targets

    def loss(self, net: Net, batch: Batch, loc: Loc) -> Tensor:
        z = net.body(batch.x)
        total = loc.objective(net.head["fed"](net.dropout(z)), batch.y)
        if not loc.frozen:
            return total
        assert net.projector is not None
        projected = net.projector(z)
        with torch.no_grad():
            target = self._plain_targets(loc)[batch.index] if loc.plain else loc.frozen["target"](batch.x)
        distance = feature_distance(projected, target)
        share = distance.detach().cpu().double() / loc.counts[batch.y.cpu()]
        loc.scratch["during"].index_add_(0, batch.y.cpu(), share)
        if net.free is not None:
            total = total + loc.objective(net.free(projected), batch.y)
        return total + self.lambda_f * distance.mean()
