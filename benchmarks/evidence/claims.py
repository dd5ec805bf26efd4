"""The claims of `claims.toml`, each with the paper's margin and ours.

The paper's margin comes from the recipe that holds its table, ours from the records of our table: the mean
difference over seeds with its 95 % interval.
"""

from __future__ import annotations

import tomllib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from evidence.figures import Difference, difference, on_validation
from evidence.lists import TABLES, Table
from evidence.records import ROOT, Record
from evidence.runs import Runs

CLAIMS = ROOT / "benchmarks" / "evidence" / "claims.toml"
PAPERS = ROOT / "src" / "equipoise" / "reproduce" / "recipes"
SEEDS = 20
"""more than any table has: all recorded seeds count"""
SHOWN, NOT_SHOWN, CONTRADICTED = "shown", "not shown", "contradicted"
UNTESTABLE, UNTESTED = "not testable here", "not run yet"
LEVEL = 0.01
"""two rows are level when the whole interval of their difference is within one point"""
VIEWS = {"G": "generalisation", "S": "specialisation", "A": "average"}


@dataclass(frozen=True)
class Finding:
    """What came of a claim."""

    paper: str
    text: str
    margin: float
    """the paper's, in points"""
    decides: Decides | None
    """what decides it here; None where nothing at hand can"""
    ours: Difference | None = None
    converged: bool = True
    level: bool = False
    """the claim is that both are as good"""
    remark: str = ""
    """what was tried, or what is lacking"""
    elsewhere: Mapping[str, tuple[Difference, bool]] = field(default_factory=dict)
    """the same difference in other tables that have both rows, and whether all their runs have converged"""
    validation: Difference | None = None
    """the same difference on the validation images of the same runs"""

    @property
    def verdict(self) -> str:
        if self.decides is None:
            return UNTESTABLE
        if self.ours is None or self.ours.seeds < 2:
            return UNTESTED
        low, high = self.ours.low, self.ours.high
        if self.level:
            apart = low > LEVEL or high < -LEVEL
            return CONTRADICTED if apart else SHOWN if low >= -LEVEL and high <= LEVEL else NOT_SHOWN
        if low <= 0 <= high or not self.confirmed:
            return NOT_SHOWN
        return SHOWN if low > 0 else CONTRADICTED

    @property
    def confirmed(self) -> bool:
        """Whether other images than those for testing, which are the same for all seeds, say the same."""
        assert self.ours is not None
        return self.validation is None or (self.validation.mean > 0) == (self.ours.mean > 0)


@dataclass(frozen=True)
class Decides:
    """The two rows of our table whose difference is looked at."""

    table: str
    better: str
    worse: str
    view: str
    metric: str = "balanced_accuracy"

    def __str__(self) -> str:
        metric = "" if self.metric == "balanced_accuracy" else f" {self.metric}"
        return f"{self.better} − {self.worse}, {self.view}{metric}"


def findings() -> Iterator[Finding]:
    """Every claim in order."""
    tables = {name: Runs(name, table, 1) for name, table in TABLES.items() if table.rates}
    for claim in tomllib.loads(CLAIMS.read_text())["claim"]:
        told = claim["paper"], claim["text"], margin(claim["reported"])
        if "lacking" in claim:
            yield Finding(*told, None, remark=claim["lacking"])
            continue
        where = Decides(**claim["ours"], metric=claim.get("metric", "balanced_accuracy"))
        home = tables[where.table]
        gap, settled = found_in(home, where)
        others = {name: found_in(runs, where) for name, runs in tables.items() if elsewhere(runs, home)}
        yield Finding(
            *told,
            where,
            gap,
            settled,
            claim.get("level", False),
            claim.get("tried", ""),
            {name: (found, done) for name, (found, done) in others.items() if found and found.seeds > 1},
            difference(*rows_of(home, where), VIEWS[where.view], where.metric, on_validation),
        )


def elsewhere(runs: Runs, home: Runs) -> bool:
    """Whether a table has the same question under other circumstances: not one that divides the same images
    in another way, since that is what some claims are about."""
    return runs.name != home.name and (
        runs.table.recipe != home.table.recipe or divided(runs.table) == divided(home.table)
    )


def divided(table: Table) -> list[str]:
    return [text for text in table.common if text.startswith("partition.")]


def found_in(runs: Runs, where: Decides) -> tuple[Difference | None, bool]:
    """The difference in a table, None where it is not recorded, and whether all runs have converged."""
    if not {where.better, where.worse} <= set(runs.table.rows):
        return None, True
    better, worse = rows_of(runs, where)
    settled = all(run["converged"] is True for run in (*better, *worse))
    return difference(better, worse, VIEWS[where.view], where.metric), settled


def rows_of(runs: Runs, where: Decides) -> tuple[list[Record], list[Record]]:
    """The recorded runs of the two rows."""
    return runs.finished(where.better, SEEDS), runs.finished(where.worse, SEEDS)


def margin(reported: dict[str, Any]) -> float:
    """The paper's difference in points; a row of another of its tables is named with its recipe."""
    better, worse = (
        number(reported["recipe"], reported[row], reported["column"]) for row in ("better", "worse")
    )
    return better - worse


def number(recipe: str, row: str, column: str) -> float:
    other, colon, rest = row.partition(": ")
    if colon and (PAPERS / f"{other}.toml").exists():
        recipe, row = other, rest
    rows = tomllib.loads((PAPERS / f"{recipe}.toml").read_text())["reproduce"]["rows"]
    found = rows[row]["reported"][column]
    return float(found[0] if isinstance(found, list) else found)
