"""Server optimisers: every step against an explicit loop or torch.optim, in double precision."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from itertools import combinations
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from equipoise.methods.opt import (
    FedAdagrad,
    FedAdam,
    FedAvgM,
    FedYogi,
    ServerOptimizer,
    heavy_ball,
    parameters,
)
from equipoise.nets import Net, state
from equipoise.running import run
from equipoise.tree import Tree

STEPS = (0.3, -0.2, 0.05, 0.4)
"""the mean change of the scalar weight in four rounds"""


def play(
    method: ServerOptimizer, deltas: Sequence[Tree], start: Tree | None = None, net: Any = None
) -> list[Tree]:
    """The server tree after every round in which the sites' mean change is as given."""
    scalar = SimpleNamespace(named_parameters=lambda: [("w", None)])
    server, found = method.init(net or scalar, start or {"w": torch.ones(1).double()}), []
    for round, delta in enumerate(deltas):

        def ask(question: Any, *, model: Tree, delta: Tree = delta) -> Tree:
            assert question.__name__ == "train"
            return {"delta": delta}

        server = method.round(server, Asked(ask, round))  # type: ignore[arg-type]
        found.append(server)
    return found


class Asked:
    def __init__(self, ask: Callable[..., Tree], round: int) -> None:
        self._ask, self.round = ask, round

    def __call__(self, question: Any, **down: Any) -> Tree:
        return self._ask(question, **down)


def scalars(method: ServerOptimizer) -> list[float]:
    return [
        float(server["model"]["w"])
        for server in play(method, [{"w": torch.tensor([d], dtype=torch.float64)} for d in STEPS])
    ]


def test_momentum_by_hand() -> None:
    w, v, expected = 1.0, 0.0, []
    for d in STEPS:
        v = 0.7 * v - d
        w = w - 0.5 * v
        expected.append(w)
    assert scalars(FedAvgM(beta=0.7, lr=0.5)) == pytest.approx(expected, rel=1e-14)


def second_moment(kind: type, v: float, d: float) -> float:
    if kind is FedAdam:
        return 0.8 * v + 0.2 * d * d
    if kind is FedYogi:
        sign = (v > d * d) - (v < d * d)
        return v - 0.2 * d * d * sign
    return v + d * d


@pytest.mark.parametrize("kind", [FedAdam, FedYogi, FedAdagrad])
@pytest.mark.parametrize("v0", [0.0, 0.09, 0.5])
def test_adaptive_steps_by_hand(kind: type, v0: float) -> None:
    beta1, expected, w, m, v = 0.0 if kind is FedAdagrad else 0.6, [], 1.0, 0.0, v0
    for d in STEPS:
        m = beta1 * m + (1 - beta1) * d
        v = second_moment(kind, v, d)
        w = w + 0.1 * m / (math.sqrt(v) + 0.01)
        expected.append(w)
    options = {} if kind is FedAdagrad else {"beta1": 0.6, "beta2": 0.8}
    assert scalars(kind(lr=0.1, tau=0.01, v0=v0, **options)) == pytest.approx(expected, rel=1e-14)


@pytest.mark.slow  # to import torch.optim
@pytest.mark.parametrize(
    ("method", "oracle"),
    [
        (FedAvgM(beta=0.9, lr=0.3), lambda p: torch.optim.SGD(p, lr=0.3, momentum=0.9)),
        (
            FedAdagrad(lr=0.1, tau=1e-3, v0=0.2),
            lambda p: torch.optim.Adagrad(p, lr=0.1, eps=1e-3, initial_accumulator_value=0.2),
        ),
    ],
)
def test_same_as_the_optimiser_of_torch(method: ServerOptimizer, oracle: Callable[..., Any]) -> None:
    w = torch.ones(1).double().requires_grad_()
    optimizer, expected = oracle([w]), []
    for d in STEPS:
        w.grad = torch.tensor([-d], dtype=torch.float64)
        optimizer.step()
        expected.append(w.item())
    assert scalars(method) == pytest.approx(expected, rel=1e-9)


