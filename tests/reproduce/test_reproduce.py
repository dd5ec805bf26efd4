"""A table from recipe to numbers: what is run, where the data is looked for, and ours beside the paper's."""

from __future__ import annotations

import csv
import io
import itertools
import json
import re
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import tomli_w
from tests import doctored

from equipoise.errors import ConfigError, DataError
from equipoise.methods import METHODS
from equipoise.nets.registry import NETS
from equipoise.reproduce import beside as besides
from equipoise.reproduce import cost as costs
from equipoise.reproduce import find, listing, prepare, read, reproduce, sheet
from equipoise.reproduce.beside import summarise, value
from equipoise.reproduce.plan import placed
from equipoise.reproduce.recipe import names, notes_of

PHANTOM = """
[data]
kind = "phantom"
scale = 0.004
image_size = 16
[partition]
kind = "iid"
sites = 3
"""
TINY = ("train.rounds=1", "train.batch_size=8", "engine.device=cpu")


@pytest.fixture
def phantom(tmp_path: Path) -> Path:
    path = tmp_path / "phantom.toml"
    path.write_text(PHANTOM)
    return path


@pytest.mark.slow
def test_ours_beside_the_papers(phantom: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    rows = ["fedavg ce", "FCA"]
    task = prepare(
        find("fca-table4"), phantom, scale="small", seeds=(0, 1), rows=rows, overrides=TINY, base=tmp_path
    )
    assert [job.name for job in task.plan.jobs] == ["FedAvg-CE/0", "FCA/0", "FedAvg-CE/1", "FCA/1"]
    facts = reproduce(task, out, 1)
    assert list(facts["rows"]) == ["FedAvg CE", "FCA"] and not facts["failures"]
    results = [
        json.loads((out / f"FCA/{seed}/result.json").read_text())["metrics"]["test"] for seed in (0, 1)
    ]
    found = [100 * one["average"]["balanced_accuracy"] for one in results]
    cell = facts["rows"]["FCA"]["cells"]["A bACC"]
    assert cell["ours"] == pytest.approx(sum(found) / 2)
    assert cell["ours_std"] == pytest.approx(abs(found[0] - found[1]) / 2**0.5)
    assert (cell["paper"], cell["paper_std"]) == (75.1, 0.4)
    assert cell["difference"] == pytest.approx(cell["ours"] - 75.1)
    page = (out / "reproduction.md").read_text()
    assert (
        "Small scale: small-cnn on images of 16 pixels, at most 1 rounds" in page
        and "75.1 ± 0.4" in page
        and f"{cell['difference']:+.1f}" in page
    )
    assert "not of the paper's own files" in page and facts["scale"] == "small"
    assert facts["rows"]["FCA"]["converged"] == [None, None]  # one round says nothing
    assert "–: not known, for want of validation images" in page
    (row,) = (
        row
        for row in csv.DictReader(io.StringIO((out / "reproduction.csv").read_text()))
        if row["method"] == "FCA"
    )
    assert (
        float(row["A bACC ours"]) == pytest.approx(cell["ours"], abs=1e-4) and row["A bACC paper"] == "75.1"
    )
    assert doctored.table(out / "reproduction.json") == facts
    assert r"75.1 $\pm$ 0.4" in (out / "reproduction.tex").read_text() and (out / "table.md").is_file()


def test_a_metric_may_be_a_mean_and_may_be_lacking() -> None:
    test = {"generalisation": {"head": 0.9, "medium": 0.6, "tail": 0.3, "map": None}}
    thirds = [f"generalisation.{name}" for name in ("head", "medium", "tail")]
    assert value(test, thirds) == pytest.approx(0.6)
    assert value(test, ["generalisation.map"]) is None
    assert value(test, [*thirds, "attributes.tone.dark.balanced_accuracy"]) is None
    assert value(test, []) is None


PRINTED = """
extends = "phantom.toml"
[train]
rounds = 1
batch_size = 8
[engine]
device = "cpu"
[reproduce]
title = "t"
source = "s"
images = 10
columns = { ACC = "generalisation.accuracy", "Average ACC" = [] }
[reproduce.rows.A]
method.name = "fedavg"
reported = { ACC = 50.0, "Average ACC" = 60.25 }
[reproduce.rows.B]
method.name = "fedprox"
reported = { ACC = 51.0, "Average ACC" = 61.5 }
p_value = "< 0.001"
"""


@pytest.mark.slow
def test_averages_over_tables_and_p_values_stand_beside_ours(phantom: Path, tmp_path: Path) -> None:
    (tmp_path / "printed.toml").write_text(PRINTED)
    out = tmp_path / "out"
    facts = reproduce(prepare(read(tmp_path / "printed.toml"), phantom, seeds=(0, 1), base=tmp_path), out, 1)
    cell = facts["rows"]["B"]["cells"]["Average ACC"]
    assert (cell["ours"], cell["paper"], cell["difference"]) == (None, 61.5, None)
    versus = json.loads((out / "comparison.json").read_text())["versus"]["B"]["p"]["t"]
    assert facts["rows"]["B"]["p"] == {"ours": versus, "paper": "< 0.001"} and versus is not None
    assert "p" not in facts["rows"]["A"]
    text = (out / "reproduction.md").read_text()
    lines = {
        line.split("|")[1].strip(): line.split("|") for line in text.splitlines() if line.startswith("|")
    }
    assert [cell.strip() for cell in lines["method"][-5:-1]] == ["p", "paper p", "converged", "runs"]
    assert [cell.strip() for cell in lines["A"][-5:-1]] == ["", "", "–", "2"]
    assert [cell.strip() for cell in lines["B"][-5:-3]] == [f"{versus:.3f}", r"\< 0.001"]
    assert "paired t test against A" in text
    (row,) = (
        row
        for row in csv.DictReader(io.StringIO((out / "reproduction.csv").read_text()))
        if row["method"] == "B"
    )
    assert (
        row["p paper"] == "< 0.001" and row["Average ACC paper"] == "61.5" and row["Average ACC ours"] == ""
    )


def test_every_row_says_whether_it_has_converged(
    phantom: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The results are made up: what is tested is what becomes of them."""
    (tmp_path / "printed.toml").write_text(PRINTED.replace("rounds = 1", "rounds = 8"))
    task = prepare(read(tmp_path / "printed.toml"), phantom, seeds=(0, 1), base=tmp_path)
    known: dict[str, bool | None] = {"A/0": True, "A/1": True, "B/0": True, "B/1": False}
    compared = {"versus": {}, "failures": [], "reference": "A"}
    monkeypatch.setattr(besides, "compare", lambda *_: compared)
    monkeypatch.setattr(besides, "results_of", lambda *_: ended(known))
    monkeypatch.setattr(besides, "page", lambda out: out)
    facts = reproduce(task, tmp_path)
    assert facts["rows"]["A"]["converged"] == [True, True]
    assert facts["rows"]["B"]["converged"] == [True, False]
    text = (tmp_path / "reproduction.md").read_text()
    assert re.search(r"\| A .*\| 2 of 2 \| 2 \|", text) and re.search(r"\| B .*\| 1 of 2 † \| 2 \|", text)
    assert "†: not all of them" in text and "within one\npoint of the quarter before" in text
    written = list(csv.DictReader(io.StringIO((tmp_path / "reproduction.csv").read_text())))
    assert [row["converged"] for row in written] == ["2", "1"]
    assert r"1 of 2 $\dagger$" in (tmp_path / "reproduction.tex").read_text()

    known |= dict.fromkeys(("A/0", "A/1"), None)
    known.pop("B/1")  # it failed
    facts = reproduce(task, tmp_path)
    assert facts["rows"]["A"]["converged"] == [None, None] and facts["rows"]["B"]["converged"] == [True]
    text = (tmp_path / "reproduction.md").read_text()
    assert re.search(r"\| A .*\| – \| 2 \|", text)
    assert re.search(r"\| B .*\| 1 of 1 \| 1 of 2 \|", text)
    written = list(csv.DictReader(io.StringIO((tmp_path / "reproduction.csv").read_text())))
    assert [row["converged"] for row in written] == ["", "1"]


def ended(known: dict[str, bool | None]) -> dict[str, Any]:
    """The result of every run, as its folder has it."""
    test = {"generalisation": {"accuracy": 0.5}}
    return {name: {"metrics": {"test": test}, "converged": one} for name, one in known.items()}


def test_a_table_of_an_older_version_can_still_be_shown() -> None:
    cell = {"ours": 41.5, "ours_std": None, "paper": 40.0, "paper_std": 1.5, "difference": 1.5}
    facts = {"columns": ["ACC"], "runs": 1, "rows": {"A": {"runs": 1, "cells": {"ACC": cell}}}}
    (row,) = sheet(facts).rows
    assert row.remarks[-2:] == ("–", "1")


# What is asked for ------------------------------------------------------------------------------------------


def test_rows_that_are_none_and_rows_that_cannot(phantom: Path) -> None:
    with pytest.raises(ConfigError, match="unknown row 'FedBABBU'"):
        prepare(find("fca-table4"), phantom, rows=["FedBABBU"])
    with pytest.raises(ConfigError, match="cannot be run: there is no vision transformer"):
        prepare(find("fedmas-table5"), phantom, rows=["CLIP ViT-B/32"])


def test_pretrained_weights_are_asked_for(phantom: Path, tmp_path: Path) -> None:
    paper = find("fedmas-table2")
    with pytest.raises(
        ConfigError, match=r"ImageNet weights of ResNet-18: give net\.weights=FILE net\.sha256=HASH"
    ):
        prepare(paper, phantom, base=tmp_path)
    with pytest.raises(
        ConfigError, match=r"MoCo-v2 .* give method\.target_weights=FILE method\.target_sha256=HASH"
    ):
        prepare(paper, phantom, overrides=["net.weights=a.pth"], base=tmp_path)
    task = prepare(paper, phantom, seeds=(3,), from_scratch=True, base=tmp_path)
    assert "Random weights in place of ImageNet weights of ResNet-18 and of MoCo-v2" in task.remarks[-1]
    assert {job.config.method_name for job in task.plan.jobs} == {"bsm-fl", "fedmas"}
    assert [job.fold for job in task.plan.jobs] == [0] * 3 + [1] * 3 + [2] * 3 + [3] * 3 + [4] * 3


def test_own_values_win_and_those_of_methods_go_where_they_belong(phantom: Path, tmp_path: Path) -> None:
    given = ["method.target=mobilenet-v2", "train.rounds=2", "data.image_size=24"]
    task = prepare(find("fedmas-table2"), phantom, scale="small", overrides=given, base=tmp_path)
    by_row = {job.arm.label: job.config for job in task.plan.jobs}
    assert {config.train.rounds for config in by_row.values()} == {2}
    assert {config.data.image_size for config in by_row.values()} == {24}
    assert by_row["Fed-MAS"].method.model_dump()["target"] == "mobilenet-v2"
    assert task.plan.seeds == (0,) and task.plan.folds is None
    told = " ".join(task.remarks)  # what was run, not what would have been without the changes
    assert (
        "small-cnn on images of 24 pixels, at most 2 rounds (local epochs: 10)" in told
        and "Changed by hand: method.target=mob" in told
        and "not improved for 1 of its evaluations, not counting its first 0 rounds" in told
    )
    assert "Random weights in place of ImageNet weights of ResNet-18 and of MoCo-v2" in told


def test_where_the_data_is_looked_for(tmp_path: Path) -> None:
    paper = find("fca-table4")
    assert placed(paper, Path("down"), tmp_path)["data"]["path"] == str(tmp_path / "down")
    (tmp_path / "down" / "fed-isic2019").mkdir(parents=True)
    assert placed(paper, Path("down"), tmp_path)["data"]["path"] == str(tmp_path / "down" / "fed-isic2019")
    blood = placed(find("fedsdc-table1-niid2"), Path("down"), tmp_path)["data"]["parts"]
    assert [part["path"] for part in blood] == [
        str(tmp_path / "down" / kind) for kind in ("matek19", "acevedo20", "bodzas23")
    ]
    with pytest.raises(ConfigError, match="needs matek19 and acevedo20 and bodzas23: give --data ROOT"):
        placed(find("fedsdc-table1-niid2"), None, tmp_path)
    (tmp_path / "empty.toml").write_text("[train]\nrounds = 1\n")
    with pytest.raises(ConfigError, match=r"has no section \[data\]"):
        placed(paper, Path("empty.toml"), tmp_path)
    with pytest.raises(DataError, match="gone"):
        prepare(paper, Path("gone"), scale="small", base=tmp_path)


# The list ---------------------------------------------------------------------------------------------------


def test_the_list_has_rows_data_and_cost(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(costs, "pace", lambda net, size: 1e-3 if net == "small-cnn" else 1.0)
    found = {one["table"]: one for one in listing()}
    assert set(found) == set(names())
    fca = found["fca-table4"]
    assert len(fca["rows"]) == 13 and fca["data"] == ["fed-isic2019"] and fca["seeds"] == [0, 1, 2, 3, 4]
    assert fca["estimated_seconds"]["full"] == 13 * 5 * 80 * 18597
    assert fca["estimated_seconds"]["small"] == pytest.approx(13 * 80 * 18597 * 1e-3)
    assert found["fediic-table1-real"]["data"] == ["ham10000", "ph2", "derm7pt", "isic2019"]
    assert "cannot" in found["fedmas-table5"]["rows"]["CLIP ViT-B/32"]
    assert found["fedmas-table2"]["rows"]["Fed-MAS"]["p_value"] == "< 0.001"
    two_views = found["fediic-table2-isic"]["estimated_seconds"]["full"]
    assert two_views == pytest.approx((1 + 4 * 2) * 200 * 17731)
    assert [one["table"] for one in listing(["fca-table4"])] == ["fca-table4"]


def test_pace_is_measured_once_and_known_of_every_network(monkeypatch: pytest.MonkeyPatch) -> None:
    assert 0 < costs.pace("small-cnn", 16) < 1
    assert costs.pace("small-cnn", 16) == costs.pace("small-cnn", 16)
    monkeypatch.setattr(costs, "yardstick", lambda: 1e-6)
    assert costs.pace("resnet18", 20) == pytest.approx(8.3 * 400e-6)
    assert set(costs.EFFORT) == set(NETS)


def test_pace_does_not_depend_on_what_else_runs(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Ten milliseconds of computing a step, while the clock on the wall counts other work too."""
    wall, computing = itertools.count(0, 17), itertools.count()

    def tick(slower: int) -> float:
        return slower * next(computing) / 100

    monkeypatch.setattr(costs.torch.cuda, "is_available", lambda: False)
    monkeypatch.setattr(costs, "STEPS", 4)
    monkeypatch.setattr(costs.time, "perf_counter", lambda: next(wall))
    monkeypatch.setenv("EQUIPOISE_CACHE", str(tmp_path / "cache"))
    costs.yardstick.cache_clear()
    try:
        for slower in (1, 3):  # a later, slower measurement changes nothing
            monkeypatch.setattr(costs.time, "process_time", partial(tick, slower))
            assert costs.yardstick() == pytest.approx(0.01 / (costs.BATCH * costs.SIZE**2))
            costs.yardstick.cache_clear()
        (tmp_path / "cache" / "pace.json").write_text("{")
        assert costs.yardstick() == pytest.approx(0.03 / (costs.BATCH * costs.SIZE**2))
    finally:
        costs.yardstick.cache_clear()


def test_notes_are_about_the_rows_that_are_there() -> None:
    fca, parts = find("fca-table4"), find("fedsdc-table2")
    assert any(text.startswith("FedProx: mu = 0.01") for text in notes_of(fca, fca.recipe.rows))
    assert not any("Prox" in text or "MOON" in text for text in notes_of(fca, ["FCA"]))
    assert not any("FedAdam" in text or "FedSDC+" in text for text in notes_of(parts, parts.recipe.rows))
    renamed = find("fca-table6-skin")
    told = notes_of(renamed, renamed.recipe.rows)
    assert any(text.startswith("1 learnable and regularised: mu") for text in told)
    for paper in map(find, names()):
        labels = {label for name in names() for label in find(name).recipe.rows}
        assert set(paper.recipe.notes_on) <= labels | set(METHODS)


def test_a_row_that_cannot_be_run_is_told_with_the_whole_table_only(phantom: Path, tmp_path: Path) -> None:
    blocked = '[reproduce.rows.C]\ncannot = "nobody knows how"\n'
    (tmp_path / "printed.toml").write_text(PRINTED + blocked)
    paper = read(tmp_path / "printed.toml")
    for rows, shown in ((), ["A", "B", "C"]), (("A",), ["A"]):
        facts = summarise(prepare(paper, phantom, rows=rows, base=tmp_path), tmp_path / "none", {})
        assert list(facts["rows"]) == shown
        assert ("C is not run: nobody knows how" in facts["remarks"]) is not bool(rows)


def test_a_recipe_of_ones_own(tmp_path: Path, phantom: Path) -> None:
    facts: dict[str, Any] = {
        "title": "t", "source": "s", "images": 10, "seeds": "0",
        "columns": {"ACC": "generalisation.accuracy"},
        "rows": {"A": {"method": {"name": "fedavg"}, "reported": {"ACC": 50.0}}},
    }  # fmt: skip
    path = tmp_path / "mine.toml"
    path.write_text(
        'extends = "phantom.toml"\n' + tomli_w.dumps({"train": {"rounds": 1}, "reproduce": facts})
    )
    paper = read(path)
    assert (paper.name, paper.sets, [arm.label for arm in paper.arms]) == ("mine", ("phantom",), ["A"])
    assert paper.table["data"]["scale"] == 0.004
