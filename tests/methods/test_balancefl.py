"""BalanceFL: its loss by loops in double precision, the covariance of its noise, and what every option
changes."""

from __future__ import annotations

import copy
import math
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from equipoise.losses import make_objective, parse_objective
from equipoise.methods.balancefl import BalanceFL, distillation, noise_vectors
from equipoise.methods.base import Method
from equipoise.methods.fedavg import FedAvg
from equipoise.nets import Net
from equipoise.running import run
from equipoise.site import Batch
from equipoise.testing import same_bits

NAME = "balancefl"
PLAIN = BalanceFL.neutral or {}


def drawn(*shape: int, seed: int) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def place(counts: list[float], teacher: Net | None = None, noise: Tensor | None = None) -> Any:
    """As much of a `Loc` as the loss looks at."""
    n = torch.tensor(counts, dtype=torch.float64)
    objective = make_objective(parse_objective("cross_entropy"), counts=n, total=int(n.sum()), task="single")
    scratch = {"teacher": teacher, "noise": noise, "draw": torch.Generator().manual_seed(8)}
    return SimpleNamespace(objective=objective, counts=n, classes=("a",) * len(counts), scratch=scratch)


@pytest.fixture
def net(double_net: Callable[..., Net]) -> Net:
    return double_net("fed")


def batch_of(*y: int) -> Batch:
    return Batch(views=(drawn(len(y), 3, 16, 16, seed=1),), y=torch.tensor(y), index=torch.arange(len(y)))


def softmax(z: list[float]) -> list[float]:
    top = [math.exp(v - max(z)) for v in z]
    return [v / sum(top) for v in top]


def by_hand(
    method: BalanceFL, z: Tensor, noisy: Tensor, guide: Tensor, y: Tensor, present: list[int]
) -> float:
    absent = [c for c in range(3) if c not in present]
    ce = kd = entropy = 0.0
    for i, c in enumerate(y.tolist()):
        ce -= math.log(softmax([float(noisy[i, k]) for k in present])[present.index(c)]) / len(y)
        p = softmax([float(z[i, k]) for k in present])
        entropy -= sum(v * math.log(v) for v in p)
        if absent:
            q = softmax([float(guide[i, k]) / method.temperature for k in absent])
            p = softmax([float(z[i, k]) / method.temperature for k in absent])
            kd -= sum(a * math.log(b) for a, b in zip(q, p, strict=True)) / len(y)
    return ce + method.distil * kd - method.entropy * entropy


@pytest.mark.parametrize(
    ("counts", "present", "classes"),
    [
        ([5, 0, 0], "site", [0]),
        ([6, 3, 0], "site", [0, 1]),
        ([6, 3, 2], "site", [0, 1, 2]),
        ([6, 3, 2], "batch", [0]),
    ],
)
def test_loss_by_loops(net: Net, counts: list[float], present: Any, classes: list[int]) -> None:
    method = BalanceFL(present=present, distil=1.5, entropy=0.1, noise=2.0)
    batch = batch_of(*([0] if present == "batch" else classes) * 12)
    teacher, vectors = copy.deepcopy(net), drawn(7, 64, seed=3)
    with torch.no_grad():
        teacher.head["fed"].weight.add_(drawn(3, 64, seed=4))
    f = net.features(batch.x).detach()
    draw, noise = torch.Generator().manual_seed(8), torch.zeros(len(batch), 64, dtype=torch.float64)
    chosen, pick = torch.rand(len(batch), generator=draw), torch.randint(7, (len(batch),), generator=draw)
    for i, c in enumerate(batch.y.tolist()):
        if float(chosen[i]) < 1 - counts[c] / max(counts):
            noise[i] = 2 * vectors[pick[i]]
    assert bool(noise.any()) == (len(classes) > 1)
    z, noisy, guide = net.head["fed"](f), net.head["fed"](f + noise), teacher(batch.x)
    found = method.loss(net, batch, place(counts, teacher, vectors))
    expected = by_hand(method, *(x.detach() for x in (z, noisy, guide)), batch.y, classes)
    assert float(found.detach()) == pytest.approx(expected, rel=1e-9)


def test_absent_classes_learn_from_the_received_model_only(net: Net) -> None:
    batch, teacher = batch_of(0, 0, 0), copy.deepcopy(net).requires_grad_(False)
    for distil in (0.0, 1.0):
        with torch.no_grad():
            teacher.head["fed"].bias.copy_(torch.tensor([0.0, 3.0, -3.0]))
        loss = BalanceFL(distil=distil, noise=0, entropy=0).loss(net, batch, place([4, 0, 0], teacher))
        (slope,) = torch.autograd.grad(loss, net.head["fed"].bias, retain_graph=False)
        assert float(slope[0].abs()) < 1e-12  # one class alone: its softmax is 1 whatever the logit
        assert (
            (float(slope[1]) < -1e-3 and float(slope[2]) > 1e-3)
            if distil
            else float(slope[1:].abs().max()) == 0
        )


