"""Data: who holds what, and the published sets."""

from __future__ import annotations

from typing import Any

from rich.markup import escape

from equipoise.cli.console import terminal
from equipoise.cli.show.grid import grid, warnings
from equipoise.report.folder import by_size


def census(facts: dict[str, Any]) -> None:
    """Class × site, split by split."""
    console = terminal()
    classes = facts["classes"]
    order = by_size(facts["train"])
    for split in facts["splits"]:
        table = grid(split, *(escape(classes[i]) for i in order), "images")
        for name, site in facts["sites"].items():
            held = site[split]
            table.add_row(escape(name), *(f"{held['counts'][i]:,}" for i in order), f"{held['images']:,}")
        sums = [sum(site[split]["counts"][i] for site in facts["sites"].values()) for i in order]
        images = sum(site[split]["images"] for site in facts["sites"].values())
        table.add_section()
        table.add_row("all", *(f"{n:,}" for n in sums), f"{images:,}")
        console.print(table)
        _labelled(facts, split, order)
    ratio, groups = facts["imbalance"], facts["groups"]
    skew = "a class has no training image"
    if ratio is not None:
        skew = f"{ratio:.1f} times more of the largest class than of the smallest"
    size = f"{facts['height']}×{facts['width']}×{facts['channels']}"
    console.print(f"{facts['images']:,} images, {facts['task']}-label, {size}")
    pixels = facts["pixels"]
    console.print(
        f"pixels     {pixels['lowest']} to {pixels['highest']} of 0 to 255, mean {pixels['mean']:.0f}; "
        f"{pixels['dark']:,} dark images, {pixels['flat']:,} without contrast"
    )
    console.print(f"imbalance  {skew}")
    count = "none given: any two images may be split" if groups is None else f"{groups:,}"
    console.print(f"groups     {count}")
    console.print(f"cache      {facts['cache']}", soft_wrap=True)
    console.print(f"skipped    {len(facts['skipped'])} bad rows")
    for reason in facts["skipped"][:20]:
        console.print(f"  {escape(reason)}")
    if facts["contact_sheet"]:
        console.print(f"pictures   {escape(facts['contact_sheet'])}", soft_wrap=True)
    warnings(facts["warnings"])


def _labelled(facts: dict[str, Any], split: str, order: list[int]) -> None:
    """Where labels are missing: how many images of a split are labelled for each class."""
    held = {name: site[split] for name, site in facts["sites"].items()}
    if not any("known" in one for one in held.values()):
        return
    known = {name: one.get("known", [one["images"]] * len(order)) for name, one in held.items()}
    table = grid(f"{split}, labelled", *(escape(facts["classes"][i]) for i in order), "images")
    for name, counts in known.items():
        table.add_row(escape(name), *(f"{counts[i]:,}" for i in order), f"{held[name]['images']:,}")
    table.add_section()
    sums = (sum(counts[i] for counts in known.values()) for i in order)
    table.add_row("all", *(f"{n:,}" for n in sums), f"{sum(one['images'] for one in held.values()):,}")
    terminal().print(table)


def sets(facts: list[dict[str, Any]]) -> None:
    """One row per data set."""
    table = grid("data.kind", "set", "licence", "classes", "images", "sites", right=3)
    table.columns[0].no_wrap = True
    for one in facts:
        words = (one["name"], one["title"], one["licence"])
        numbers = (f"{len(one['classes'])}", f"{one['images']:,}", f"{len(one['sites']) or 1}")
        table.add_row(*map(escape, words), *numbers)
    console = terminal()
    console.print(table)
    console.print(
        "`equipoise data check NAME ROOT` compares a download with what was published; --json shows "
        "layouts and sources"
    )


def checked_set(facts: dict[str, Any]) -> None:
    """Found beside published, then what is wrong."""
    console = terminal()
    table = grid(escape(facts["title"]), "found", "published")
    for part in ("classes", "sites"):
        for name, one in facts[part].items():
            table.add_row(escape(name), f"{one['found']:,}", _number(one["published"]))
        table.add_section()
    table.add_row("images", f"{facts['images']['found']:,}", _number(facts["images"]["published"]))
    console.print(table)
    if facts["splits"]:
        console.print("splits  " + ", ".join(f"{name} {count:,}" for name, count in facts["splits"].items()))
    if facts["groups"]:
        console.print(f"groups  {facts['groups']:,}")
    for text in facts["problems"][:20]:
        console.print(f"[red]✗[/] {escape(text)}", soft_wrap=True)
    if len(facts["problems"]) > 20:
        console.print(f"  and {len(facts['problems']) - 20:,} more")
    warnings(facts["warnings"])
    if facts["ok"]:
        console.print(f"[green]✓[/] {escape(facts['root'])} is as published", soft_wrap=True)


def _number(count: int | None) -> str:
    return "" if count is None else f"{count:,}"
