"""Head, medium and tail classes: their thresholds are options, and reach the metrics of a run and of its
model."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from equipoise.config import Config, resolve
from equipoise.data.sets.hyperkvasir import COUNTS
from equipoise.errors import ConfigError
from equipoise.evaluate import shot_groups
from equipoise.reproduce import find
from equipoise.running import run
from equipoise.setup import material
from equipoise.use import load


@pytest.mark.parametrize("exact", [True, False])
def test_thresholds_reach_the_metrics_and_the_model(
    tiny: Callable[..., Config], tmp_path: Path, exact: bool
) -> None:
    plain = tiny("fedavg", evaluate={"shots": "absolute", "exact": exact})
    counts = material(plain).facts.census.counts()
    middle = sorted(counts.tolist())[len(counts) // 2]
    evaluate = {"shots": "absolute", "head_over": middle, "tail_under": middle, "exact": exact}
    result = run(tiny("fedavg", evaluate=evaluate), tmp_path / "run")
    found = result.metrics["test"]["generalisation"]
    expected = {}
    for group, members in (
        ("head", counts > middle),
        ("medium", counts == middle),
        ("tail", counts < middle),
    ):
        known = [
            r for r, member in zip(found["recall"], members.tolist(), strict=True) if member and r is not None
        ]
        expected[group] = pytest.approx(sum(known) / len(known)) if known else None
    assert {group: found[group] for group in expected} == expected
    model = load(tmp_path / "run")
    shots = list(model.blueprint.shots)
    assert shots == [0 if n > middle else 2 if n < middle else 1 for n in counts.tolist()]
    with_the_papers = run(plain, tmp_path / "papers").metrics["test"][
        "generalisation"
    ]  # all are tail classes here
    assert with_the_papers["head"] is None and found["head"] is not None


def test_thresholds_that_overlap_are_refused() -> None:
    assert resolve({"evaluate": {"head_over": 5, "tail_under": 6}}).evaluate.tail_under == 6
    with pytest.raises(
        ConfigError, match="tail_under = 7 is above head_over = 5, so a class could be both: lower it"
    ):
        resolve({"evaluate": {"head_over": 5, "tail_under": 7}})


@pytest.mark.parametrize("name", ["fedmas-table1-iid", "fedmas-table1-niid", "fedmas-table7"])
def test_groups_of_hyperkvasir_are_the_papers(name: str) -> None:
    counts = torch.tensor(list(COUNTS.values()))
    paper = [0 if n > 700 else 2 if n < 70 else 1 for n in counts.tolist()]  # by all images of a class
    assert [paper.count(group) for group in (0, 1, 2)] == [8, 8, 7]
    options = find(name).table["evaluate"]
    for train in (0.8 * counts - 1, 0.8 * counts + 1):
        groups = shot_groups(train, options["shots"], head=options["head_over"], tail=options["tail_under"])
        assert groups.tolist() == paper
