"""What a method says its answers do not exceed: about leaves there are, and true of honest answers at their
extremes."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pytest
import torch
from tests.light import LIGHT

from equipoise.config import resolve
from equipoise.errors import MethodError
from equipoise.exchange import Bounds
from equipoise.leaves import ONE, SAMPLES, Each, Limit, Mean, Sum, Upload
from equipoise.methods import METHODS, Method
from equipoise.methods.base import Ask
from equipoise.methods.fedmas import feature_distance, rescue_factor
from equipoise.nets import Net
from equipoise.running import prepare
from equipoise.setup import material
from equipoise.site import Loc
from equipoise.tree import Tree

IMAGES = {"a": {"train": 10, "validation": 4, "test": 5}, "b": {"train": 30, "validation": 0, "test": 0}}


def table(method: dict[str, Any], multi: bool) -> dict[str, Any]:
    return {
        "data": {"kind": "phantom", "scale": 0.004, "image_size": 16, "task": "multi" if multi else "single"},
        "partition": {"kind": "iid", "sites": 3, "missing": 3 if multi else 0},
        "method": method,
        "train": {"rounds": 3, "batch_size": 8},
        "engine": {"device": "cpu"},
    }


@pytest.mark.parametrize("name", [name for name, cls in METHODS.items() if cls.limits is not Method.limits])
def test_limits_are_about_leaves_there_are(name: str, tmp_path: Path) -> None:
    config = resolve(table({"name": name, **LIGHT.get(name, {})}, METHODS[name].tasks == ("multi",)))
    dataset = material(config)
    rows = prepare(config, dataset.facts, dataset).ledger.rows()
    limits = config.method.limits(len(dataset.samples.classes), 1)
    asked, leaves = {row["question"] for row in rows}, {f"{row['question']}.{row['leaf']}" for row in rows}
    assert {key.split(".")[0] for key in limits} <= set(config.method.questions())
    assert {key for key in limits if key.split(".")[0] in asked} <= leaves


def problem(limits: dict[str, Limit], upload: Upload, site: str = "a") -> str | None:
    return Bounds(limits, IMAGES).problem(site, "train", upload)


X = torch.zeros(2)


@pytest.mark.parametrize(
    ("limit", "weight", "good"),
    [
        (None, 10, True),
        (None, 10.1, False),
        (None, 0, True),
        (None, -0.1, False),
        (ONE, 1, True),
        (ONE, 1.1, False),
        (Limit(plain=3, images=2, total=0.5), 3 + 20 + 20, True),
        (Limit(plain=3, images=2, total=0.5), 43.1, False),
        (Limit(images=1, split="test"), 5, True),
        (Limit(images=1, split="test"), 6, False),
    ],
)
def test_a_weight_is_bounded_by_images(limit: Limit | None, weight: float, good: bool) -> None:
    limits = {} if limit is None else {"train.delta": limit}
    assert (problem(limits, {"delta": Mean(X, weight)}) is None) == good
    assert (problem(limits, {"delta": Mean(X, torch.tensor([0.0, weight]))}) is None) == good
    assert problem(limits, {"delta": Mean(X, weight)}, "nobody") is None


@pytest.mark.parametrize("kind", [Sum, Each])
def test_values_are_bounded_where_a_method_says_so(kind: Any) -> None:
    limits = {"train.count": SAMPLES, "train.samples": Limit(images=1, least=1)}
    assert problem(limits, {"count": kind(torch.tensor([0, 10])), "samples": kind(torch.tensor(10))}) is None
    assert "leaf 'count' has 11" in str(problem(limits, {"count": kind(torch.tensor([0, 11]))}))
    assert "leaf 'count' has -1" in str(problem(limits, {"count": kind({"x": torch.tensor([-1, 1])})}))
    assert "nothing below 1 is possible" in str(problem(limits, {"samples": kind(torch.tensor(0))}))
    assert problem(limits, {"free": kind(torch.tensor([-1e6]))}) is None
    assert problem(limits, {"count": kind(torch.zeros(0))}) is None
    signed = {"train.sums": Limit(images=1, signed=True)}
    assert problem(signed, {"sums": kind(torch.tensor([-10.0, 10.0]))}) is None
    assert "nothing below -10 is possible" in str(problem(signed, {"sums": kind(torch.tensor([-10.1]))}))
    assert "leaf 'sums' has 10.1" in str(problem(signed, {"sums": kind(torch.tensor([10.1]))}))


def test_the_largest_rescue_factor_is_within_its_limit() -> None:
    """Features that point the other way in every class, before and in each of two epochs."""
    a = torch.tensor([[1.0, 2.0], [3.0, -1.0], [0.5, 0.5]])
    distance = feature_distance(a, -a).double()
    assert distance.tolist() == pytest.approx([4.0] * 3)
    factor = rescue_factor(distance, 2 * distance)
    limit = METHODS["fedmas"]().limits(3, 2)["train.delta"]
    assert factor == pytest.approx(limit.plain) == pytest.approx(96.0)
    assert METHODS["fedmas"](mas=False).limits(3, 2)["train.delta"] == SAMPLES


def test_the_largest_weights_of_climb_and_feddisco_are_within_their_limits() -> None:
    # λ at its bound and the others' at 0: ω = 1 + λ − λ/K, below 1 + λ
    assert METHODS["climb"](largest=7.0).limits(3, 1)["train.delta"] == Limit(plain=8.0)
    assert METHODS["climb"](largest=7.0, by_samples=True).limits(3, 1)["train.delta"] == Limit(images=8.0)
    # no discrepancy of its own: n_k + b Σn
    assert METHODS["feddisco"](b=0.2).limits(3, 1)["train.delta"] == Limit(images=1.0, total=0.2)
    # one class alone is log C from uniform shares by KL, 2 (1 − 1/C) by the absolute difference
    assert (
        max(math.log(3), 2 * (1 - 1 / 3))
        < METHODS["feddisco"]().limits(3, 1)["discrepancy.discrepancy"].plain
    )


class Heavy(Method):
    """Weighs its answer by more than its images, and says nothing of it."""

    def round(self, server: Tree, ask: Ask) -> Tree:
        ask(self.train, model=server["model"])
        return server

    def train(self, net: Net, loc: Loc) -> Upload:
        return {"delta": Mean(loc.delta(net), 2.0 * loc.samples)}


def test_a_method_that_weighs_otherwise_and_does_not_say_so_is_refused_before_it_trains(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(METHODS, "heavy", Heavy)
    config = resolve(table({"name": "heavy"}, False))
    dataset = material(config)
    with pytest.raises(
        MethodError, match=r"an honest answer to 'train' would be left out .* mend the method's limits\(\)"
    ):
        prepare(config, dataset.facts, dataset)
