"""Thousands of sites: what a round costs follows from those it asks, not from those there are."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from equipoise.config import Config
from equipoise.data.samples import Samples
from equipoise.keeping import read_lines
from equipoise.partition import ByName, Census, Dirichlet, Iid, count, divide
from equipoise.partition.census import NOT_TOLD, Counts
from equipoise.report import read_run, write_report
from equipoise.report.crowd import GROUPS, MANY, QUANTILES, groups, held_by_groups, quantiles
from equipoise.report.page import absences
from equipoise.report.words import in_short
from equipoise.running import run
from equipoise.setup import material
from equipoise.site import SiteData

MakeConfig = Callable[..., Config]


class Split:
    test, validation, column, folds, fold, seed = 0.2, 0.0, None, None, None, None


def samples(images: int) -> Samples:
    draw = np.random.default_rng(0)
    return Samples(
        images=np.zeros((images, 1, 1, 1), np.uint8),
        labels=draw.integers(0, 5, images),
        classes=tuple("abcde"),
        task="single",
        ids=np.arange(images).astype(str),
        fingerprint="",
    )


@pytest.fixture(scope="module")
def crowd(tiny: MakeConfig, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Six of sixty sites in a round, judged at fifty-five of them at most."""
    folder = tmp_path_factory.mktemp("crowd") / "run"
    config = tiny(
        data={"scale": 0.036, "split": {"test": 0.4, "validation": 0.0}},
        partition={"kind": "iid", "sites": 60},
        train={"rounds": 2, "batch_size": 8, "participation": 0.1},
        evaluate={"sites": 55},
    )
    run(config, folder)
    return folder


def test_only_those_asked_leave_a_trace(crowd: Path) -> None:
    rows = read_lines(crowd / "metrics.jsonl")[0]
    asked = {site for row in rows for site in row["sites"]}
    assert [len(row["sites"]) for row in rows] == [6, 6]
    assert {path.name for path in (crowd / "sites").iterdir()} == asked
    assert len(json.loads((crowd / "data.json").read_text())["sites"]) == 60


def test_every_round_is_judged_at_the_same_drawn_sites(crowd: Path, tiny: MakeConfig) -> None:
    first, second = ([*row["test"]["sites"]] for row in read_lines(crowd / "metrics.jsonl")[0])
    assert first == second == sorted(first)
    assert MANY < len(first) == 55
    assert "test images of 55 drawn sites together" in dict(in_short(read_run(crowd)))["How good"]


def test_drawn_sites_that_are_not_named_are_counted(tiny: MakeConfig, tmp_path: Path) -> None:
    config = tiny(partition={"kind": "iid", "sites": 9}, evaluate={"sites": 4, "per_site": False})
    result = run(config, tmp_path / "run")
    images = sum(result.metrics["test"]["generalisation"]["support"])
    said = dict(in_short(read_run(result.folder)))["How good"]
    assert said.startswith(f"On the {images} test images of 4 drawn sites together")


def test_as_many_drawn_as_there_are_is_no_sample(tiny: MakeConfig, tmp_path: Path) -> None:
    plain, sampled = (run(tiny(evaluate=one), tmp_path / str(i)) for i, one in enumerate(({}, {"sites": 3})))
    assert plain.history == sampled.history


def test_a_site_is_made_when_it_is_first_asked(tiny: MakeConfig) -> None:
    sites = material(tiny(partition={"kind": "iid", "sites": 9})).sites(torch.device("cpu"))
    assert isinstance(sites, ByName) and not sites._made
    first = sites["site-03"]
    assert isinstance(first, SiteData) and sites["site-03"] is first
    assert list(sites._made) == ["site-03"] and len(sites) == 9 and "site-08" in sites
    assert "site-09" not in sites


def test_what_is_kept_has_an_end() -> None:
    made: list[int] = []
    found = ByName(["a", "b", "c"], lambda place: made.append(place) or str(place), keep=2)
    assert [found[name] for name in "abacabb"] == ["0", "1", "0", "2", "0", "1", "1"]
    assert made == [0, 1, 2, 0, 1]


