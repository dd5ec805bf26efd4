"""CLIMB: multipliers and weights over several rounds, replayed with explicit loops from what sites really
send."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F

from equipoise.engine import Question
from equipoise.exchange import decode_upload, pack
from equipoise.methods.climb import CLIMB
from equipoise.methods.fedavg import FedAvg
from equipoise.nets import load
from equipoise.running import run
from equipoise.setup import make_host
from equipoise.testing import Bench, Trace
from equipoise.tree import flatten

NAME = "climb"
SHARP: dict[str, Any] = {"dual_lr": 5.0, "epsilon": 0.0}
"""so that multipliers move within a few rounds"""


def played(rounds: int, participation: float = 1.0, **options: Any) -> Trace:
    bench = Bench(NAME, options)
    with bench.own_cache():
        config = bench.config(rounds=rounds, participation=participation)
        at_the_end = config.evaluate.model_copy(update={"every": rounds})
        return bench.run(replace(config, evaluate=at_the_end))


def sent(trace: Trace, question: str, round: int) -> dict[str, Any]:
    return {
        a.site: decode_upload(a.data)[1]
        for a in trace.answers
        if (a.question.name, a.question.round) == (question, round)
    }


def kept(trace: Trace, round: int) -> dict[str, Any]:
    return {
        a.site: {
            name.removeprefix("mine/"): float(x) for name, x in a.kept.items() if name.startswith("mine/")
        }
        for a in trace.answers
        if (a.question.name, a.question.round) == ("train", round)
    }


@pytest.mark.parametrize(
    ("options", "participation"),
    [
        (SHARP, 0.7),
        (SHARP | {"primal_rounds": 2, "by_samples": True}, 1.0),
        (SHARP | {"largest": 0.1}, 1.0),
        (SHARP | {"dual_lr": 900.0}, 1.0),
    ],
)
def test_weights_and_multipliers_by_hand(options: dict[str, Any], participation: float) -> None:
    trace = played(3, participation, **options)
    every = options.get("primal_rounds", 1)
    multiplier, weight = (
        dict.fromkeys(("north", "south", "west"), 0.0),
        dict.fromkeys(("north", "south", "west"), 1.0),
    )
    size = {"north": 12, "south": 8, "west": 10}
    moved, clamped = False, False
    for round in range(3):
        asked = sent(trace, "constraint", round)
        assert bool(asked) == (round % every == 0)
        if asked:
            f = {site: float(up["loss"].value) for site, up in asked.items()}
            count = len(f)
            for site, up in asked.items():
                assert float(up["multiplier"].value) == pytest.approx(multiplier[site], abs=1e-5)
            mean_f, mean_l = sum(f.values()) / count, sum(multiplier[s] for s in f) / count
            for site in f:
                raw = 1 + multiplier[site] - mean_l
                clamped = clamped or raw < 0
                weight[site] = max(0.0, raw)
            for site in f:
                step = options["dual_lr"] * (f[site] - mean_f - options["epsilon"]) / count
                multiplier[site] = min(max(multiplier[site] + step, 0.0), options.get("largest", 100.0))
        moved = moved or max(multiplier.values()) > 0
        for site, up in sent(trace, "train", round).items():
            expected = weight[site] * (size[site] if options.get("by_samples") else 1)
            assert up["delta"].weight == pytest.approx(expected, abs=1e-5), (round, site)
            assert kept(trace, round)[site]["multiplier"] == pytest.approx(multiplier[site], abs=1e-5)
    assert moved
    assert clamped == (options["dual_lr"] == 900.0)


def test_tolerance_keeps_multipliers_at_zero() -> None:
    trace = played(2, dual_lr=5.0, epsilon=50.0)
    assert all(values["multiplier"] == 0 and values["weight"] == 1 for values in kept(trace, 1).values())


def test_constraint_is_the_mean_loss_of_the_received_model(
    make_config: Callable[..., Any], bare: Callable[..., Any], tmp_path: Path
) -> None:
    config = make_config({"name": NAME})
    here = bare(config)
    host = make_host(config, here.dataset, tmp_path / "sites")
    call = Question("constraint", 0, b"").call("north")
    up = decode_upload(host.answer(call, pack({}, flatten({"model": here.first}))))[1]
    x, y = here.rows("north", "train")
    load(here.net, here.first)
    losses = [F.cross_entropy(here.net(x[i : i + 1]), y[i : i + 1]).item() for i in range(len(y))]
    assert float(up["loss"].value) == pytest.approx(sum(losses) / len(losses), rel=1e-5)  # type: ignore[union-attr]
    assert {name: leaf.kind for name, leaf in up.items()} == {"loss": "sum", "multiplier": "sum"}


def test_without_dual_steps_it_is_the_uniform_mean() -> None:
    bench = Bench(NAME)
    with bench.own_cache():
        config = bench.config(
            {"a": (0, 0, 1, 2, 1, 2), "b": (1, 1, 0, 2, 2, 0), "c": (2, 2, 2, 1, 0, 0)}, rounds=1
        )
        mine, plain = (
            bench.run(replace(config, method=m)).result.server["model"]
            for m in (CLIMB(dual_lr=0.0), FedAvg())
        )
    for name in plain:  # sites of one size
        torch.testing.assert_close(mine[name], plain[name], rtol=0, atol=1e-6)
    assert {float(leaf["delta"].weight) for leaf in sent(played(1, dual_lr=0.0), "train", 0).values()} == {
        1.0
    }


def test_another_method_than_fedavg(make_config: Callable[..., Any], tmp_path: Path) -> None:
    found = [
        run(make_config({"name": name}, rounds=1), tmp_path / name.rpartition(":")[2]).server["model"][
            "body.conv1.weight"
        ]
        for name in ("fedavg", NAME)
    ]
    assert not torch.allclose(*found, rtol=0, atol=1e-6)
    assert CLIMB.presets["fediic"] == {"dual_lr": 0.1, "epsilon": 0.1}


def test_hidden_labels_never_enter(make_findings: Callable[..., Any], tmp_path: Path) -> None:
    found = [
        run(make_findings({"name": NAME, **SHARP}, spoilt=kind), tmp_path / str(kind)).state_hash
        for kind in (False, True)
    ]
    assert found[0] == found[1]
