"""Our numbers beside the paper's: run what is left to run, then one table of ours, theirs and the
difference."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import mean
from typing import Any

from equipoise.compare import Plan, compare
from equipoise.compare import page as comparison_page
from equipoise.compare.summary import (
    CONVERGED,
    CONVERGED_NOTE,
    NOT_ALL,
    converged_text,
    p_text,
    read_facts,
    results_of,
)
from equipoise.keeping import write_atomic, write_json
from equipoise.report import Sheet
from equipoise.report.table import Figure, Row, Table, Value, comma_separated, latex, markdown
from equipoise.reproduce.plan import Task
from equipoise.running import Watch

FACTS = "reproduction.json"
NOTE = """\
Per cent, mean ± standard deviation over {runs}; paper: as published, with the standard deviation where there
is one; Δ: ours minus the paper's. {source}.
"""
P_NOTE = """
p: ours, Student's paired t test against {reference} over runs, two-sided, uncorrected; paper p: as printed.
"""


def reproduce(
    task: Task, out: Path, processes: int | None = None, watch: Watch | None = None, on: str | None = None
) -> dict[str, Any]:
    """Run the table into `out`, which then also holds reproduction.md, .csv, .tex and .json; what the last
    holds.

    The other files are those of a comparison: every run's folder, and table.* with p-values between the rows.
    """
    compared = compare(task.plan, out, processes, watch, on)
    facts = summarise(task, out, compared["versus"]) | {"failures": compared["failures"]}
    shown = sheet(facts)
    text = f"# {facts['table']}: {facts['title']}\n\n" + markdown(shown) + "\n"
    text += NOTE.format(runs=_runs(task.plan), source=facts["source"])
    text += P_NOTE.format(reference=compared["reference"]) if _with_p(facts) else ""
    text += "\n" + CONVERGED_NOTE.format(not_all=NOT_ALL)
    text += "".join(f"\n- {remark}" for remark in facts["remarks"]) + "\n" * bool(facts["remarks"])
    text += "".join(f"\nFailed: {one['run']}: {one['error']}\n" for one in facts["failures"])
    for name, content in {
        "reproduction.md": text,
        "reproduction.csv": comma_separated(*_numbers(facts)),
        "reproduction.tex": latex(shown),
    }.items():
        write_atomic(out / name, content.encode())
    write_json(out / FACTS, facts)
    page(out)
    return facts


def page(out: Path) -> Path:
    """Write the page of the table in a folder: that of the comparison, with the paper's numbers first."""
    facts = read_facts(out / FACTS)
    note = "Per cent, mean ± standard deviation; paper: as published; Δ: ours minus the paper's."
    note += f" {facts['source']}. {CONVERGED_NOTE.format(not_all=NOT_ALL).strip()}"
    note += "".join(f" {remark.rstrip('.')}." for remark in facts["remarks"])
    return comparison_page(out, [Sheet(f"Beside the paper: {facts['title']}", sheet(facts), note)])


def summarise(task: Task, out: Path, versus: Mapping[str, Any]) -> dict[str, Any]:
    """Ours, the paper's and the difference for every row and column, in per cent; plain JSON types.

    `versus` has the comparison of every row with the reference, for the rows whose p-value the paper prints.
    """
    recipe, plan = task.paper.recipe, task.plan
    results = results_of(plan, out)
    results_by_row: dict[str, list[dict[str, Any]]] = {arm.label: [] for arm in plan.arms}
    for job in plan.jobs:
        if job.name in results:
            results_by_row[job.arm.label].append(results[job.name])
    whole = len(plan.arms) == len(task.paper.arms)
    shown = {
        label: row for label, row in recipe.rows.items() if label in results_by_row or (whole and row.cannot)
    }
    rows = {}
    for label, row in shown.items():
        ended = results_by_row.get(label, [])
        tests = [result["metrics"]["test"] for result in ended]
        cells = {}
        for name, column in recipe.columns.items():
            places = (column,) if isinstance(column, str) else column
            ours = Figure.of([value(test, places) for test in tests])
            paper = row.reported.get(name)
            middle, spread = paper if isinstance(paper, tuple) else (paper, None)
            cells[name] = {
                "ours": None if ours is None else 100 * ours.mean,
                "ours_std": None if ours is None or ours.std is None else 100 * ours.std,
                "paper": middle,
                "paper_std": spread,
                "difference": None if ours is None or middle is None else 100 * ours.mean - middle,
            }
        flat = [result.get(CONVERGED) for result in ended]
        rows[label] = {"runs": len(ended), CONVERGED: flat, "cells": cells}
        if row.p_value:
            rows[label]["p"] = {"ours": versus.get(label, {}).get("p", {}).get("t"), "paper": row.p_value}
    cannot = [f"{label} is not run: {row.cannot}" for label, row in shown.items() if row.cannot]
    return {
        "table": task.paper.name,
        "title": recipe.title,
        "source": recipe.source,
        "scale": task.scale,
        "runs": len(plan.jobs) // len(plan.arms),
        "remarks": [*task.remarks, *(f"{remark}." for remark in plan.remarks), *cannot],
        "columns": list(recipe.columns),
        "rows": rows,
    }


