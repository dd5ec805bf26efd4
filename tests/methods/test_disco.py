"""FedDisco: discrepancies and weights by explicit loops, on what sites really send."""

from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from pydantic import ValidationError

from equipoise.exchange import decode_upload
from equipoise.methods.disco import FedDisco
from equipoise.running import run
from equipoise.testing import ORDINARY, Bench

COUNTS = {site: [labels.count(c) for c in range(3)] for site, labels in ORDINARY.items()}
NAME = "feddisco"


def place(counts: list[float], labelled: list[bool] | None = None, images: int = 10, **down: float) -> Any:
    """A site with one label per image, or with several of which it annotates some."""
    return SimpleNamespace(
        task="single" if labelled is None else "multi",
        counts=torch.tensor(counts, dtype=torch.float64),
        annotated=torch.ones(len(counts), dtype=torch.bool) if labelled is None else torch.tensor(labelled),
        total=torch.full((len(counts),), float(images)),
        samples=int(sum(counts)) if labelled is None else images,
        down={name: torch.tensor(value) for name, value in down.items()},
    )


def discrepancy(counts: list[float], measure: str = "kl") -> float:
    share = [n / sum(counts) for n in counts]
    even = 1 / len(counts)
    if measure == "kl":
        return sum(s * math.log(s / even) for s in share if s > 0)
    if measure == "l1":
        return sum(abs(s - even) for s in share)
    if measure == "l2":
        return math.sqrt(sum((s - even) ** 2 for s in share))
    return 1 - sum(s * even for s in share) / math.sqrt(sum(s * s for s in share) * len(counts) * even * even)


@pytest.mark.parametrize("measure", ["kl", "l1", "l2", "cosine"])
def test_discrepancy_by_hand(measure: Any) -> None:
    for counts in ([6.0, 3.0, 1.0], [5.0, 0.0, 5.0], [0.0, 7.0, 0.0]):
        assert FedDisco(measure=measure).distance(place(counts)).item() == pytest.approx(
            discrepancy(counts, measure), rel=1e-9
        )
    assert FedDisco(measure=measure).distance(place([4.0, 4.0, 4.0])).item() == pytest.approx(0, abs=1e-12)


@pytest.mark.parametrize("measure", ["kl", "l1", "l2", "cosine"])
def test_of_several_labels_it_is_the_mean_over_those_annotated(measure: Any) -> None:
    """Six and two of ten images are positive, so four and eight negative; the second label is not
    annotated."""
    found = FedDisco(measure=measure).distance(place([6, 0, 2], [True, False, True])).item()
    assert found == pytest.approx((discrepancy([4, 6], measure) + discrepancy([8, 2], measure)) / 2, rel=1e-9)


def test_a_site_that_annotates_one_label_can_be_far_from_balanced() -> None:
    alone = FedDisco().distance(place([1, 0, 0], [True, False, False])).item()
    assert alone == pytest.approx(discrepancy([9, 1])) and alone > 0.3
    assert FedDisco().distance(place([5, 0, 0], [True, False, False])).item() == pytest.approx(0, abs=1e-12)
    assert FedDisco().distance(place([0, 0, 0], [True, False, False])).item() == pytest.approx(math.log(2))


def weights(a: float, b: float) -> dict[str, float]:
    d = {site: discrepancy(counts) for site, counts in COUNTS.items()}
    n = {site: sum(counts) for site, counts in COUNTS.items()}
    raw = {s: max(0.0, n[s] / sum(n.values()) - a * d[s] / sum(d.values()) + b) for s in COUNTS}
    return {site: w / sum(raw.values()) for site, w in raw.items()}


@pytest.mark.parametrize(("a", "b"), [(0.5, 0.1), (0.9, 0.0), (0.0, 0.0)])
def test_weights_and_mean_by_hand(a: float, b: float) -> None:
    bench = Bench(NAME, {"a": a, "b": b})
    with bench.own_cache():
        trace = bench.run(bench.config(rounds=1))
        first = bench.run(bench.config(rounds=0)).result.server["model"]
    sent = {x.site: decode_upload(x.data)[1]["delta"] for x in trace.answers if x.question.name == "train"}
    total = sum(leaf.weight for leaf in sent.values())
    expected = weights(a, b)
    for site, leaf in sent.items():
        assert leaf.weight / total == pytest.approx(expected[site], rel=1e-6, abs=1e-9)
    assert (min(expected.values()) == 0) == (a == 0.9)
    name = "body.conv1.weight"
    moved = sum(expected[site] * leaf.value[name].double() for site, leaf in sent.items())
    torch.testing.assert_close(
        trace.result.server["model"][name].double(), first[name] + moved, rtol=0, atol=1e-6
    )


def test_only_sums_of_discrepancy_and_samples_leave() -> None:
    bench = Bench(NAME)
    with bench.own_cache():
        line = bench.ordinary.ledger().line("discrepancy", 0)
    assert line is not None
    assert {(entry.name, entry.kind, entry.shape) for entry in line.up} == {
        ("discrepancy", "sum", ()),
        ("samples", "sum", ()),
    }


def test_balanced_sites_weigh_by_samples_and_b() -> None:
    loc = place([2, 2, 2], discrepancy=0.0, samples=20.0)
    assert FedDisco().weight(loc) == pytest.approx(6 + 0.1 * 20)


def test_some_weight_is_always_positive() -> None:
    # Σ (p − a d̄ + b) = 1 − a + bK > 0 for every a the method takes
    with pytest.raises(ValidationError):
        FedDisco(a=1.0)
    draw = torch.Generator().manual_seed(0)
    for _ in range(50):
        counts = [torch.randint(0, 9, (3,), generator=draw).double().tolist() for _ in range(4)]
        counts = [c if sum(c) else [1.0, 0.0, 0.0] for c in counts]
        sums = {"discrepancy": sum(discrepancy(c) for c in counts), "samples": sum(map(sum, counts))}
        assert max(FedDisco(a=0.999, b=0.0).weight(place(c, **sums)) for c in counts) > 0


def test_another_method_than_fedavg(make_config: Callable[..., Any], tmp_path: Path) -> None:
    found = [
        run(make_config({"name": name}, rounds=1), tmp_path / name.rpartition(":")[2]).server["model"][
            "body.conv1.weight"
        ]
        for name in ("fedavg", NAME)
    ]
    assert not torch.allclose(*found, rtol=0, atol=1e-6)


def test_hidden_labels_never_enter(make_findings: Callable[..., Any], tmp_path: Path) -> None:
    found = [
        run(make_findings({"name": NAME}, spoilt=kind), tmp_path / str(kind)).state_hash
        for kind in (False, True)
    ]
    assert found[0] == found[1]
