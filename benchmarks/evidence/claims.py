"""The claims of `claims.toml`, each with the paper's margin and ours.

The paper's margin comes from the recipe that holds its table, ours from the records of our table: the mean
difference over seeds with its 95 % interval.
"""

from __future__ import annotations

import tomllib
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from evidence.figures import Difference, difference
from evidence.lists import TABLES
from evidence.records import ROOT, Record
from evidence.runs import Runs

RECIPES = ROOT / "src" / "equipoise" / "reproduce" / "recipes"
SEEDS = 20
"""more than any table has: all recorded seeds count"""
SHOWN, NOT_SHOWN, CONTRADICTED = "shown", "not shown", "contradicted"
UNTESTED = "not tested yet"
VIEWS = {"G": "generalisation", "S": "specialisation", "A": "average"}


@dataclass(frozen=True)
class Finding:
    """What came of a claim."""

    paper: str
    text: str
    margin: float
    """the paper's, in points"""
    table: str
    ours: Difference | None
    converged: bool
    tried: str

    @property
    def verdict(self) -> str:
        if self.ours is None or self.ours.seeds < 2:
            return UNTESTED
        if self.ours.low > 0:
            return SHOWN
        return CONTRADICTED if self.ours.high < 0 else NOT_SHOWN


def findings() -> Iterator[Finding]:
    """Every claim in order."""
    claims = tomllib.loads((ROOT / "benchmarks" / "evidence" / "claims.toml").read_text())["claim"]
    for claim in claims:
        ours, table = claim["ours"], claim["ours"]["table"]
        better, worse = (recorded(table, ours[row]) for row in ("better", "worse"))
        metric = claim.get("metric", "balanced_accuracy")
        gap = difference(better, worse, VIEWS[ours["view"]], metric)
        settled = all(run["converged"] is True for run in (*better, *worse))
        yield Finding(
            claim["paper"],
            claim["text"],
            margin(claim["reported"]),
            table,
            gap,
            settled,
            claim.get("tried", ""),
        )


def recorded(table: str, row: str) -> list[Record]:
    """The runs of a row that are recorded; none of a table that is not there."""
    return Runs(table, TABLES[table], 1).finished(row, SEEDS) if table in TABLES else []


def margin(reported: dict[str, Any]) -> float:
    """The paper's difference in points; a row of another of its tables is named with its recipe."""
    better, worse = (
        number(reported["recipe"], reported[row], reported["column"]) for row in ("better", "worse")
    )
    return better - worse


def number(recipe: str, row: str, column: str) -> float:
    other, colon, rest = row.partition(": ")
    if colon and (RECIPES / f"{other}.toml").exists():
        recipe, row = other, rest
    rows = tomllib.loads((RECIPES / f"{recipe}.toml").read_text())["reproduce"]["rows"]
    found = rows[row]["reported"][column]
    return float(found[0] if isinstance(found, list) else found)