@pytest.mark.parametrize(
    "options",
    [
        pytest.param(Iid(sites=2000), marks=pytest.mark.sweep),
        Dirichlet(sites=2000, alpha=5.0, min_size=1),
    ],
)
def test_thousands_of_sites_hold_every_row_once(options: Any) -> None:
    data = samples(40_000)
    found = divide(data, options, Split(), 0)
    rows = np.concatenate([np.concatenate([one.train, one.validation, one.test]) for one in found])
    assert len(found) == 2000 and np.array_equal(np.sort(rows), np.arange(40_000))
    assert list(found.names) == sorted(found.names) == [one.name for one in found]
    assert [one.name for one in found[5:7]] == ["site-0005", "site-0006"]
    last = found[-1]
    assert last.name == "site-1999" and np.array_equal(last.train, np.sort(last.train))
    census = count(data, found)
    for place in (0, 700, 1999):
        labels = data.labels[found[place].train]
        held = census.sites[found[place].name]["train"]
        assert (held.images, list(held.counts)) == (len(labels), np.bincount(labels, minlength=5).tolist())
    written = json.loads(census.model_dump_json())
    assert set(written["sites"]) == {"names", "train", "validation", "test"}  # 2,000 rows would be long
    again = Census.model_validate(written)
    assert again.model_dump() == census.model_dump() and again.sizes == census.sizes
    assert dict(again.sites) == dict(census.sites)
    assert set(census.having("validation")) == set()
    assert census.images()["site-0007"] == {
        split: one.images for split, one in census.sites["site-0007"].items()
    }


def test_what_is_not_told_stays_untold() -> None:
    table = {
        "a": {split: {"images": 3, "counts": (None, 2)} for split in ("train", "validation", "test")},
    }
    census = Census.model_validate({"sites": table})
    assert census.sites["a"]["test"].counts == (None, 2)
    assert census.counts().tolist() == [0, 2]
    assert json.loads(census.model_dump_json())["sites"]["a"]["test"] == {"images": 3, "counts": [None, 2]}


# The page ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("most", "bytes"), [(3, 1), (127, 1), (128, 2), (2**15, 4), (2**31, 8)])
def test_counts_take_as_few_bytes_as_hold_them(most: int, bytes: int) -> None:
    images = np.array([[most, 0, 1], [2, 0, 0]])
    counts = np.array([[[most, 0], [0, 0], [NOT_TOLD, NOT_TOLD]], [[1, 1], [0, 0], [0, 0]]])
    kept = Counts(("north", "south"), images, counts)
    assert kept.counts.itemsize == bytes
    assert kept["north"]["train"].counts == (most, 0) and kept["north"]["test"].counts == (None, None)
    assert Census(sites=kept).counts().tolist() == [most + 1, 1]


def test_a_page_of_many_sites_has_no_row_for_each(crowd: Path) -> None:
    text = write_report(crowd).read_text()
    assert text.count('<th scope="row">site-') == 0
    assert text.count('<th scope="row">sites ') >= GROUPS
    for name in QUANTILES:
        assert f'<th scope="row">{name}</th>' in text
    assert "too many for a row each" in text
    card = (crowd / "model-card.md").read_text()
    assert "| site-" not in card and "| sites 1–6 |" in card


def test_groups_hold_what_their_sites_hold(crowd: Path) -> None:
    data = read_run(crowd).data
    merged = held_by_groups(data)
    assert list(merged["sites"]) == [f"sites {6 * i + 1}–{6 * i + 6}" for i in range(10)]
    for split in data["splits"]:
        held = [one[split] for one in merged["sites"].values()]
        assert sum(one["images"] for one in held) == sum(
            one[split]["images"] for one in data["sites"].values()
        )
    counts = np.array([one["train"]["counts"] for one in merged["sites"].values()])
    assert counts.sum(0).tolist() == data["train"]
    few = {**data, "sites": dict(list(data["sites"].items())[:MANY])}
    assert held_by_groups(few) is few
    assert [len(one) for one in groups([str(i) for i in range(53)]).values()] == [
        5,
        6,
        5,
        5,
        5,
        6,
        5,
        5,
        6,
        5,
    ]


def test_quantiles_by_hand() -> None:
    found = quantiles([None, *(i / 100 for i in range(101))])
    assert found["lowest"] == 0 and found["highest"] == 1
    assert [found[name] for name in ("10th percentile", "median", "90th percentile")] == [0.1, 0.5, 0.9]
    assert set(quantiles([None]).values()) == {None}


def test_many_that_were_missing_for_one_reason_share_a_row() -> None:
    lines = [
        {"event": "missing", "question": "train", "round": i % 3 + 1, "sites": [f"site-{i}"]}
        for i in range(60)
    ]
    assert absences(lines) == [
        {"site": "60 sites", "question": "train", "reason": "no answer", "rounds": "1–3"}
    ]
    assert len(absences(lines[:MANY])) == MANY
