"""Methods, what leaves a site, and what was checked."""

from __future__ import annotations

from typing import Any

from rich.markup import escape

from equipoise.cli.console import terminal
from equipoise.cli.show.grid import grid, warnings
from equipoise.options import NONE
from equipoise.report.folder import size

ROOMY = 140
"""columns of a terminal that has room for every method's options"""


def methods(facts: list[dict[str, Any]]) -> None:
    """All methods; their options where there is room for them."""
    console = terminal()
    heads = ("method", "paper", "labels", "what leaves a site", "defaults")
    shown = len(heads) if console.width >= ROOMY else len(heads) - 1
    table = grid(*heads[:shown], right=shown)
    for one in facts:
        defaults = ", ".join(f"{field['name']}={field['default']}" for field in one["fields"])
        cells = (one["name"], one["paper"], ", ".join(one["tasks"]), one["leaves"], defaults)
        table.add_row(*map(escape, cells[:shown]))
    console.print(table)
    if shown < len(heads):
        console.print("the options of one, with their defaults: equipoise methods NAME")


def method(one: dict[str, Any]) -> None:
    """One method in full."""
    console = terminal()
    console.print(escape(one["text"]), end="\n\n", soft_wrap=True)
    private = escape(", ".join(one["private"]) or "nothing")
    console.print(f"labels: {', '.join(one['tasks'])}   stays at the site: {private}")
    for line in one["advice"]:
        console.print(escape(f"recommends: {line}"), soft_wrap=True)
    if one["fields"]:
        table = grid("method.…", "default", "type", "meaning", right=4)
        for field in one["fields"]:
            table.add_row(*map(escape, (field["name"], str(field["default"]), field["type"], field["about"])))
        console.print(table)
    if one["presets"]:
        table = grid("method.preset", "sets", right=2)
        for name, values in one["presets"].items():
            options = ", ".join(f"{k}={NONE if v is None else v}" for k, v in values.items())
            table.add_row(escape(name), escape(options or "the defaults"))
        console.print(table)


def ledger(facts: dict[str, Any]) -> None:
    """What leaves, and how much of it."""
    console = terminal()
    private = any("covered" in row for row in facts["leaves"])
    heads = ("question", "from round", "leaf", "kind", "shape", "who can read it", "bytes up")
    table = grid(*heads, *(["covered by ε"] if private else []), right=6)
    for row in facts["leaves"]:
        amount = f"{row['bytes']:,}" + (" × n" if row["varies"] else "")
        values = (
            row["question"],
            str(row["from_round"] + 1),
            row["leaf"],
            row["kind"],
            row["shape"],
            row["read_by"],
            amount,
            *([row.get("covered", "no: reported on joining")] if private else []),
        )
        table.add_row(*map(escape, values))
    console.print(table)
    table = grid("per site and round", "from round", "up", "down")
    for row in facts["questions"]:
        up = size(row["up_bytes"]) + (" × n" if row["varies"] else "")
        table.add_row(row["question"], str(row["from_round"] + 1), up, size(row["down_bytes"]))
    console.print(table)
    if any(row["varies"] for row in facts["leaves"]):
        console.print("n: a length that differs from site to site, usually one row per image")


def checked(facts: dict[str, str], doubts: list[str]) -> None:
    """A line per thing that was tried, and what may be wrong with the data."""
    table = grid("", "", right=2)
    for name, text in facts.items():
        table.add_row(f"[green]✓[/] {name}", escape(text))
    table.show_header = False
    console = terminal()
    console.print(table)
    warnings(doubts)
    beside = f", but see the warnings ({len(doubts)})" if doubts else ""
    console.print(f"nothing was trained; the run can start{beside}")
