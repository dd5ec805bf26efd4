"""The claims of `claims.toml`, each with the paper's margin and ours.

The paper's margin comes from the recipe that holds its table, ours from the records of our table: the mean
difference over seeds with its 95 % interval, and the same difference on validation images.
"""

from __future__ import annotations

import tomllib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

from evidence.figures import Difference, converged, difference, on_validation
from evidence.lists import TABLES
from evidence.records import ROOT, Record
from evidence.runs import Runs

CLAIMS = ROOT / "benchmarks" / "evidence" / "claims.toml"
PAPERS = ROOT / "src" / "equipoise" / "reproduce" / "recipes"
SEEDS = 20
"""more than any table has: all recorded seeds count"""
FEWEST = 3
"""with fewer seeds of both rows nothing is concluded"""
SHOWN, NOT_SHOWN, CONTRADICTED = "shown", "not shown", "contradicted"
UNTESTABLE, UNTESTED = "not testable here", "not run yet"
POINT = 0.01
"""what counts as a difference: two rows are level when the whole interval of theirs is within a point, and
validation images support what test images say when they say it by a point or more"""
VIEWS = {"G": "generalisation", "S": "specialisation", "A": "average"}


@dataclass(frozen=True)
class Decides:
    """The two rows of a table of ours whose difference is looked at."""

    table: str
    better: str
    worse: str
    view: str
    metric: str = "balanced_accuracy"

    def __str__(self) -> str:
        metric = "" if self.metric == "balanced_accuracy" else f" {self.metric}"
        return f"{self.better} − {self.worse}, {self.view}{metric}"


@dataclass(frozen=True)
class Measured:
    """What is recorded of the difference of two rows."""

    rows: Decides
    test: Difference | None
    validation: Difference | None = None
    """the same difference on the validation images of the same runs"""
    above: int = 0
    """the seeds in which the row that should be better is"""
    converged: bool = True
    """whether all runs of both rows have"""
    rates: tuple[float | None, float | None] = (None, None)
    """the learning rates that the two rows chose"""
    largest: float = 0.0
    """the largest rate that was tried"""

    @property
    def enough(self) -> bool:
        """Whether there are seeds enough to conclude anything."""
        return self.test is not None and self.test.seeds >= FEWEST


@dataclass(frozen=True)
class Finding:
    """What came of a claim."""

    paper: str
    text: str
    margin: float
    """the paper's, in points"""
    ours: Measured | None = None
    """what decides it here; None where no rows of ours do"""
    remark: str = ""
    """what was tried, or what is lacking"""
    level: bool = False
    """the claim is that both are as good"""
    runnable: bool = False
    """of a claim without rows: whether runs with the images at hand would decide it"""
    elsewhere: Sequence[Measured] = ()
    """the same difference in other tables where the claim should hold too; decides nothing"""
    beside: Sequence[Measured] = ()
    """other differences of the same table, which say how to read this one; decide nothing"""

    @property
    def verdict(self) -> str:
        if self.ours is None:
            return UNTESTED if self.runnable else UNTESTABLE
        test, validation = self.ours.test, self.ours.validation
        if test is None or test.seeds < FEWEST:
            return UNTESTED
        if self.level:
            return level(test, validation)
        if test.low > 0 and supported(validation, 1):
            return SHOWN
        if test.high < 0 and supported(validation, -1):
            return CONTRADICTED
        return NOT_SHOWN


def supported(validation: Difference | None, sign: int) -> bool:
    """Whether other images than those for testing, which are the same for all seeds, say the same, and by a
    point or more; also where no figure of them is kept."""
    return validation is None or sign * validation.mean >= POINT


def level(test: Difference, validation: Difference | None) -> str:
    """The verdict on a claim that two rows are as good."""
    if test.low > POINT and supported(validation, 1):
        return CONTRADICTED
    if test.high < -POINT and supported(validation, -1):
        return CONTRADICTED
    within = test.low >= -POINT and test.high <= POINT
    return SHOWN if within and (validation is None or abs(validation.mean) <= POINT) else NOT_SHOWN


def findings() -> Iterator[Finding]:
    """Every claim in order."""
    tables = {name: Runs(name, table, 1) for name, table in TABLES.items() if table.rates}
    for claim in tomllib.loads(CLAIMS.read_text())["claim"]:
        told = claim["paper"], claim["text"], margin(claim["reported"])
        if "ours" not in claim:
            runnable = "needs" in claim
            yield Finding(*told, remark=claim["needs" if runnable else "lacking"], runnable=runnable)
            continue
        rows = Decides(**claim["ours"], metric=claim.get("metric", "balanced_accuracy"))
        home = tables[rows.table]
        yield Finding(
            *told,
            ours=measured(home, rows),
            remark=claim.get("remark", ""),
            level=claim.get("level", False),
            elsewhere=[
                measured(tables[name], replace(rows, table=name)) for name in claim.get("elsewhere", [])
            ],
            beside=[measured(home, Decides(rows.table, *other)) for other in claim.get("beside", [])],
        )


def measured(runs: Runs, rows: Decides) -> Measured:
    """What a table has recorded of the difference of two of its rows."""
    better, worse = runs.finished(rows.better, SEEDS), runs.finished(rows.worse, SEEDS)
    view = VIEWS[rows.view]
    return Measured(
        rows,
        difference(better, worse, view, rows.metric),
        difference(better, worse, view, rows.metric, on_validation),
        above(better, worse, rows),
        converged(better, worse),
        (runs.rate(rows.better), runs.rate(rows.worse)),
        max(runs.table.rates),
    )


def above(better: Sequence[Record], worse: Sequence[Record], rows: Decides) -> int:
    """In how many seeds the row that should be better is."""
    gaps = [difference([run], worse, VIEWS[rows.view], rows.metric) for run in better]
    return sum(gap is not None and gap.mean > 0 for gap in gaps)


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
