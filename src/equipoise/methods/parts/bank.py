"""A bank of classifier heads on one body (FedSDC), two-layered or linear: how they are drawn, and how they
vote."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from equipoise.exchange import Ask
from equipoise.methods.parts.crt import fresh
from equipoise.nets import HEAD, Net, state
from equipoise.site import Batch
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


def draw_bank(count: int, width: int, classes: int, narrowest: float | None, draw: torch.Generator) -> Tree:
    """`count` heads by slot, each initialised as linear layers are; one width in each of `count` equal bins
    up from `narrowest`, or linear heads without it."""
    heads: Tree = {}
    for slot in range(count):
        if narrowest is None:
            linear = {"weight": _uniform(draw, classes, width, fan=width)}
            heads[f"{slot:03d}"] = linear | {"bias": _uniform(draw, classes, fan=width)}
            continue
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


def head_of(net: Net) -> dict[str, Tensor]:
    """The tensors of the head a net holds."""
    tensors = {name.removeprefix(HEAD): t for name, t in state(net).items() if name.startswith(HEAD)}
    return {name: tensor.detach().cpu().clone() for name, tensor in tensors.items()}


def drawn_anew(head: Tree, draw: torch.Generator) -> Tree:
    """A head of the same layers and width with other weights."""
    layers = {name: tensor for name, tensor in head.items() if name.endswith(("weight", "bias"))}
    return head | fresh(layers, draw)


def dealt(
    slots: Sequence[str], sites: Sequence[str], count: int, draw: torch.Generator | None
) -> dict[str, str]:
    """By site the slot it gets, of numbers up to `count` in order or drawn; slots go round where there are
    fewer."""
    order = list(range(count))
    if draw is not None:
        order = torch.randperm(len(order), generator=draw).tolist()
    return {site: slots[order[j] % len(slots)] for j, site in enumerate(sites)}


def retrained(server: Tree, ask: Ask, question: Any, rounds: int, shuffle: bool) -> Tree:
    """cRT of a bank: every head drawn anew and dealt to all sites, `rounds` times; one that several sites
    held is their mean."""
    draw, slots = ask.generator("crt"), sorted(server["heads"])
    heads = {slot: drawn_anew(server["heads"][slot], draw) for slot in slots}
    for step in range(rounds):
        owned = dealt(slots, ask.sites, len(ask.sites), draw if shuffle else None)
        each = {site: {"head": heads[slot]} for site, slot in owned.items()}
        up = ask(question, model=server["model"], step=torch.tensor(step), each=each)
        for slot in slots:
            held = [head for site, head in up["head"].items() if owned[site] == slot]
            if held:
                heads[slot] = {name: torch.stack([one[name] for one in held]).mean(0) for name in held[0]}
    return heads


def ranked(confusion: Tensor, micro: bool) -> Tensor:
    """The slots of [H, C, C] counts, best first: by balanced accuracy, or by micro-F1."""
    support, right = confusion.sum(2), confusion.diagonal(dim1=1, dim2=2)
    if micro:
        score = right.sum(1) / support.sum(1)
    else:
        score = (right / support.clamp_min(1)).sum(1) / (support > 0).sum(1)
    return score.argsort(descending=True, stable=True)


def confusions(net: Net, heads: Tree, batches: Iterable[Batch], classes: int) -> Tensor:
    """int64 [H, C, C]: of every head, true by predicted class."""
    confusion = torch.zeros(len(heads), classes * classes, dtype=torch.int64)
    for batch in batches:
        guess = bank_logits(net.body(batch.x), heads).argmax(2).cpu()
        for slot in range(len(heads)):
            cells = batch.y.cpu() * classes + guess[slot]
            confusion[slot] += torch.bincount(cells, minlength=classes * classes)
    return confusion.view(len(heads), classes, classes)