def test_distillation_has_no_square_of_the_temperature_and_vanishes_for_one_class() -> None:
    teacher, student = drawn(4, 3, seed=1), drawn(4, 3, seed=2).requires_grad_()
    loss = distillation(teacher, student, 2.0)
    (slope,) = torch.autograd.grad(loss, student)
    expected = ((student / 2).softmax(1) - (teacher / 2).softmax(1)) / 2 / 4
    torch.testing.assert_close(slope, expected.detach(), rtol=1e-10, atol=1e-14)
    assert float(distillation(teacher[:, :1], student[:, :1].detach(), 2.0)) == 0.0


def test_noise_has_the_mean_class_covariance() -> None:
    y = torch.tensor([0] * 6 + [1] * 3 + [3])  # class 2 is absent, class 3 has a single image
    x = drawn(10, 3, seed=5) + 5 * y[:, None]
    expected = np.zeros((3, 3))
    for c, n in ((0, 6), (1, 3)):
        expected += n / 10 * np.cov(x[y == c].numpy().T)
    noise = noise_vectors(x, y, torch.tensor([6, 3, 0, 1]), 200_000, torch.Generator().manual_seed(0))
    assert noise.shape == (200_000, 3)
    np.testing.assert_allclose(noise.mean(0).numpy(), 0, atol=0.02)
    np.testing.assert_allclose(np.cov(noise.numpy().T), expected, atol=0.03 * np.abs(expected).max())


def test_commonest_class_gets_no_noise_and_a_rare_one_its_share() -> None:
    loc = place([100, 25, 0], noise=torch.ones(4, 2, dtype=torch.float64))
    y = torch.tensor([0, 1] * 4000)
    batch = Batch(views=(), y=y, index=y)
    hit = BalanceFL(noise=3.0).draw_noise(batch, loc)
    assert set(hit.flatten().tolist()) == {0.0, 3.0}
    assert float(hit[::2].sum()) == 0
    assert float((hit[1::2] > 0).double().mean()) == pytest.approx(0.75, abs=0.03)


def test_teacher_normalises_as_said(make_config: Callable[..., Any], visit: Callable[..., Any]) -> None:
    net, loc = visit(make_config({"name": NAME}), "west")
    for teacher, by_batch in (("eval", False), ("batch", True)):
        BalanceFL(teacher=teacher).prepare(net, loc)  # type: ignore[arg-type]
        kept = loc.scratch["teacher"]
        assert kept is not net and kept.body.norm1.training == by_batch and not kept.head.training
        assert not any(p.requires_grad for p in kept.parameters())
    assert loc.scratch["noise"].shape == (500, 64)


def test_rows_are_drawn_evenly_by_class(make_config: Callable[..., Any], visit: Callable[..., Any]) -> None:
    _, loc = visit(make_config({"name": NAME}), "north")
    rows = torch.cat([loc.balanced(epoch) for epoch in range(600)])
    assert len(rows) == 600 * 9
    share = torch.bincount(loc.train.labels[rows], minlength=3) / len(rows)
    assert share.tolist() == pytest.approx([1 / 3] * 3, abs=0.025)
    assert torch.equal(loc.balanced(3), loc.balanced(3)) and not torch.equal(loc.balanced(3), loc.balanced(4))


def test_neutral_is_fedavg_and_every_option_is_felt(
    make_config: Callable[..., Any], visit: Callable[..., Any]
) -> None:
    """At a site that lacks a class, so that restriction has something to do, and one that lacks two, for
    distillation."""

    def moved(method: Method, site: str) -> Tensor:
        net, loc = visit(make_config({"name": "fedavg"}, ["only", "pair"], lr=0.02, epochs=2), site)
        return method.train(net, loc)["delta"].value["head.fed.weight"]  # type: ignore[index]

    for site in ("only", "pair"):
        assert same_bits(moved(FedAvg(), site), moved(BalanceFL(**PLAIN), site))
        assert not torch.allclose(moved(FedAvg(), site), moved(BalanceFL(), site))
    for option in (
        {"balanced": True},
        {"noise": 1.0},
        {"entropy": 0.05},
        {"present": "site"},
        {"present": "batch"},
    ):
        assert not same_bits(
            moved(BalanceFL(**PLAIN), "pair"), moved(BalanceFL(**(PLAIN | option)), "pair")
        ), option
    for option in ({"distil": 0.0}, {"temperature": 1.0}, {"teacher": "batch"}):
        assert not same_bits(moved(BalanceFL(), "only"), moved(BalanceFL(**option), "only")), option
    assert not same_bits(moved(BalanceFL(), "pair"), moved(BalanceFL(vectors=3), "pair"))


def test_released_head_has_no_bias(make_config: Callable[..., Any], tmp_path: Path) -> None:
    server = run(make_config({"name": NAME, "preset": "released"}, rounds=1), tmp_path / "run").server
    assert [name for name in server["model"] if name.startswith("head.")] == ["head.fed.weight"]
