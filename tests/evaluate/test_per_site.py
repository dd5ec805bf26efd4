"""`evaluate.per_site = false`: the same specialisation, and nothing of a single site."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch

from equipoise.config import Config
from equipoise.errors import ConfigError
from equipoise.evaluate.plausible import boasts
from equipoise.running import run
from equipoise.site.figures import FIGURES, addable, from_statistics, mean_of
from equipoise.site.measure import measure
from equipoise.tree import combine

MakeConfig = Callable[..., Config]


def test_the_mean_of_added_metrics_is_the_mean_over_sites() -> None:
    draw = torch.Generator().manual_seed(0)
    shots = torch.tensor([0, 1, 2])
    sites = []
    for n, present in ((30, 3), (7, 2), (0, 3)):
        labels = torch.randint(0, present, (n,), generator=draw)
        sites.append(measure(torch.randn(n, 3, generator=draw), labels, task="single"))
    added = addable(sites[0], shots)
    for one in sites[1:]:
        added = combine(torch.add, added, addable(one, shots))
    single = [from_statistics(one, shots=shots) for one in sites]
    for name in FIGURES:
        found = [one[name] for one in single if one[name] is not None]
        assert mean_of(added)[name] == pytest.approx(sum(found) / len(found), abs=1e-12)


def test_a_run_tells_the_same_mean_and_no_site(tiny: MakeConfig) -> None:
    told = run(tiny("fca", evaluate={"exact": False}))
    untold = run(tiny("fca", evaluate={"exact": False, "per_site": False}))
    assert untold.state_hash == told.state_hash
    one, other = told.metrics["test"], untold.metrics["test"]
    assert other["sites"] == {} and other["worst_site"]["name"] is None
    assert other["generalisation"] == one["generalisation"]
    # Coarse bins are for what is told of one site alone; a mean needs none, so AUC is finer here.
    for name in ("accuracy", "balanced_accuracy", "macro_f1", "head", "medium", "tail"):
        assert other["specialisation"][name] == pytest.approx(one["specialisation"][name], abs=1e-7)
    assert set(other["roles"]) == set(one["roles"])


def test_masked_too(tiny: MakeConfig) -> None:
    config = {"evaluate": {"exact": False, "per_site": False}}
    plain, masked = run(tiny(**config)), run(tiny(exchange={"secure": True}, **config))
    assert masked.metrics["test"] == plain.metrics["test"] and masked.state_hash == plain.state_hash


def test_a_site_that_boasts_is_found_out() -> None:
    honest = addable(measure(torch.eye(3), torch.arange(3), task="single"), torch.tensor([0, 1, 2]))
    assert boasts(honest) is None
    for kind, value in (("sum", 1.5), ("sum", -0.1), ("count", 2), ("sum", float("nan"))):
        false = {key: dict(part) for key, part in honest.items()}
        false[kind]["accuracy"] = torch.tensor(value)
        assert "'accuracy' is" in str(boasts(false))


def test_metrics_of_one_s_own_need_scores(tiny: MakeConfig) -> None:
    with pytest.raises(ConfigError, match="per_site"):
        tiny(evaluate={"per_site": False, "metrics": ["mine.py:metric"]})
