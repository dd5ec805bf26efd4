"""FedProx: a proximal pull towards the received model.

Li et al., "Federated optimization in heterogeneous networks", MLSys 2020, Eq. 2: base loss + (μ/2) Σ ‖w −
w_received‖² over trainable tensors; buffers are left out. The original's partial local work is not built:
none of the comparisons here uses it. Leaves the site: as FedAvg. Stays: nothing.
"""

from __future__ import annotations

from typing import Any, ClassVar

import torch
from pydantic import Field
from torch import Tensor

from equipoise.methods.base import Method
from equipoise.nets import Net
from equipoise.site import Batch, Loc


class FedProx(Method):
    """FedAvg whose local loss is tied to the received model."""

    paper: ClassVar[str] = "Li et al. 2020"
    neutral: ClassVar[dict[str, Any] | None] = {"mu": 0.0}
    presets: ClassVar[dict[str, dict[str, Any]]] = {
        "fediic": {"mu": 0.01},
        "fca": {"mu": 0.01},
        "fedmas": {"mu": 0.001},
        "fedsdc": {"mu": 0.5},
    }

    mu: float = Field(0.01, ge=0)
    """strength of the pull"""

    def prepare(self, net: Net, loc: Loc) -> None:
        loc.scratch["received"] = [p.detach().clone() for p in net.parameters()]

    def loss(self, net: Net, batch: Batch, loc: Loc) -> Tensor:
        base = super().loss(net, batch, loc)
        if self.mu == 0:
            return base
        distance = sum(
            (torch.sum((p - q) ** 2) for p, q in zip(net.parameters(), loc.scratch["received"], strict=True)),
            torch.zeros((), device=base.device),
        )
        return base + 0.5 * self.mu * distance
