"""A frozen network beside the trained one: whether all sites have the same, and how far features are from its
(Fed-MAS)."""

from __future__ import annotations

import hashlib

import torch
import torch.nn.functional as F
from torch import Tensor

from equipoise.exchange import Answers
from equipoise.leaves import ONE, Limit, Sum, Upload

LIMITS = {"byte": Limit(plain=255), "square": Limit(plain=255**2), "count": ONE}
"""what no honest `fingerprint` exceeds, by leaf"""


def fingerprint(text: str) -> Upload:
    """A text in a form that, added up over sites, shows only whether all sites have the same."""
    byte = torch.tensor(list(hashlib.sha256(text.encode()).digest()), dtype=torch.int64)
    return {"byte": Sum(byte), "square": Sum(byte**2), "count": Sum(torch.tensor(1))}


def all_equal(sums: Answers) -> bool:
    """Whether all fingerprints are equal: exactly when n Σ d² = (Σ d)², byte by byte."""
    return torch.equal(sums["count"] * sums["square"], sums["byte"] ** 2)


def feature_distance(a: Tensor, b: Tensor) -> Tensor:
    """L_f per image: 2 − 2 cos(a, b)."""
    return 2 - 2 * F.cosine_similarity(a, b.to(a.dtype))


def rescue_factor(before: Tensor, during: Tensor, normalised: bool = False) -> float:
    """RF = Σ_k w_k ŵ_k over classes; `normalised` scales both to sum 1 first, as the published code does."""
    before, during = before.clamp_min(0), during.clamp_min(0)  # a cosine may be a rounding error above 1
    if normalised:
        before, during = before / before.sum().clamp_min(1e-12), during / during.sum().clamp_min(1e-12)
    return float((before * during).sum())
