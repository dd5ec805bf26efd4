"""Mixup (Zhang, Cisse, Dauphin, Lopez-Paz, ICLR 2018): each image has a share of another one of its batch,
and its loss is that of both labels in these shares."""

from __future__ import annotations

import torch
from torch import Tensor


def mixed(x: Tensor, most: float, draw: torch.Generator) -> tuple[Tensor, Tensor, float]:
    """x' = (1 − s) x + s x_π, the order π of the batch, and s: one share for all images, between 0 and
    `most`."""
    share = most * float(torch.rand((), generator=draw))
    order = torch.randperm(len(x), generator=draw).to(x.device)
    return torch.lerp(x, x[order], share), order, share
