"""A bank of classifier heads on one body (FedSDC), two-layered or linear: how they are drawn, and how they
vote."""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from equipoise.tree import Tree


class Bottleneck(nn.Module):
    """Two linear layers and dropout between them; `units` switches off the hidden units beyond the head's
    width."""

    def __init__(self, width: int, classes: int, dropout: float) -> None:
        super().__init__()
        self.down, self.up = nn.Linear(width, width), nn.Linear(width, classes)
        self.dropout = nn.Dropout(dropout)
        self.register_buffer("units", torch.ones(width))

    def forward(self, z: Tensor) -> Tensor:
        result: Tensor = self.up(self.dropout(self.down(z) * self.units))
        return result


def draw_bank(count: int, width: int, classes: int, narrowest: float, draw: torch.Generator) -> Tree:
    """`count` heads by slot, each initialised as linear layers are; one width in each of `count` equal bins
    up from `narrowest`."""
    heads: Tree = {}
    for slot in range(count):
        share = narrowest + (1 - narrowest) * (slot + float(torch.rand((), generator=draw))) / count
        units = max(1, int(share * width))
        heads[f"{slot:03d}"] = {
            "down.weight": _uniform(draw, width, width, fan=width),
            "down.bias": _uniform(draw, width, fan=width),
            "up.weight": _uniform(draw, classes, width, fan=units),
            "up.bias": _uniform(draw, classes, fan=units),
            "units": (torch.arange(width) < units).float(),
        }
    return heads


def draw_linear(count: int, width: int, classes: int, draw: torch.Generator) -> Tree:
    """`count` linear heads by slot."""
    return {
        f"{slot:03d}": {
            "weight": _uniform(draw, classes, width, fan=width),
            "bias": _uniform(draw, classes, fan=width),
        }
        for slot in range(count)
    }


def _uniform(draw: torch.Generator, *shape: int, fan: int) -> Tensor:
    return (torch.rand(shape, generator=draw) * 2 - 1) / math.sqrt(fan)


def bank_logits(z: Tensor, heads: Tree) -> Tensor:
    """[H, N, C]: every head's logits of the same features, in the order of their slots, without dropout."""
    logits = []
    for slot in sorted(heads):
        head = {name: tensor.to(z) for name, tensor in heads[slot].items()}
        if "weight" in head:
            logits.append(F.linear(z, head["weight"], head["bias"]))
            continue
        hidden = F.linear(z, head["down.weight"], head["down.bias"]) * head["units"]
        logits.append(F.linear(hidden, head["up.weight"], head["up.bias"]))
    return torch.stack(logits)


def vote(logits: Tensor) -> Tensor:
    """Hard votes [N, C] of [H, N, C] logits, with less than a vote on top: of classes in the lead together,
    the one with the largest sum of logits is ahead, and equal counts are told apart by the softmax of that
    sum."""
    votes, total = F.one_hot(logits.argmax(2), logits.shape[2]).sum(0), logits.sum(0)
    winner = total.masked_fill(votes < votes.amax(1, keepdim=True), -torch.inf).argmax(1)
    return votes + 0.25 * F.one_hot(winner, logits.shape[2]) + 0.5 * total.softmax(1)
