"""Whether a run has converged: the last quarter of rounds beside the quarter before, on validation images."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from equipoise.compare import Plan, make_plan
from equipoise.compare.summary import conclude, converged_text, table_of
from equipoise.config import Config
from equipoise.evaluate import converged
from equipoise.report import words
from equipoise.report.folder import read_run
from equipoise.report.table import latex
from equipoise.running import Result, run

MakeConfig = Callable[..., Config]
Once = Callable[[Config], Result]


def rows(figures: Mapping[int, float | None], last: int | None = None) -> list[dict[str, Any]]:
    """The metrics of a run whose rounds have these validation figures, and up to `last` none."""
    made: list[dict[str, Any]] = []
    for round in range(1, (last or max(figures)) + 1):
        made.append({"round": round})
        if round in figures:
            made[-1]["validation"] = {"generalisation": {"balanced_accuracy": figures[round]}}
    return made


def test_the_last_quarter_is_held_against_the_one_before() -> None:
    first = dict.fromkeys(range(1, 11), 0.1)
    before = dict(zip(range(11, 16), (0.50, 0.52, 0.48, 0.51, 0.49), strict=True))
    after = dict(zip(range(16, 21), (0.53, 0.49, 0.50, 0.53, 0.50), strict=True))
    assert np.mean([*after.values()]) - np.mean([*before.values()]) == pytest.approx(0.01)
    assert converged(rows(first | before | after)) is True
    assert converged(rows(first | before | after | {20: 0.51})) is False
    assert converged(rows(first | before | {round: value - 0.03 for round, value in after.items()})) is False


def test_quarters_are_of_the_rounds_that_were_trained() -> None:
    """With an evaluation every five rounds, 25 and 30 against 35 and 40; a run that went on is another."""
    figures = {5: 0.1, 10: 0.2, 15: 0.3, 20: 0.35, 25: 0.40, 30: 0.42, 35: 0.415, 40: 0.415}
    assert converged(rows(figures)) is True
    assert converged(rows(figures | {35: 0.43, 40: 0.43})) is False
    assert converged(rows(figures, last=48)) is None  # 25, 30, 35 and only 40


def test_too_little_to_tell_is_not_told() -> None:
    assert converged([]) is None
    assert converged(rows({}, last=20)) is None
    assert converged(rows({4: 0.5, 8: 0.5, 12: 0.5, 16: 0.5})) is None
    assert converged(rows(dict.fromkeys(range(1, 9), 0.5))) is True
    assert converged(rows(dict.fromkeys(range(1, 9), None))) is None


def test_an_ending_does_not_count() -> None:
    found = rows(dict.fromkeys(range(1, 9), 0.5))
    ending = {"round": 9, "ending_of": 8, "validation": {"generalisation": {"balanced_accuracy": 0.9}}}
    assert converged([*found, ending]) is True


@pytest.fixture(scope="module")
def still(tmp_path_factory: pytest.TempPathFactory) -> tuple[Plan, Path, Result]:
    """A comparison of one run in which nothing is learnt and nothing moves, and its folder."""
    table = {
        "data": {"kind": "phantom", "scale": 0.004, "image_size": 16},
        "partition": {"kind": "iid", "sites": 3},
        "train": {"rounds": 8, "batch_size": 64, "lr": 0.0},
        "engine": {"device": "cpu"},
    }
    plan, folder = make_plan(table, ["fedavg"]), tmp_path_factory.mktemp("still")
    (job,) = plan.jobs
    return plan, folder, run(job.config, folder / job.name)


def test_a_run_and_its_page_say_whether_it_has_converged(
    still: tuple[Plan, Path, Result], tiny: MakeConfig, once: Once
) -> None:
    plan, _, ended = still
    assert ended.converged is True
    assert json.loads((ended.folder / "result.json").read_text())["converged"] is True
    again = run(plan.jobs[0].config, ended.folder)
    assert again.converged is True
    answers = dict(words.in_short(read_run(ended.folder)))
    assert answers["Trained long enough?"].startswith("As far as the validation images tell")
    short = once(tiny())
    assert short.converged is None
    assert dict(words.in_short(read_run(short.folder)))["Trained long enough?"].startswith("Not known")


def test_a_table_marks_the_rows_that_have_not_converged(still: tuple[Plan, Path, Result]) -> None:
    known = {"yes": [True, True], "some": [True, False], "unknown": [None, None], "half": [True, None]}
    told = {label: converged_text([{"converged": one} for one in values]) for label, values in known.items()}
    assert told == {"yes": "2 of 2", "some": "1 of 2 †", "unknown": "–", "half": "1 of 2 †"}
    assert converged_text([{}]) == "–"  # of a run that an older version wrote
    plan, folder, _ = still
    (job,) = plan.jobs
    facts = conclude(plan, folder)
    text = (folder / "table.md").read_text()
    assert "| converged | runs |" in text and "| 1 of 1 | 1 |" in text
    assert "within one\npoint of the quarter before" in text and "†" in text
    facts["arms"]["fedavg"]["runs"][0]["converged"] = False
    assert table_of(facts).rows[0].remarks[-2] == "0 of 1 †"
    assert r"0 of 1 $\dagger$" in latex(table_of(facts))
    ended = read_run(folder / job.name)
    answers = dict(words.compared(facts, [("fedavg", [ended])]))
    assert answers["Trained long enough?"].endswith("every run had converged.")
    moving = replace(ended, result=ended.result | {"converged": False})
    answers = dict(words.compared(facts, [("fedavg", [ended, moving])]))
    assert answers["Trained long enough?"].startswith("Not in every run of fedavg")
