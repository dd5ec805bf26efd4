"""Models of single sites at the coordinator: for methods that weigh sites by how far their models lie
apart."""

from __future__ import annotations

from collections.abc import Collection, Mapping

import torch
from torch import Tensor

from equipoise.leaves import Each, Limit, Upload
from equipoise.site import Loc
from equipoise.tree import Tree, combine

COUNTED = Limit(images=1.0, least=1.0)
"""a site's samples, seen by themselves: it has at least one, and no more than it said"""
Change = Mapping[str, Tensor]
"""how far one site moved each shared tensor"""


def shown(up: Upload, loc: Loc) -> Upload:
    """The same answer with the site's change and its number of samples to be seen by themselves, not in a
    mean: the coordinator decides how much each counts."""
    loc.notes.pop("weight", None)
    return up | {"delta": Each(up["delta"].value), "samples": Each(torch.tensor(loc.samples))}


def distance(a: Change, b: Change) -> float:
    """Σ over tensors of the norm of their difference (not the norm of all of it); shared tensors are never
    integers."""
    changes = ((a[name] - b[name]).flatten() for name in a)
    return sum(float(torch.linalg.vector_norm(change, dtype=torch.float64)) for change in changes)


def blend(changes: Mapping[str, Change], weight: Tensor) -> Tree:
    """Σ_k weight_k · change_k over the sites, in their order."""
    scales = weight.tolist()
    return combine(lambda *xs: sum(s * x for s, x in zip(scales, xs, strict=True)), *changes.values())


def nearness(changes: Mapping[str, Change], samples: Tensor, noisy: Collection[str]) -> Tensor:
    """ω: n_k e^{−D_k}, scaled to sum 1."""
    clean = [change for site, change in changes.items() if site not in noisy]
    near = [
        min((distance(x, y) for y in clean), default=0.0) if site in noisy else 0.0
        for site, x in changes.items()
    ]
    far = torch.tensor(near, dtype=torch.float64)
    weight = samples * torch.exp(-far / (far.max() if far.any() else 1.0))
    return weight / weight.sum()