def test_bias_correction_by_hand() -> None:
    """Flower numbers rounds from 1 and raises to the power of round + 1: the first step is corrected as a
    second one."""
    w, m, v, expected = 1.0, 0.0, 0.0, []
    for t, d in enumerate(STEPS, 2):
        m, v = 0.6 * m + 0.4 * d, 0.8 * v + 0.2 * d * d
        w += 0.1 * math.sqrt(1 - 0.8**t) / (1 - 0.6**t) * m / (math.sqrt(v) + 0.01)
        expected.append(w)
    method = FedAdam(lr=0.1, beta1=0.6, beta2=0.8, tau=0.01, bias_correction=True)
    assert scalars(method) == pytest.approx(expected, rel=1e-13)


SITES = {"north": 30, "south": 10}
"""samples by site"""
TWO_SITES = [({"w": 0.4 * d, "running": 0.1}, {"w": 1.8 * d - 0.1, "running": 0.2}) for d in STEPS]
"""how each site moves a weight and a running statistic, by round"""


def strategy(name: str, **options: float) -> list[float]:
    """The weight and the statistic after every round of Flower's own strategy."""
    from flwr.app import Array, ArrayRecord, MetricRecord, RecordDict
    from flwr.serverapp import strategy as strategies

    def record(values: dict[str, float]) -> ArrayRecord:
        return ArrayRecord({key: Array(np.array([value])) for key, value in values.items()})

    oracle = getattr(strategies, name)(**options)
    now, found = {"w": 1.0, "running": 0.5}, []
    for round, moves in enumerate(TWO_SITES, 1):
        oracle.current_arrays = record(now)
        if name != "FedAvgM":
            oracle.current_arrays = {key: array.numpy() for key, array in oracle.current_arrays.items()}
        replies = []
        for samples, move in zip(SITES.values(), moves, strict=True):
            trained = record({key: now[key] + move[key] for key in now})
            content = RecordDict({"arrays": trained, "metrics": MetricRecord({"num-examples": samples})})
            replies.append(SimpleNamespace(content=content, has_error=lambda: False))
        arrays, _ = oracle.aggregate_train(round, replies)
        now = {key: float(arrays[key].numpy()[0]) for key in now}
        found += now.values()
    return found


@pytest.mark.slow  # to import Flower
@pytest.mark.parametrize(
    ("method", "name", "options"),
    [
        (FedAvgM(beta=0.7, lr=0.5), "FedAvgM", {"server_momentum": 0.7, "server_learning_rate": 0.5}),
        (FedAdagrad(lr=0.1), "FedAdagrad", {}),
        (FedAdam(lr=0.1, bias_correction=True), "FedAdam", {}),
        (FedAdam(lr=0.2, beta1=0.6, beta2=0.8, tau=0.01, bias_correction=True), "FedAdam",
         {"eta": 0.2, "beta_1": 0.6, "beta_2": 0.8, "tau": 0.01}),
        (FedYogi(), "FedYogi", {}),
        (FedYogi(lr=0.1, beta1=0.5, beta2=0.7), "FedYogi", {"eta": 0.1, "beta_1": 0.5, "beta_2": 0.7}),
    ],
)  # fmt: skip
def test_same_as_flower(method: ServerOptimizer, name: str, options: dict[str, float]) -> None:
    """With buffers optimised and FedAdam corrected for its start, these are Flower's strategies, with
    Flower's defaults."""
    share = [samples / sum(SITES.values()) for samples in SITES.values()]
    deltas: list[Tree] = [
        {
            key: torch.tensor([sum(p * move[key] for p, move in zip(share, moves, strict=True))]).double()
            for key in moves[0]
        }
        for moves in TWO_SITES
    ]
    start = {"w": torch.tensor([1.0]).double(), "running": torch.tensor([0.5]).double()}
    servers = play(method.model_copy(update={"apply_to_buffers": True}), deltas, start)
    found = [float(server["model"][key]) for server in servers for key in ("w", "running")]
    assert found == pytest.approx(strategy(name, **options), rel=1e-6)


