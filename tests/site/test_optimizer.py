"""The local optimisers take torch.optim's steps, bit for bit, and go on from kept moments as if never
stopped."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn

from equipoise.site import TrainOptions
from equipoise.site.optimizer import Optimizer

CASES: list[tuple[dict[str, Any], type[torch.optim.Optimizer], dict[str, Any]]] = [
    ({"optimizer": "sgd"}, torch.optim.SGD, {}),
    (
        {"optimizer": "sgd", "momentum": 0.9, "weight_decay": 1e-2},
        torch.optim.SGD,
        {"momentum": 0.9, "weight_decay": 1e-2},
    ),
    (
        {"optimizer": "sgd", "momentum": 0.9, "nesterov": True},
        torch.optim.SGD,
        {"momentum": 0.9, "nesterov": True},
    ),
    ({"optimizer": "adam", "weight_decay": 5e-4}, torch.optim.Adam, {"weight_decay": 5e-4}),
    ({"optimizer": "adamw", "weight_decay": 1e-2}, torch.optim.AdamW, {"weight_decay": 1e-2}),
]


def parameters() -> dict[str, nn.Parameter]:
    draw = torch.Generator().manual_seed(0)
    return {
        "kernel": nn.Parameter(torch.randn(4, 3, 3, 3, generator=draw).to(memory_format=torch.channels_last)),
        "bias": nn.Parameter(torch.randn(4, generator=draw)),
    }


@pytest.mark.parametrize(("options", "reference", "arguments"), CASES)
def test_steps_are_those_of_torch(
    options: dict[str, Any], reference: type[torch.optim.Optimizer], arguments: dict
) -> None:
    ours, theirs = parameters(), parameters()
    optimizer = Optimizer(TrainOptions(**options), 0.01, ours)
    oracle = reference(list(theirs.values()), lr=0.01, fused=True, **arguments)
    draw = torch.Generator().manual_seed(1)
    for step in range(6):
        for name in ours:
            gradient = torch.randn(ours[name].shape, generator=draw)
            ours[name].grad, theirs[name].grad = gradient.clone(), gradient.clone()
        if step == 3:  # a site stops and comes back with what it kept
            kept = {
                name: {key: value.clone() for key, value in m.items()}
                for name, m in optimizer.moments.items()
            }
            optimizer = Optimizer(TrainOptions(**options), 0.01, ours)
            optimizer.restore(kept)
        optimizer.step()
        oracle.step()
        for name in ours:
            assert torch.equal(ours[name], theirs[name]), (step, name)


SHAPES = {"kernel": (4, 3, 3, 3), "bias": (4,), "late": (5, 2), "scalar": ()}
HAS_GRADIENT = {
    "kernel": (1, 1, 1, 1, 1, 1, 1, 1),
    "bias": (1, 0, 1, 1, 0, 0, 1, 1),  # at times
    "late": (0, 0, 1, 1, 0, 1, 1, 1),  # for the first time in the third step
    "scalar": (0, 1, 1, 0, 0, 0, 0, 0),  # and no more
}
"""by parameter and step"""


def some_parameters() -> dict[str, nn.Parameter]:
    draw = torch.Generator().manual_seed(0)
    return {name: nn.Parameter(torch.randn(shape, generator=draw)) for name, shape in SHAPES.items()}


@pytest.mark.parametrize("kept", [False, True])
@pytest.mark.parametrize(
    ("options", "reference", "arguments"),
    [
        *CASES,
        (
            {"optimizer": "sgd", "momentum": 0.9, "nesterov": True, "weight_decay": 1e-2},
            torch.optim.SGD,
            {"momentum": 0.9, "nesterov": True, "weight_decay": 1e-2},
        ),
    ],
)
def test_gradients_come_late_and_go_missing(
    options: dict[str, Any], reference: type[torch.optim.Optimizer], arguments: dict[str, Any], kept: bool
) -> None:
    """One oracle per parameter, since torch's fused SGD cannot start the momentum of one after another's; and
    one for all."""
    ours, theirs, together = some_parameters(), some_parameters(), some_parameters()
    optimizer = Optimizer(TrainOptions(**options), 0.01, ours)
    oracles = {name: reference([p], lr=0.01, fused=True, **arguments) for name, p in theirs.items()}
    unfused = reference(list(together.values()), lr=0.01, foreach=False, **arguments)
    draw = torch.Generator().manual_seed(1)
    for step in range(8):
        for name, shape in SHAPES.items():
            gradient = torch.randn(shape, generator=draw)
            for copies in (ours, theirs, together):
                copies[name].grad = gradient.clone() if HAS_GRADIENT[name][step] else None
            oracles[name].step()
        if kept:
            moments = {
                name: {key: value.clone() for key, value in m.items()}
                for name, m in optimizer.moments.items()
            }
            optimizer = Optimizer(TrainOptions(**options), 0.01, ours)
            optimizer.restore(moments)
        optimizer.step()
        unfused.step()
        for name in SHAPES:
            assert torch.equal(ours[name], theirs[name]), (step, name)
            torch.testing.assert_close(ours[name], together[name], rtol=1e-5, atol=1e-7)


def test_a_parameter_without_gradient_stays() -> None:
    named = parameters()
    before = named["bias"].detach().clone()
    named["kernel"].grad = torch.ones_like(named["kernel"])
    Optimizer(TrainOptions(optimizer="adam", weight_decay=0.1), 0.01, named).step()
    assert torch.equal(named["bias"], before)