def value(test: Mapping[str, Any], places: Sequence[str]) -> float | None:
    """The mean of the metrics at dotted places, or None where one is lacking, or there is no place."""
    values = []
    for place in places:
        here: Any = test
        for key in place.split("."):
            here = here.get(key) if isinstance(here, Mapping) else None
        if not isinstance(here, int | float):
            return None
        values.append(float(here))
    return mean(values) if values else None


def sheet(facts: Mapping[str, Any]) -> Table:
    """For people: three columns for every metric, then how many runs have converged, and of how many."""
    heads = [head for name in facts["columns"] for head in (name, "paper", "Δ")]
    heads += ["p", "paper p"] if _with_p(facts) else []
    rows = []
    for label, row in facts["rows"].items():
        cells = [text for name in facts["columns"] for text in texts(row["cells"][name])]
        cells += _p_texts(row) if _with_p(facts) else []
        runs = f"{row['runs']}" + ("" if row["runs"] == facts["runs"] else f" of {facts['runs']}")
        rows.append(Row(label, (), (*cells, settled(row), runs)))
    return Table((), tuple(rows), (*heads, CONVERGED, "runs"))


def settled(row: Mapping[str, Any]) -> str:
    """How many runs of a row have converged; a dash where none can tell (a table of an older version)."""
    return converged_text([{CONVERGED: one} for one in row.get(CONVERGED, ())])


def texts(cell: Mapping[str, float | None]) -> tuple[str, str, str]:
    """Ours, the paper's and the difference as text."""
    difference = cell["difference"]
    return (
        _figure(cell["ours"], cell["ours_std"]),
        _figure(cell["paper"], cell["paper_std"]),
        "–" if difference is None else f"{difference:+.1f}",
    )


def _with_p(facts: Mapping[str, Any]) -> bool:
    """Whether the paper prints a p-value for some row."""
    return any("p" in row for row in facts["rows"].values())


def _p_texts(row: Mapping[str, Any]) -> list[str]:
    """Our p-value and the paper's, empty for a row without."""
    return [p_text(row["p"]["ours"]), row["p"]["paper"]] if "p" in row else ["", ""]


def _figure(middle: float | None, spread: float | None) -> str:
    return "–" if middle is None else f"{middle:.1f}" + ("" if spread is None else f" ± {spread:.1f}")


def _numbers(facts: Mapping[str, Any]) -> tuple[list[str], list[list[Value]]]:
    """For programs, heads and rows: plain numbers in per cent as papers print them, every column with a name
    of its own; only the paper's p-value is as it is printed."""
    parts = ("ours", "ours_std", "paper", "paper_std", "difference")
    heads = ["method", *(f"{name} {part.replace('_', ' ')}" for name in facts["columns"] for part in parts)]
    heads += ["p ours", "p paper"] if _with_p(facts) else []
    rows = []
    for label, row in facts["rows"].items():
        cells: list[Value] = [row["cells"][name][part] for name in facts["columns"] for part in parts]
        if _with_p(facts):
            cells += [row["p"]["ours"], row["p"]["paper"]] if "p" in row else [None, None]
        known = [one for one in row[CONVERGED] if one is not None]
        rows.append([label, *cells, sum(known) if known else None, row["runs"]])
    return [*heads, CONVERGED, "runs"], rows


def _runs(plan: Plan) -> str:
    seeds = f"{len(plan.seeds)} seed{'s' * (len(plan.seeds) > 1)}"
    return seeds + (f" × {plan.folds} folds" if plan.folds else "")
