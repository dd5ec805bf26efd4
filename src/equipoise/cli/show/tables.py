"""Comparisons, the papers' tables, and the list of them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from rich.markup import escape
from rich.table import Table

from equipoise.cli.console import terminal
from equipoise.cli.show.grid import grid


def compared(facts: dict[str, Any], folder: Path) -> None:
    """The table of a comparison, the best of each column bold and the second underlined, and the tests
    beneath."""
    from equipoise.compare.summary import table_of

    console, found = terminal(), table_of(facts)
    marks = {"best": "[bold]{}[/]", "second": "[underline]{}[/]", "": "{}"}

    def figures(short: bool) -> Table:
        table = grid("", *found.columns)
        for row, cells, ranks in zip(found.rows, found.cells(), found.ranks(), strict=True):
            texts = (cell.partition(" ")[0] if short else cell for cell in cells)
            table.add_row(
                escape(row.label),
                *(marks[rank].format(text) for rank, text in zip(ranks, texts, strict=False)),
            )
        for column in table.columns:
            column.no_wrap = True
        return table

    roomy = console.options.update(width=1000)
    short = console.measure(figures(short=False), options=roomy).maximum > console.width
    console.print(figures(short))
    tests = grid(f"against {escape(facts['reference'])}", *found.remarks)
    for row in found.rows:
        tests.add_row(escape(row.label), *row.remarks)
    console.print(tests)
    spread = "" if short else " ± standard deviation"
    console.print(
        f"per cent, mean{spread}; G: one model on all sites' test images; S: each site's own on its own; "
        f"A: the mean of both"
    )
    console.print("Δ: difference in G bACC; p: two-sided, corrected for the number of arms")
    for reason in facts["left_out"]:
        console.print(f"left out  {escape(reason)}", soft_wrap=True)
    for remark in facts["remarks"]:
        console.print(f"note      {escape(remark)}", soft_wrap=True)
    for twin in facts["twins"]:
        console.print(f"the same  {escape(twin)}", soft_wrap=True)
    for failure in facts["failures"]:
        console.print(f"failed    {escape(failure['run'])}: {escape(failure['error'])}", soft_wrap=True)
    console.print(
        f"tables    {folder / 'table.md'}, table.csv, table.tex; every figure: comparison.json",
        soft_wrap=True,
    )
    console.print(f"report    {folder / 'report.html'}", soft_wrap=True)


def reproduced(facts: dict[str, Any], folder: Path) -> None:
    """Ours, the paper's in brackets, the difference; then what is not as in the paper."""
    from equipoise.reproduce import texts

    console = terminal()
    table = grid("", *facts["columns"], "runs")
    table.columns[0].no_wrap = True
    for label, row in facts["rows"].items():
        cells = []
        for name in facts["columns"]:
            ours, paper, difference = (text.partition(" ")[0] for text in texts(row["cells"][name]))
            cells.append(f"{ours} ({paper}) {difference}")
        table.add_row(escape(label), *cells, str(row["runs"]))
    console.print(f"[bold]{escape(facts['table'])}[/]  {escape(facts['title'])} ({escape(facts['source'])})")
    console.print(table)
    for remark in facts["remarks"]:
        console.print(f"- {escape(remark)}")
    console.print(
        f"per cent: ours (paper's) difference; with standard deviations: "
        f"{escape(str(folder / 'reproduction.md'))}"
    )
    console.print(f"report  {escape(str(folder / 'report.html'))}", soft_wrap=True)


def papers(found: list[dict[str, Any]]) -> None:
    """One row per table of the papers."""
    console = terminal()
    table = grid("table", "what", "rows", "data", "full", "small", right=4)
    table.columns[0].no_wrap = True
    for one in found:
        cost = one["estimated_seconds"]
        words = (one["table"], one["title"], ", ".join(one["rows"]), ", ".join(one["data"]))
        table.add_row(*map(escape, words), rough(cost["full"]), rough(cost["small"]))
    console.print(table)
    console.print(
        "full, small: an estimate for one core (or the GPU) of this machine with nothing else to do, for "
        "all rows, seeds and "
        "folds, at small scale one seed; from the small network timed for a moment and what others cost "
        "beside it, without "
        "evaluation, augmentation and methods' own computing"
    )


def rough(seconds: float) -> str:
    """About how long, with two digits, which is more than an estimate can promise."""
    for unit, length in (("days", 86400.0), ("h", 3600.0), ("min", 60.0)):
        if seconds >= 2 * length:
            return (
                f"{float(f'{seconds / length:.2g}'):,.0f} {unit}"
                if seconds >= 10 * length
                else f"{seconds / length:.1f} {unit}"
            )
    return f"{seconds:.0f} s"
