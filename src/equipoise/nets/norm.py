"""BatchNorm and what federated learning does with it: average it, keep it local, freeze it, or replace it."""

from __future__ import annotations

from typing import Literal

import torch
from torch import nn

BatchNormPolicy = Literal["average", "local", "frozen", "group"]
MOST_GROUPS = 8

BatchNorm = nn.BatchNorm1d | nn.BatchNorm2d


def batch_norms(net: nn.Module) -> list[BatchNorm]:
    """Every BatchNorm layer of the net, in order."""
    return [layer for layer in net.modules() if isinstance(layer, BatchNorm)]


def batch_norm_names(net: nn.Module) -> tuple[str, ...]:
    """Names of all that BatchNorm layers hold: scale, shift, running mean and running variance."""
    return tuple(
        f"{prefix}.{name}"
        for prefix, layer in net.named_modules()
        if isinstance(layer, BatchNorm)
        for name, tensor in layer.state_dict().items()
        if tensor.is_floating_point()
    )


def to_group_norm(net: nn.Module) -> None:
    """Replace every BatchNorm layer by a GroupNorm with the same scale and shift, which needs no batch
    statistics."""
    for parent in list(net.modules()):
        for name, layer in list(parent.named_children()):
            if isinstance(layer, BatchNorm):
                setattr(parent, name, _group_norm(layer))


def _group_norm(old: BatchNorm) -> nn.GroupNorm:
    channels = old.num_features
    groups = next(g for g in range(min(MOST_GROUPS, channels), 0, -1) if channels % g == 0)
    new = nn.GroupNorm(groups, channels, eps=old.eps)
    with torch.no_grad():
        new.weight.copy_(old.weight)
        new.bias.copy_(old.bias)
    return new