def test_memory_of_the_first_moment_is_off_for_adagrad_only() -> None:
    assert (FedAdagrad().beta1, FedAdam().beta1, FedYogi().beta1) == (0.0, 0.9, 0.9)
    assert (FedAdam().beta2, FedYogi().beta2) == (0.99, 0.99)


@pytest.mark.parametrize("method", [FedAvgM, FedAdam, FedYogi, FedAdagrad])
def test_batch_norm_statistics_are_averaged_unless_asked_otherwise(
    method: Any, double_net: Callable[..., Net]
) -> None:
    net = double_net("fed")
    shared = state(net)
    change = {name: torch.full_like(tensor, 0.01) for name, tensor in shared.items()}
    buffers = set(shared) - {name for name, _ in net.named_parameters()}
    assert buffers
    plain = play(method(lr=0.5), [change] * 3, shared, net)[-1]
    for name in shared:
        averaged = torch.allclose(plain["model"][name], shared[name] + 0.03, rtol=0, atol=1e-12)
        assert averaged == (name in buffers), name
    both = play(method(lr=0.5, apply_to_buffers=True), [change] * 3, shared, net)[-1]["model"]
    moved = {name: float((both[name] - shared[name]).flatten()[0]) for name in shared}
    assert max(moved.values()) == pytest.approx(min(moved.values()), rel=1e-9)
    assert abs(moved[min(buffers)] - 0.03) > 1e-3
    for name in buffers:
        assert not any(name in branch for key, branch in plain.items() if key != "model")


def test_only_shared_tensors_are_optimised(double_net: Callable[..., Net]) -> None:
    net = double_net("fed")
    shared = {name: tensor for name, tensor in state(net).items() if not name.startswith("head.")}
    assert set(parameters(net, shared)) == {n for n, _ in net.named_parameters() if not n.startswith("head.")}


def test_heavy_ball_of_rate_one_is_minus_the_velocity_to_the_bit() -> None:
    draw = torch.Generator().manual_seed(0)
    old: dict[str, Tensor] = {"a": torch.randn(50, generator=draw)}
    delta = {"a": torch.randn(50, generator=draw), "statistics": torch.randn(3, generator=draw)}
    velocity, moved = heavy_ball(old, delta, 0.5)
    assert torch.equal(velocity["a"], 0.5 * old["a"] - delta["a"])
    assert torch.equal(moved["a"], -(0.5 * old["a"] - delta["a"]))
    assert moved["statistics"] is delta["statistics"]
    assert set(velocity) == {"a"}


def test_momentum_shows_from_the_second_round_on(make_config: Callable[..., Any], tmp_path: Path) -> None:
    def model(name: str, rounds: int) -> Tree:
        config = make_config({"name": name}, rounds=rounds)
        return run(config, tmp_path / f"{name.rpartition(':')[2]}-{rounds}").server["model"]

    for rounds, same in ((1, True), (2, False)):
        plain, mine = model("fedavg", rounds), model("fedavgm", rounds)
        assert all(torch.equal(plain[n], mine[n]) for n in plain) == same


def test_adaptive_steps_differ_from_fedavg_and_from_each_other(
    make_config: Callable[..., Any], tmp_path: Path
) -> None:
    found = [
        run(make_config({"name": name}), tmp_path / name.rpartition(":")[2]).server["model"][
            "body.conv1.weight"
        ]
        for name in ("fedavg", "fedadam", "fedyogi", "fedadagrad")
    ]
    for a, b in combinations(found, 2):
        assert not torch.allclose(a, b, rtol=0, atol=1e-5)
