"""Comparisons, the papers' tables, and the list of them."""

from __future__ import annotations

from itertools import groupby
from pathlib import Path
from typing import Any

from rich.markup import escape
from rich.padding import Padding

from equipoise.cli.console import terminal
from equipoise.cli.show.grid import grid, stacked

MARKS = {"best": "[bold]{}[/]", "second": "[underline]{}[/]", "": "{}"}


def compared(facts: dict[str, Any], folder: Path) -> None:
    """The table of a comparison, the best of each column bold and the second underlined, and the tests
    beneath."""
    from equipoise.compare.summary import references, table_of

    console, comparison = terminal(), table_of(facts)
    labels = [escape(row.label) for row in comparison.rows]
    marked = [
        [MARKS[rank].format(cell) for rank, cell in zip(ranks, cells, strict=False)]
        for ranks, cells in zip(comparison.ranks(), comparison.cells(), strict=True)
    ]
    figures = [(head, [row[i] for row in marked]) for i, head in enumerate(comparison.columns)]
    several = len(references(facts)) > 1
    remarks = enumerate(comparison.remarks)
    tests = [(head, [escape(row.remarks[i]) for row in comparison.rows]) for i, head in remarks]
    head = "" if several else f"against {escape(facts['reference'])}"
    for table in (*stacked(console, ("", labels), figures), *stacked(console, (head, labels), tests)):
        console.print(table)
    console.print(
        "per cent, mean ± standard deviation; G: one model on all sites' test images; S: each site's own on "
        "its own; A: the mean of both"
    )
    if facts["versus"]:
        console.print("Δ: difference in G bACC; p: two-sided, corrected for the number of arms")
    for title, texts in {
        "note": facts["collapsed"] + facts["remarks"],
        "left out": facts["left_out"],
        "the same": facts["twins"],
        "failed": [f"{one['run']}: {one['error']}" for one in facts["failures"]],
    }.items():
        for text in texts:
            console.print(f"{title:<9} {escape(text)}", soft_wrap=True)
    console.print(
        f"tables    {folder / 'table.md'}, table.csv, table.tex; every run: runs.csv; every figure: "
        f"comparison.json",
        soft_wrap=True,
    )
    console.print(f"report    {folder / 'report.html'}", soft_wrap=True)


def reproduced(facts: dict[str, Any], folder: Path) -> None:
    """Ours, the paper's in brackets, the difference; then what is not as in the paper."""
    from equipoise.reproduce import settled, texts

    console, rows = terminal(), facts["rows"].values()
    columns = []
    for name in facts["columns"]:
        cells = [texts(row["cells"][name]) for row in rows]
        columns.append((escape(name), [f"{ours} ({paper}) {gap}" for ours, paper, gap in cells]))
    columns.append(("converged", [settled(row) for row in rows]))
    columns.append(("runs", [str(row["runs"]) for row in rows]))
    console.print(f"[bold]{escape(facts['table'])}[/]  {escape(facts['title'])} ({escape(facts['source'])})")
    for table in stacked(console, ("", [*map(escape, facts["rows"])]), columns):
        console.print(table)
    for remark in facts["remarks"]:
        console.print(f"- {escape(remark)}")
    console.print("per cent: ours (the paper's) difference, ± standard deviation; †: still moving at the end")
    console.print(f"tables  {escape(str(folder / 'reproduction.md'))}, .csv, .tex", soft_wrap=True)
    console.print(f"report  {escape(str(folder / 'report.html'))}", soft_wrap=True)


COST = (
    "full, small: a rough estimate for one core (or the GPU) of this machine, for all rows, seeds and folds, "
    "at small scale one seed; from the small network timed for a moment and what others cost beside it, "
    "without evaluation, augmentation and methods' own computing"
)


def papers(listing: list[dict[str, Any]]) -> None:
    """A few lines per paper."""
    console = terminal()
    for name, tables in groupby(listing, lambda one: one["table"].partition("-")[0]):
        each = list(tables)
        source = each[0]["source"].partition(", Table")[0]
        data = dict.fromkeys(kind for one in each for kind in one["data"])
        costs = (rough(sum(one["estimated_seconds"][scale] for one in each)) for scale in ("full", "small"))
        names = ", ".join(one["table"].removeprefix(f"{name}-") for one in each)
        console.print(f"[bold]{name}[/]  {escape(source)}")
        texts = (f"on {', '.join(data)}", "full {}, small {}".format(*costs), names)
        console.print(Padding(escape("\n".join(texts)), (0, 0, 1, 2)))
    console.print(COST)
    console.print("the tables of a paper:  equipoise reproduce fca --list")
    console.print("one table in full:      equipoise reproduce fca-table4 --list")


def paper(listing: list[dict[str, Any]]) -> None:
    """One row per table of a paper."""
    console = terminal()
    table = grid("table", "what", "rows", "full", "small", right=2)
    table.columns[0].no_wrap = True
    for one in listing:
        costs = (rough(one["estimated_seconds"][scale]) for scale in ("full", "small"))
        table.add_row(one["table"], escape(one["title"]), str(len(one["rows"])), *costs)
    console.print(table)
    console.print(COST)


def paper_table(one: dict[str, Any]) -> None:
    """One table of a paper: what it needs, and the numbers that were published."""
    console, cost = terminal(), one["estimated_seconds"]
    console.print(f"[bold]{escape(one['table'])}[/]  {escape(one['title'])} ({escape(one['source'])})")
    folds = f" × {one['folds']} folds" if one["folds"] else ""
    needs = {
        "data": ", ".join(one["data"]),
        "weights": ", ".join(one["weights"].values()) or "none",
        "runs": f"{len(one['rows'])} rows × {len(one['seeds'])} seeds{folds}",
        "cost": f"full {rough(cost['full'])}, small {rough(cost['small'])}",
    }
    for title, text in needs.items():
        console.print(f"{title:<8} {escape(text)}")
    columns = []
    for name in one["columns"]:
        cells = [_published(row["reported"].get(name)) for row in one["rows"].values()]
        columns.append((escape(name), cells))
    for table in stacked(console, ("as published", [*map(escape, one["rows"])]), columns):
        console.print(table)
    rows = one["rows"].items()
    blocked = [f"{label} cannot be run: {row['cannot']}" for label, row in rows if "cannot" in row]
    for text in (*one["notes"], *blocked):
        console.print(f"- {escape(text)}")
    console.print(COST)


def _published(value: float | tuple[float, float] | None) -> str:
    if value is None:
        return "–"
    return f"{value[0]} ± {value[1]}" if isinstance(value, tuple) else f"{value}"


def rough(seconds: float) -> str:
    """About how long, with two digits, which is more than an estimate can promise."""
    for unit, length in (("days", 86400.0), ("h", 3600.0), ("min", 60.0)):
        if seconds >= 10 * length:
            return f"{float(f'{seconds / length:.2g}'):,.0f} {unit}"
        if seconds >= 2 * length:
            return f"{seconds / length:.1f} {unit}"
    return f"{seconds:.0f} s"
