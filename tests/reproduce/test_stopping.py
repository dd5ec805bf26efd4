"""When a run at small scale ends early: the rule, whose word counts, and what it would have cost the recorded
runs."""

from __future__ import annotations

import sys
from collections.abc import Callable
from functools import cache
from pathlib import Path
from statistics import mean
from typing import NamedTuple

import pytest

from equipoise.compare import Arm
from equipoise.compare.plan import Changes, variant
from equipoise.config import Config, load, override, resolve, setting
from equipoise.errors import ConfigError
from equipoise.evaluate.protocol import POINT, stopped
from equipoise.reproduce import find
from equipoise.reproduce.plan import (
    chosen,
    fitting,
    placed,
    shrunk,
    small_arms,
    small_remark,
    stop_rule,
    stopping,
)

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "benchmarks"))

from evidence import records  # noqa: E402
from evidence.lists import TABLES  # noqa: E402


def small(name: str, *overrides: str) -> dict[str, Config]:
    """Every row of a table at small scale, with the same changes by hand."""
    paper, base = find(name), Path.cwd()
    table = shrunk(placed(paper, Path("downloads"), base), paper.recipe)
    arms = small_arms(paper, chosen(paper, ()), table, base)
    by_hand: Changes = tuple(map(setting, overrides))
    arms = [Arm(arm.label, (*arm.changes, *fitting(by_hand, arm, table, base))) for arm in arms]
    arms = [stopping(arm, table, base) for arm in arms]
    return {arm.label: resolve(variant(table, arm), base) for arm in arms}


def stop_of(config: Config) -> tuple[int, int]:
    """Evaluations that are waited for, and rounds that are not looked at."""
    assert config.train.stop is not None
    return config.train.stop.patience, config.train.stop.after


# The rule ---------------------------------------------------------------------------------------------------


def test_patience_and_the_start_are_shares_of_the_budget() -> None:
    assert stop_rule(rounds=200, every=8) == {"patience": 9, "after": 40}
    assert stop_rule(rounds=200, every=8, warmup=20) == {"patience": 9, "after": 60}
    assert stop_rule(rounds=20, every=1) == {"patience": 7, "after": 4}
    assert stop_rule(rounds=80, every=3) == {"patience": 10, "after": 16}  # of 27 evaluations
    assert stop_rule(rounds=1, every=1) == {"patience": 1, "after": 0}
    assert stop_rule(rounds=0, every=1) == {"patience": 1, "after": 0}


def test_every_row_waits_for_its_own_warm_up() -> None:
    rows = small("fedmlp-table2-miss7")
    assert rows["FedMLP"].method.model_dump()["warmup"] == 20
    assert stop_of(rows["FedMLP"]) == stop_of(rows["CBAFed"]) == (9, 60)
    assert stop_of(rows["FedAvg-PL"]) == stop_of(rows["RSCFed"]) == (9, 40)
    assert stop_of(rows["FedNoRo"]) == (9, 40 + 4)
    assert stop_of(rows["FedLSR"]) == (9, 40 + 16)


def test_a_warm_up_that_a_method_leaves_open_counts_as_none() -> None:
    paper, base = find("fca-table4"), Path.cwd()
    table = shrunk(placed(paper, Path("downloads"), base), paper.recipe)
    arm = Arm("FedLSR", (("method.name", "fedlsr"), ("train.views", ["flip", "flip"])))
    config = resolve(variant(table, stopping(arm, table, base)), base)
    assert config.method.model_dump()["warmup"] is None and stop_of(config) == (10, 16)


def test_it_follows_what_is_changed_by_hand() -> None:
    longer = small("fedmlp-table2-miss7", "train.rounds=400", "evaluate.every=10", "method.warmup=100")
    assert stop_of(longer["FedMLP"]) == (14, 180)
    own = small("fedmlp-table2-miss7", "train.stop.patience=3", "train.stop.least=0.01")["FedMLP"]
    assert stop_of(own) == (3, 60) and own.train.stop is not None and own.train.stop.least == 0.01
    whole = small("fedmlp-table2-miss7", "train.stop={ patience = 2 }")["FedMLP"]
    assert stop_of(whole) == (2, 0)
    with pytest.raises(ConfigError, match=r"'train\.stop\.leest': did you mean 'least'"):
        small("fedmlp-table2-miss7", "train.stop.leest=0.01")


def test_the_remark_says_the_rule() -> None:
    rows = small("fedmlp-table2-miss7")
    text = small_remark([rows[label] for label in ("FedAvg-PL", "FedMLP")])
    assert "not improved for 9 of its evaluations, not counting its first 40 or 60 rounds" in text
    own = small("fedsdc-table2", "train.stop={ patience = 2 }")
    assert "for 2 of its evaluations, not counting its first 0 rounds" in small_remark(list(own.values()))


# What it would have cost ------------------------------------------------------------------------------------


class Replayed(NamedTuple):
    """A recorded run, had it ended by a rule."""

    lost: float
    """mean of the last three validation figures of the whole run, less that at the end by the rule"""
    saved: float
    """share of its rounds"""
    converged: bool


class Recorded(NamedTuple):
    """A run of docs/results/records."""

    rounds: int
    every: int
    warmup: int
    curve: list[tuple[int, float]]
    """round and balanced accuracy on validation images"""
    converged: bool


@cache
def recorded() -> list[Recorded]:
    """Every recorded run that was trained, and had validation images."""
    found = []
    for name, table in TABLES.items():
        recipe = load(records.RECIPES / f"{table.recipe}.toml")
        for record in records.read(name).values():
            if record["kind"] != records.RUN or record["row"] in table.trained_by:
                continue
            settings = override(recipe, [*table.rows.get(record["row"], ()), *table.common])
            rounds = settings["train"]["rounds"]
            # what comes after the last round is a method's ending
            curve = [(point[0], point[1]) for point in record["curve"] if point[0] <= rounds]
            if None in (value for _, value in curve):
                continue
            warmup = settings.get("method", {}).get("warmup", 0)
            every, converged = settings["evaluate"]["every"], record["converged"] is True
            found.append(Recorded(rounds, every, warmup, curve, converged))
    return found


def replay(rule: Callable[[int, int, int], dict[str, int]]) -> list[Replayed]:
    result = []
    for run in recorded():
        history = [
            {"round": round, "validation": {"generalisation": {"balanced_accuracy": value}}}
            for round, value in run.curve
        ]
        end = stopped(history, **rule(run.rounds, run.every, run.warmup))
        last = run.rounds if end is None else end[0]
        whole = [value for _, value in run.curve]
        kept = [value for round, value in run.curve if round <= last]
        result.append(Replayed(mean(whole[-3:]) - mean(kept[-3:]), 1 - last / run.rounds, run.converged))
    return result


def within(runs: list[Replayed]) -> float:
    """The share of runs that end no more than a point below where they would have come."""
    return mean(run.lost <= POINT for run in runs)


def test_nearly_every_recorded_run_would_have_come_as_far() -> None:
    runs = replay(stop_rule)
    assert len(runs) > 500
    assert within(runs) >= 0.95
    assert mean(run.lost > 2 * POINT for run in runs) <= 0.02
    assert mean(run.saved for run in runs) >= 0.05
    flat, moving = ([run.saved for run in runs if run.converged is one] for one in (True, False))
    assert mean(flat) > 2 * mean(moving)  # where it costs nothing


def test_five_evaluations_of_twenty_five_were_too_few() -> None:
    """The rule before: it ended one run of four more than a point too early."""
    runs = replay(lambda rounds, every, warmup: {"patience": max(1, round(0.2 * rounds / every))})
    assert within(runs) < 0.8
