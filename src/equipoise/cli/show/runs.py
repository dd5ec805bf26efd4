"""A run, the demo, a model on new data, a folder that was checked."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich.markup import escape

from equipoise.cli.console import terminal
from equipoise.cli.show.grid import grid
from equipoise.report.folder import by_size, figures, percent, reported_rounds

if TYPE_CHECKING:
    from equipoise.running import Result
    from equipoise.verify import Findings


COMPARED = {
    "generalisation": "general",
    "specialisation": "special",
    "average": "average",
    "tail": "tail recall",
    "macro_auc": "macro AUC",
}
"""columns of the comparison; the first three are balanced accuracy"""


def result(run: Result, page: Path) -> None:
    """The metrics of a run: the two protocols, recall per class, and where the rest is."""
    console = terminal()
    test = run.metrics.get("test")
    if test is not None:
        views = ("generalisation", "specialisation", "average")
        table = grid("test set", *views)
        for key, title in figures(test["generalisation"]).items():
            table.add_row(escape(title), *(percent(test[view].get(key)) for view in views))
        console.print(table)
        table = grid("recall", "test images", "global predictor")
        everyone = test["generalisation"]
        for i in by_size(everyone["support"]):
            support, recall = everyone["support"][i], everyone["recall"][i]
            table.add_row(escape(run.classes[i]), f"{support:,.0f}", percent(recall))
        console.print(table)
        worst = test["worst_site"]
        name, accuracy = escape(str(worst["name"] or "differs")), percent(worst["balanced_accuracy"])
        console.print(f"worst site  {name}, balanced accuracy {accuracy}")
    console.print("sites       simulated on one machine")
    rounds = reported_rounds(run.rounds, run.ending_of)
    console.print(f"rounds      {rounds}\nstate       {run.state_hash}")
    console.print(f"report      {page}", soft_wrap=True)


def comparison(facts: dict[str, Any]) -> None:
    """One row per method, the best of each column bold; how far the last is ahead, and how sure that is."""
    rows, lead = facts["rows"], facts["lead"]
    best = {key: max((row[key] for row in rows if row[key] is not None), default=None) for key in COMPARED}
    table = grid("", *COMPARED.values())
    table.columns[0].no_wrap = True
    for row in rows:
        cells = (
            f"[bold]{percent(row[key])}[/]" if row[key] == best[key] else percent(row[key])
            for key in COMPARED
        )
        table.add_row(escape(row["method"]), *cells)
    console = terminal()
    console.print(table)
    console.print(
        "general: one model on the test images of all hospitals; special: each hospital's own on its own; "
        "simulated on one machine"
    )
    low, high = (f"{100 * value:+.0f}" for value in lead["interval"])
    ahead = f"{100 * lead['difference']:+.0f} points of general balanced accuracy ({low} to {high})"
    console.print(
        f"{lead['method']} beside {lead['reference']}: {ahead}; in brackets 95 % of the differences when the "
        f"{lead['images']:,.0f} test images are drawn anew"
    )
    console.print(f"report  {facts['report']}", soft_wrap=True)


def evaluated(facts: dict[str, Any]) -> None:
    """The metrics of a model on new data, in all and for every site of it."""
    console, metrics = terminal(), facts["metrics"]
    table = grid("", f"{facts['images']:,} images")
    for key, title in figures(metrics).items():
        table.add_row(escape(title), percent(metrics[key]))
    console.print(table)
    table = grid("recall", "images", "")
    for i in by_size(metrics["support"]):
        support, recall = metrics["support"][i], metrics["recall"][i]
        table.add_row(escape(facts["classes"][i]), f"{support:,}", percent(recall))
    console.print(table)
    if len(facts["sites"]) > 1:
        table = grid("site", "balanced accuracy", "macro AUC", "recall, tail classes")
        for name, one in facts["sites"].items():
            cells = (percent(one[key]) for key in ("balanced_accuracy", "macro_auc", "tail"))
            table.add_row(escape(name), *cells)
        console.print(table)
    console.print(f"model  {escape(facts['model'])}", soft_wrap=True)
    which = (
        "its test images"
        if facts["rows"] == "test"
        else "all its images, as it does not say which are for testing"
    )
    console.print(f"data   {escape(facts['data'])}, {which}", soft_wrap=True)


def verified(findings: Findings) -> None:
    """What is as it was written, and what is not."""
    console = terminal()
    for problem in findings.problems:
        console.print(f"✗ {escape(problem)}", soft_wrap=True)
    checked, without = len(findings.checked), len(findings.without_digest)
    console.print(f"✓ {checked:,} files are as they were written; {without:,} have no digest")
