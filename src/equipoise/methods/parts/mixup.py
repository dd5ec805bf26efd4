"""Mixup (Zhang, Cisse, Dauphin, Lopez-Paz, ICLR 2018): each image has a share of another one of its batch,
and its loss is that of both labels in these shares."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from equipoise.site import Batch


def mixed(x: Tensor, most: float, draw: torch.Generator) -> tuple[Tensor, Tensor, float]:
    """x' = (1 − s) x + s x_π, the order π of the batch, and s: one share for all images, between 0 and
    `most`."""
    share = most * float(torch.rand((), generator=draw))
    order = torch.randperm(len(x), generator=draw).to(x.device)
    return torch.lerp(x, x[order], share), order, share


def mixed_loss(
    net: Callable[[Tensor], Tensor],
    batch: Batch,
    loss: Callable[[Tensor, Tensor], Tensor],
    most: float,
    draw: torch.Generator,
) -> Tensor:
    """The loss of mixed images: (1 − s) loss(logits, y) + s loss(logits, y_π); with `most` 0 of images as
    they are."""
    if not most:
        return loss(net(batch.x), batch.y)
    x, order, share = mixed(batch.x, most, draw)
    logits = net(x)
    return (1 - share) * loss(logits, batch.y) + share * loss(logits, batch.y[order])
