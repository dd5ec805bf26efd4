"""How far the project's own method is from its goal: better in A than each of seven rivals on every table
with one label per image; and in G than four where images have several."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from evidence.claims import SEEDS
from evidence.figures import Difference, difference, on_validation
from evidence.runs import Runs

OWN = "Equipoise"
RIVALS = ("FCA", "FedIIC", "Fed-MAS", "FedSDC", "FedSDC+", "BalanceFL", "FedAvg + balanced softmax")
SINGLE = ("sites-48", "sites-lite0", "pbc-skew", "pbc-overview", "pbc-tail", "fedsdc-niid1", "fedsdc-iid")
"""the tables with one label per image that are tuned row by row"""
SEVERAL = ("fedmlp-1", "fedmlp-3", "fedmlp-5", "fedmlp-7", "fedmlp-phantom")
RIVALS_OF_SEVERAL = ("FedMLP", "FedIRM", "FedNoRo", "FedAvg-PL, weighted")
"""the paper's method, the two best other rows of it, and the usual one"""


def gaps(
    runs: Runs, rivals: Sequence[str], view: str
) -> Mapping[str, tuple[Difference | None, Difference | None]]:
    """For every rival in a table our method less the rival: on test images, and on the validation images of
    the same runs; None where no seed of both is recorded."""
    own = runs.finished(OWN, SEEDS) if OWN in runs.table.rows else []
    theirs = {row: runs.finished(row, SEEDS) for row in rivals if row in runs.table.rows}
    return {
        row: (difference(own, records, view), difference(own, records, view, figure=on_validation))
        for row, records in theirs.items()
    }


def lines(tables: Mapping[str, Runs], rivals: Sequence[str] = RIVALS, view: str = "average") -> Iterator[str]:
    """One table: rivals down, tables across, and a sentence that counts."""
    found = {name: gaps(runs, rivals, view) for name, runs in tables.items()}
    heads = [f"[{name}]({name}.md)" if runs.begun else name for name, runs in tables.items()]
    yield "| rival | " + " | ".join(heads) + " |"
    yield "|---" * (len(found) + 1) + "|"
    for row in rivals:
        cells = [cell(*of[row]) if row in of else "no row of it" for of in found.values()]
        yield f"| {row} | " + " | ".join(cells) + " |"
    made = [test for of in found.values() for test, _ in of.values() if test is not None]
    ahead = sum(one.mean > 0 for one in made)
    certain = sum(one.seeds > 1 and one.low > 0 for one in made)
    behind = sum(one.seeds > 1 and one.high < 0 for one in made)
    missing = sum(test is None for of in found.values() for test, _ in of.values())
    yield ""
    yield (
        f"Of {len(made)} comparisons that are made it is ahead in {ahead}, with an interval above 0 in "
        f"{certain} and below 0 in {behind}; {missing} are not made yet."
    )


def cell(test: Difference | None, validation: Difference | None) -> str:
    if test is None:
        return "not run"
    beside = "" if validation is None else f"; validation {100 * validation.mean:+.1f}"
    return f"{test}, {test.seeds} seeds{beside}" if test.seeds > 1 else f"{test}, one seed{beside}"
