"""BatchNorm and what federated learning does with it: average it, keep it local, freeze it, or replace it."""

from __future__ import annotations

from typing import Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm as BatchNorm

from equipoise.errors import ConfigError

BatchNormPolicy = Literal["average", "local", "frozen", "group"]
MOST_GROUPS = 8

PLAIN = (nn.BatchNorm1d, nn.BatchNorm2d, nn.SyncBatchNorm)
"""layers that do nothing but normalise"""


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


def normed(conv: nn.Conv2d, norm: nn.Module, x: Tensor) -> Tensor:
    """`norm(conv(x))`. Where nothing is trained, a BatchNorm is part of the convolution, which spares a pass
    over its output: with the small CNN two fifths of the time."""
    if type(norm) is not nn.BatchNorm2d or norm.training or torch.is_grad_enabled():
        result: Tensor = norm(conv(x))
        return result
    assert norm.running_mean is not None
    assert norm.running_var is not None
    scale = norm.weight * torch.rsqrt(norm.running_var + norm.eps)
    shift = norm.bias - norm.running_mean * scale
    weight = conv.weight * scale[:, None, None, None]
    return F.conv2d(x, weight, shift, conv.stride, conv.padding, conv.dilation, conv.groups)


def to_group_norm(net: nn.Module) -> None:
    """Replace every BatchNorm layer by a GroupNorm with the same scale and shift, which needs no batch
    statistics."""
    new: dict[BatchNorm, nn.GroupNorm] = {}  # a layer in several places stays one
    for parent in list(net.modules()):
        for name, layer in list(parent._modules.items()):
            if isinstance(layer, BatchNorm):
                new.setdefault(layer, _group_norm(layer))
                setattr(parent, name, new[layer])


def _group_norm(old: BatchNorm) -> nn.GroupNorm:
    if type(old) not in PLAIN:
        raise ConfigError(
            f'net.batch_norm = "group": a {type(old).__name__} may do more than normalise and cannot be '
            "replaced; choose another policy"
        )
    channels = old.num_features
    groups = next(g for g in range(min(MOST_GROUPS, channels), 0, -1) if channels % g == 0)
    new = nn.GroupNorm(groups, channels, eps=old.eps, affine=old.affine)
    if old.affine:
        with torch.no_grad():
            new.weight.copy_(old.weight)
            new.bias.copy_(old.bias)
    return new
