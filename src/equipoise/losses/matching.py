"""Features made to give wanted classifier gradients, and a classifier trained on them (CReFF)."""

from __future__ import annotations

from collections.abc import Mapping

import torch
import torch.nn.functional as F
from torch import Tensor

Head = Mapping[str, Tensor]
"""`weight` and `bias` of a linear classifier, or gradients of them"""


def class_gradient(z: Tensor, head: Head, c: Tensor) -> dict[str, Tensor]:
    """Of features [G, m, d] in groups of one class each, c [G]: the mean gradient of cross-entropy at a
    linear head."""
    miss = F.linear(z, head["weight"].to(z), head["bias"].to(z)).softmax(2)
    miss = (miss - F.one_hot(c, miss.shape[2])[:, None]) / z.shape[1]
    return {"weight": miss.transpose(1, 2) @ z, "bias": miss.sum(1)}


def mismatch(gradient: Head, wanted: Head) -> Tensor:
    """[G]: Σ over weight rows of 1 − cos, plus 1 − cos of the bias."""
    rows = 1 - F.cosine_similarity(gradient["weight"], wanted["weight"], dim=2)
    return rows.sum(1) + 1 - F.cosine_similarity(gradient["bias"], wanted["bias"], dim=1)


def match(features: Tensor, head: Head, wanted: Head, seen: Tensor, steps: int, rate: float) -> Tensor:
    """Features [C, m, d] moved until their head gradients point where the sites' do; classes not seen stay as
    they are."""
    c = seen.nonzero().flatten()
    moving, target = features[c].clone(), {name: tensor[c] for name, tensor in wanted.items()}
    for _ in range(steps):
        moving.requires_grad_()
        (slope,) = torch.autograd.grad(mismatch(class_gradient(moving, head, c), target).sum(), moving)
        moving = moving.detach() - rate * slope
    return features.index_copy(0, c, moving)


def train_head(
    head: Head, features: Tensor, epochs: int, rate: float, batch: int, draw: torch.Generator
) -> dict[str, Tensor]:
    """The head after SGD with cross-entropy over all features [C, m, d], in shuffled batches."""
    classes, m, width = features.shape
    weight, bias, x = head["weight"].clone(), head["bias"].clone(), features.reshape(-1, width)
    truth = torch.eye(classes, dtype=features.dtype).repeat_interleave(m, 0)
    for _ in range(epochs):
        for some in torch.randperm(len(x), generator=draw).split(batch):
            miss = (F.linear(x[some], weight, bias).softmax(1) - truth[some]) / len(some)
            weight, bias = weight - rate * miss.T @ x[some], bias - rate * miss.sum(0)
    return {"weight": weight, "bias": bias}
