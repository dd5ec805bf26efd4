"""Teachers: the exponential mean by hand, and how a weight rises."""

from __future__ import annotations

import math
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from equipoise.methods.parts.teacher import Teacher, rise, still
from equipoise.nets import Net, state


def move(net: Net, seed: int) -> None:
    draw = torch.Generator().manual_seed(seed)
    for tensor in state(net).values():
        tensor.add_(torch.randn(tensor.shape, generator=draw, dtype=torch.float64))


def test_teacher_is_the_exponential_mean_of_every_tensor(double_net: Callable[..., Net]) -> None:
    net, loc = double_net("fed"), SimpleNamespace(mine={})
    expected = {name: tensor.clone() for name, tensor in state(net).items()}
    teacher = Teacher(net, loc, 0.9)  # type: ignore[arg-type]
    for seed in range(3):
        move(net, seed)
        teacher.follow(net)
        expected = {name: 0.9 * tensor + 0.1 * state(net)[name] for name, tensor in expected.items()}
    assert any("running_var" in name for name in expected)
    for name, tensor in expected.items():
        torch.testing.assert_close(loc.mine["teacher"][name], tensor, rtol=1e-12, atol=1e-12)


def test_what_the_site_kept_is_where_the_teacher_goes_on(double_net: Callable[..., Net]) -> None:
    net, mine = double_net("fed"), SimpleNamespace(mine={})
    Teacher(net, mine, 0.5)  # type: ignore[arg-type]
    kept = {name: tensor.clone() for name, tensor in mine.mine["teacher"].items()}
    move(net, 0)
    again: Any = SimpleNamespace(mine={"teacher": kept})
    teacher = Teacher(net, again, 0.5)
    assert all(torch.equal(tensor, kept[name]) for name, tensor in state(teacher.net).items())
    teacher.follow(net)
    assert not torch.equal(again.mine["teacher"]["head.fed.weight"], kept["head.fed.weight"])


def test_teacher_does_not_learn(double_net: Callable[..., Net]) -> None:
    net = double_net("fed").train()
    copy = still(net)
    assert not copy.training and net.training
    assert not any(p.requires_grad for p in copy.parameters()) and all(
        p.requires_grad for p in net.parameters()
    )
    x = torch.randn(3, 3, 16, 16, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    teacher = Teacher(net, SimpleNamespace(mine={}), 0.5)  # type: ignore[arg-type]
    assert not teacher(x).requires_grad
    torch.testing.assert_close(teacher(x), net.eval()(x))


@pytest.mark.parametrize(
    ("round", "ramp", "t"),
    [(-3, 10, 0), (0, 10, 0), (5, 10, 0.5), (10, 10, 1), (99, 10, 1), (0, 0, 1), (20, 30, 2 / 3)],
)
def test_rise(round: int, ramp: int, t: float) -> None:
    assert rise(round, ramp) == pytest.approx(math.exp(-5 * (1 - t) ** 2), rel=1e-12)
