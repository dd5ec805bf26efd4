"""The tables of docs/results: what is kept of a run, how a learning rate is chosen, what a page says."""

from __future__ import annotations

import json
import sys
import tomllib
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from scipy import stats

import equipoise

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "benchmarks"))

from evidence import claims, page, records  # noqa: E402
from evidence.figures import Difference, closed, difference, settled  # noqa: E402
from evidence.lists import TABLES, Table  # noqa: E402
from evidence.runs import Runs  # noqa: E402

TABLE = Table(
    "two rows", "phantom", {"one": ("method.name=fedavg",), "two": ("method.name=fca",)}, rates=(0.1, 0.2)
)


def run(row: str, seed: int, value: float, **facts: Any) -> records.Record:
    metrics = {view: {"balanced_accuracy": value} for view in records.VIEWS}
    usual = {"curve": [[1, 0.1, 0.1, value, 0.1]], "recall": [value, None], "support": [5, 3]}
    return {
        **{"kind": "run", "row": row, "seed": seed, "rate": 0.1, "metrics": metrics, "converged": True},
        **{"classes": ["a", "b"], "seconds": 60.0, **usual, **facts},
    }


@pytest.fixture
def runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Runs:
    monkeypatch.setattr(records, "FOLDER", tmp_path / "records")
    return Runs("two", TABLE, 1)


def test_every_row_tries_the_same_rates_and_takes_the_best_on_validation(runs: Runs) -> None:
    for row, scores in {"one": (0.3, 0.4), "two": (0.5, 0.2)}.items():
        assert runs.rate(row) is None
        for job, score in zip(runs.trials(row), scores, strict=True):
            runs.records[job.mark] = {"kind": "trial", "row": row, "rate": job.rate, "score": score}
    assert (runs.rate("one"), runs.rate("two")) == (0.2, 0.1)
    assert len({job.mark for row in TABLE.rows for job in runs.trials(row)}) == 4


def test_what_was_recorded_is_read_back_in_an_order_of_its_own(runs: Runs) -> None:
    kept = {f"{i}": run("one", i, 0.5, mark=f"{i}") for i in (2, 0, 1)}
    records.write("two", kept)
    assert records.read("two") == kept
    lines = (records.FOLDER / "two.jsonl").read_text().splitlines()
    assert [json.loads(line)["seed"] for line in lines] == [0, 1, 2]


def test_differences_are_paired_by_seed_with_students_interval() -> None:
    mine, theirs = [0.50, 0.58, 0.61], [0.45, 0.50, 0.60]
    one = [run("one", seed, value) for seed, value in enumerate(mine)]
    other = [run("two", 9, 0.9), *(run("two", seed, value) for seed, value in enumerate(theirs))]
    found = difference(one, other, "average")
    expected = stats.ttest_rel(mine, theirs).confidence_interval(0.95)
    assert found is not None and found.seeds == 3
    assert np.allclose([found.mean, found.low, found.high], [0.14 / 3, expected.low, expected.high])
    assert difference(one, [], "average") is None


def test_a_gap_is_closed_by_its_share() -> None:
    alone, joined, pooled = ([run("x", 0, value)] for value in (0.4, 0.55, 0.6))
    assert closed(joined, alone, pooled, "average") == "75"
    assert closed(joined, alone, alone, "average") == "–"


def test_rows_that_have_not_converged_are_marked() -> None:
    assert settled([run("x", 0, 0.5), run("x", 1, 0.5)]) == "2 of 2"
    assert settled([run("x", 0, 0.5), run("x", 1, 0.5, converged=None)]) == "1 of 2 †"
    assert settled([run("x", 0, 0.5, converged=None)]) == "–"


def test_the_page_names_rows_that_are_missing_and_how_rates_were_chosen(
    runs: Runs, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "docs" / "results").mkdir(parents=True)
    monkeypatch.setattr(page, "ROOT", tmp_path)
    for row in TABLE.rows:
        for job in runs.trials(row):
            runs.records[job.mark] = {"kind": "trial", "row": row, "rate": job.rate, "score": job.rate}
    for seed, value in enumerate((0.5, 0.6)):
        runs.records[runs.job("one", seed, 0.2).mark] = run("one", seed, value)
    lines = page.write(runs, 2)
    assert any(line.startswith("| one | 55.0 ± 7.1 |") for line in lines)
    text = "\n".join(lines)
    assert "Not all runs are made yet: two." in text and "Chosen" in text and "one 0.2" in text
    assert (tmp_path / "docs" / "results" / "two.svg").read_text().startswith("<svg")


def test_what_is_kept_of_a_run_is_what_the_run_says(tmp_path: Path) -> None:
    data = {"kind": "phantom", "scale": 0.01, "image_size": 16, "split": {"seed": 1}}
    result = equipoise.run({"data": data, "train": {"rounds": 2}}, out=tmp_path)
    kept = records.record_of(tmp_path)
    assert kept["metrics"]["generalisation"]["balanced_accuracy"] == pytest.approx(
        result.metrics["test"]["generalisation"]["balanced_accuracy"], abs=1e-5
    )
    assert [point[0] for point in kept["curve"]] == [1, 2] and kept["state"] == result.state_hash[:16]
    last = [row["validation"]["average"]["balanced_accuracy"] for row in result.history]
    assert records.validated(tmp_path, "balanced_accuracy") == pytest.approx(sum(last) / 2, abs=1e-5)


def test_every_table_names_a_recipe_and_compares_with_a_row_it_has() -> None:
    for name, table in TABLES.items():
        assert (ROOT / "recipes" / f"{table.recipe}.toml").exists(), name
        assert table.compared in table.rows, name


def test_every_claim_has_the_papers_margin_and_a_row_of_ours() -> None:
    found = list(claims.findings())
    assert len(found) >= 20 and len({one.text for one in found}) == len(found)
    margins = {one.text: one.margin for one in found}
    assert margins["FedSDC is above FedAvgM"] == pytest.approx(68.76 - 66.29)
    assert margins["the second head alone, without consistency, is above one head"] == pytest.approx(5.2)
    table = tomllib.loads((ROOT / "benchmarks" / "evidence" / "claims.toml").read_text())["claim"]
    for claim in table:
        ours = claim["ours"]
        if ours["table"] in TABLES:
            assert {ours["better"], ours["worse"]} <= set(TABLES[ours["table"]].rows), claim["text"]


@pytest.mark.parametrize(
    ("low", "high", "seeds", "verdict"),
    [
        (0.01, 0.03, 3, "shown"),
        (-0.01, 0.03, 3, "not shown"),
        (-0.05, -0.03, 3, "contradicted"),
        (-0.05, 0.03, 1, "not tested yet"),
    ],
)
def test_a_verdict_follows_from_the_interval(low: float, high: float, seeds: int, verdict: str) -> None:
    ours = Difference((low + high) / 2, low, high, seeds)
    assert claims.Finding("", "", 1.0, "", ours, True, "").verdict == verdict
