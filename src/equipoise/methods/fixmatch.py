"""FedFixMatch: FixMatch at every site, FedAvg between them.

Sohn et al., "FixMatch: Simplifying semi-supervised learning with consistency and confidence", NeurIPS 2020;
with partial labels as in Sun et al. (FedMLP), 2024. With p = σ(weak view) and, for the classes a site misses,
the pseudo-label 1[p > ½]:
    L = base loss (weak view) + λ/N Σ over decided cells BCE(strong view, pseudo-label)
An image is decided when every missing class has p > high or p < low; `every = false` decides cell by cell,
which keeps more images the more classes are missing. As in FixMatch N is the number of all missing cells,
decided or not, so a few pseudo-labels weigh little; FedMLP's code divides by the decided ones
(`over = "decided"`, preset "fedmlp").
Deviations: the strong view is `rand` (RandAugment) without cutout. Only several-label tasks have classes that
a site misses. Leaves the site: delta, loss (means), as FedAvg. Stays: nothing.
"""

from __future__ import annotations

from typing import Any, ClassVar, Literal

from pydantic import Field
from torch import Tensor

from equipoise.losses import bce_cells, masked_mean
from equipoise.methods.base import Method
from equipoise.nets import Net
from equipoise.site import Batch, Loc


class FedFixMatch(Method):
    """What the net is sure of on a weak view of an image, it must also say of a strong one."""

    paper: ClassVar[str] = "Sohn et al. 2020"
    tasks = ("multi",)
    views = ("weak", "rand")
    recommends: ClassVar[dict[str, Any]] = {"objective": {"name": "bce", "pos_weight": True}}
    neutral: ClassVar[dict[str, Any] | None] = {"strength": 0.0}
    presets: ClassVar[dict[str, dict[str, Any]]] = {
        "fedmlp": {"strength": 1.0, "low": 0.2, "high": 0.8, "every": True, "over": "decided"},
    }

    strength: float = Field(1.0, ge=0)
    """λ: weight of the pseudo-labels"""
    low: float = Field(0.2, ge=0, le=0.5)
    """a prediction below this is a sure negative"""
    high: float = Field(0.8, ge=0.5, le=1)
    """and one above this a sure positive"""
    every: bool = True
    """an image counts only when it is sure of all missing classes; off = each class by itself"""
    over: Literal["all", "decided"] = "all"
    """what the sum is divided by: all missing cells of the batch, or those that have a pseudo-label"""

    def loss(self, net: Net, batch: Batch, loc: Loc) -> Tensor:
        weak = net(batch.x)
        total = loc.objective(weak, batch.y)
        missing = ~batch.known
        if self.strength == 0 or not missing.any():
            return total
        p = weak.detach().sigmoid()
        sure = (p < self.low) | (p > self.high)
        if self.every:
            sure = (sure | ~missing).all(1, keepdim=True)
        cells = bce_cells(net(batch.views[1]), p > 0.5).masked_fill(~sure, 0.0)
        return total + self.strength * masked_mean(cells, missing if self.over == "all" else missing & sure)
