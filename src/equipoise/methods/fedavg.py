"""FedAvg: train locally, average by data size.

McMahan et al., "Communication-efficient learning of deep networks from decentralized data", AISTATS 2017,
Algorithm 1. Deviation: the change of the weights is averaged rather than the weights (the same mean, and
smaller numbers to exchange). Leaves the site: delta (mean), loss (mean). Stays: nothing.
"""

from __future__ import annotations

from typing import Any, ClassVar

from equipoise.methods.base import Method, Standard


class FedAvg(Method):
    """w ← Σ_k (n_k / Σ n) w_k, with any base loss."""

    paper: ClassVar[str] = "McMahan et al. 2017"
    neutral: ClassVar[dict[str, Any] | None] = {}
    standard: ClassVar[Standard | None] = "plain"
