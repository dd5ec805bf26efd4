"""A personal model at a site, beside the one that travels (PRR-Imb)."""

from __future__ import annotations

import copy

import torch
from torch import Tensor

from equipoise.nets import Net, load, state
from equipoise.site import Loc


def copied(net: Net) -> dict[str, Tensor]:
    """All its tensors as they are now."""
    return {name: tensor.detach().cpu().clone() for name, tensor in state(net).items()}


def personal_of(net: Net, loc: Loc) -> Net:
    """The site's personal model, beside the deputy."""
    personal = copy.deepcopy(net)
    load(personal, loc.mine["personal"])
    return personal


@torch.no_grad()
def class_features(net: Net, loc: Loc) -> Tensor:
    """[C, d]: the mean feature of the site's images of each class; zero where there is none."""
    total = torch.zeros(len(loc.classes), net.width)
    for batch in loc.scan():
        total.index_add_(0, batch.y.cpu(), net.body(batch.x).cpu())
    return total / loc.counts.clamp_min(1)[:, None].float()


def macro_f1(confusion: Tensor) -> float:
    """The mean F1 of the classes that occur among labels or predictions of a confusion matrix."""
    sizes = confusion.sum(0) + confusion.sum(1)
    return float((2 * confusion.diagonal()[sizes > 0] / sizes[sizes > 0]).mean())


def first_personal(net: Net, draw: torch.Generator) -> dict[str, Tensor]:
    """The net's tensors with a head of the site's own."""
    personal = copied(net)
    for name, tensor in personal.items():
        if name.startswith("head."):
            personal[name] = (torch.rand(tensor.shape, generator=draw) * 2 - 1) * net.width**-0.5
    return personal
