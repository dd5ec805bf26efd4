"""What a figure is: a picture, a caption, and the same numbers as a small table; and what several of them are
made with."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from markupsafe import Markup

from equipoise.keeping import bare, read_lines
from equipoise.report.chart import Series, Show, lines
from equipoise.report.folder import Run

Cell = str | float | None
Arms = Sequence[tuple[str, Sequence[Run]]]
"""title and runs over seeds"""
LONG = 100
"""rounds a table has at most"""


@dataclass(frozen=True)
class Figure:
    """One figure.

    `columns` and `rows` are its text alternative, with the unit in the column's head; empty where that would
    be long.
    """

    key: str
    title: str
    svg: Markup
    caption: str
    columns: tuple[str, ...] = ()
    rows: tuple[tuple[Cell, ...], ...] = ()


def lined(
    key: str,
    title: str,
    series: Sequence[Series],
    caption: str,
    *,
    percent: bool = False,
    show: Show | None = None,
    unit: str = "",
) -> Iterator[Figure]:
    """A line chart with its table, if there is a point to show."""
    series = [one for one in series if one.known]
    if not series:
        return
    factor, unit = (100, "%") if percent else (1, unit)
    rounds = sorted({x for one in series for x, _ in one.known})
    columns, tables = ["round"], list[dict[int, float]]()
    for one in series:
        columns.append(f"{one.name}, {unit}" if unit else one.name)
        tables.append({x: digits(factor * y) for x, y in one.known})
        if any(one.spread):
            columns.append("±")
            tables.append({x: digits(factor * (high - low) / 2) for x, low, high in one.band})
    rows = tuple((x, *(values.get(x) for values in tables)) for x in rounds)
    long = len(rows) > LONG
    chart = lines(title, series, percent=percent, show=show)
    yield Figure(key, title, chart, caption, () if long else tuple(columns), () if long else rows)


def left_out(arms: Arms, of: int) -> str:
    """A sentence on the arms that a picture has no room for, if any."""
    return f" The {len(arms)} best of {of}." if len(arms) < of else ""


def json_lines(run: Run, name: str) -> list[dict[str, Any]]:
    """The lines of a file of the run folder, if it has it; one that a crash cut short is left out."""
    return [bare(line) for line in read_lines(run.folder / name)[0]]


def digits(value: float) -> float:
    """The number with as many digits as a table shows."""
    return float(f"{value:.4g}")


def rate(value: float | None) -> float | None:
    """A share in per cent, as a table shows it."""
    return None if value is None else round(100 * value, 1)


def whole(value: float) -> str:
    """A share in per cent, as an axis shows it."""
    return f"{100 * value:.0f} %"
