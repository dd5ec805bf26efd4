"""The other kinds of picture: bars, dots, bubbles, a matrix, a reliability diagram, a map of points. All are
inline SVG."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from markupsafe import Markup

from equipoise.report.chart import RIGHT as MARGIN
from equipoise.report.chart import WIDTH, Sample, Show, colour, label, legend, mark, shape, svg, ticks, width

NAMES = 132.0
"""room for the names beside rows, at most"""
COLUMN, TURNED = 58, 100
"""a column of a grid, at most, and the room for column names that are turned"""
CROWDED = 0.25
"""share of a name that others may cover; a point whose name would be covered more tells it to the pointer
only"""
SLOPE = math.sqrt(0.5)
"""how far a turned name of length 1 reaches down, and to the left"""

Box = tuple[float, float, float, float]
"""left, top, width, height"""


@dataclass(frozen=True)
class Look:
    """A filling: a colour, how dense it is, and whether the rim is broken."""

    colour: int
    dense: float = 0.85
    broken: bool = False

    @property
    def style(self) -> str:
        rim = f";stroke:{colour(self.colour)}" + (";stroke-dasharray:3 2" if self.broken else "")
        return f"fill:{colour(self.colour)};fill-opacity:{self.dense}{rim}"

    def sample(self, x: float, y: float) -> Markup:
        return mark("rect", x=x + 4, y=y - 5, width=14, height=10, style=self.style)


@dataclass(frozen=True)
class Part:
    """A piece of a bar."""

    value: float
    hover: str
    look: Look = Look(0)


@dataclass(frozen=True)
class Bar:
    """A row: name, its pieces end to end, what is written at the end. A heading stands over the rows that
    follow."""

    name: str
    parts: tuple[Part, ...] = ()
    end: str = ""
    note: str = ""
    """a second line under the name"""
    heading: bool = False


RIGHT, WRONG = Look(0), Look(1, 0.15, broken=True)
"""fillings of what is as it should be, and of what is not"""


# Rows -------------------------------------------------------------------------------------------------------


def bars(
    title: str,
    rows: Sequence[Bar],
    show: Show,
    *,
    high: float | None = None,
    kinds: Sequence[tuple[str, Look]] = (),
) -> Markup:
    """Horizontal bars from a zero line, to the right or (below zero) to the left; `high` is where the axis
    ends at least."""
    ends = [sum(part.value for part in row.parts) for row in rows]
    x_ticks = ticks(min(0.0, *ends, 0.0), max(high or 0.0, *ends, 0.0), 4)
    room = 8 + max(width(show(x_ticks[-1])) / 2, *(width(row.end) for row in rows))
    left = _names(rows) + (room if x_ticks[0] < 0 else 0)
    across = _scale(x_ticks, left, WIDTH - room)
    parts, top = [], 8.0
    for row in rows:
        tall = _tall(row)
        middle = top + tall / 2
        parts += _row_name(row, middle)
        start = 0.0
        for part in row.parts:
            x0, x1 = sorted((across(start), across(start + part.value)))
            wide = max(1.0, x1 - x0) if part.value else 0.0
            box = {"x": x0, "y": middle - 5.5, "width": wide, "height": 11.0}
            parts.append(mark("rect", part.hover, **box, style=part.look.style))
            start += part.value
        if row.end:
            side, gap = ("end", -5) if start < 0 else ("start", 5)
            hover = "; ".join(part.hover for part in row.parts)
            parts.append(label(across(start) + gap, middle + 4, row.end, hover=hover, text_anchor=side))
        top += tall
    parts = [*_axis(x_ticks, across, show, 8.0, top), *parts]
    if x_ticks[0] < 0:
        parts.append(mark("line", class_="axis", x1=across(0), x2=across(0), y1=8, y2=top))
    names, end = (
        legend([(name, look.sample) for name, look in kinds], top + 22, 8) if kinds else ([], top + 24)
    )
    words = "; ".join(part.hover for row in rows for part in row.parts)
    return svg(title, words, end, [*parts, *names])


def dots(
    title: str,
    rows: Sequence[tuple[Bar, Sequence[tuple[float, str] | None]]],
    names: Sequence[str],
    show: Show,
) -> Markup:
    """Per row one dot for each of `names`, told apart by shape and colour, on an axis from 0 to 1."""
    x_ticks = ticks(0.0, 1.0)
    heads = [row for row, _ in rows]
    across = _scale(x_ticks, _names(heads), WIDTH - 18)
    parts, top = [], 8.0
    for row, values in rows:
        tall = _tall(row)
        middle = top + tall / 2
        parts += _row_name(row, middle)
        parts.append(mark("line", class_="grid", x1=across(0), x2=across(1), y1=middle, y2=middle))
        parts += [shape(i, across(one[0]), middle, one[1]) for i, one in enumerate(values) if one is not None]
        top += tall
    parts = [*_axis(x_ticks, across, show, 8.0, top), *parts]
    shown, end = legend([(name, _shaped(i)) for i, name in enumerate(names)], top + 22, 8)
    words = "; ".join(one[1] for _, values in rows for one in values if one is not None)
    return svg(title, words, end, [*parts, *shown])


def _shaped(i: int) -> Sample:
    return lambda x, y: shape(i, x + 12, y)


def _names(rows: Sequence[Bar]) -> float:
    """The room that the names of the rows take; headings stand above the bars and take none."""
    named = [text for row in rows if not row.heading for text in (row.name, row.note)]
    return min(NAMES, max(map(width, named), default=0.0)) + 12


def _tall(row: Bar) -> float:
    return 36.0 if row.note else 22.0 if row.heading else 18.0


def _row_name(row: Bar, middle: float) -> list[Markup]:
    if row.heading:
        return [label(2, middle + 6, row.name, room=WIDTH - 4, style="fill:var(--ink);font-weight:600")]
    up = 2 if row.note else -4
    labels = [label(2, middle - up, row.name, room=NAMES, style="fill:var(--ink)")]
    return [*labels, label(2, middle + 11, row.note, room=NAMES)] if row.note else labels


def _scale(x_ticks: Sequence[float], left: float, right: float) -> Callable[[float], float]:
    low, high = x_ticks[0], x_ticks[-1]
    return lambda value: left + (min(high, max(low, value)) - low) / (high - low) * (right - left)


def _axis(
    x_ticks: Sequence[float], across: Callable[[float], float], show: Show, top: float, bottom: float
) -> list[Markup]:
    """Grid lines with their numbers underneath."""
    lines = [mark("line", class_="grid", x1=across(x), x2=across(x), y1=top, y2=bottom) for x in x_ticks]
    return lines + [label(across(x), bottom + 15, show(x), text_anchor="middle") for x in x_ticks]


# Grids ------------------------------------------------------------------------------------------------------


def grid(
    rows: Sequence[Bar],
    columns: Sequence[str],
    cell: Callable[[int, int, Box], list[Markup]],
    *,
    square: bool = False,
) -> tuple[list[Markup], float]:
    """Cells under row and column names, and where they end; column names stand below, turned where they are
    too long."""
    left = _names(rows)
    wide = min(COLUMN, (WIDTH - left - MARGIN) / max(1, len(columns)))
    tall = max(wide if square else 0.0, max(map(_tall, rows), default=0.0))
    parts, top = [], 6.0
    for i, row in enumerate(rows):
        parts += _row_name(row, top + tall / 2)
        for j in range(len(columns)):
            parts += cell(i, j, (left + j * wide, top, wide, tall))
        top += tall
    turned = any(width(name) > wide - 4 for name in columns)
    every = max(1, math.ceil(12 / wide))
    for j, name in enumerate(columns):
        if j % every:
            continue
        middle = left + (j + 0.5) * wide
        if not turned:
            parts.append(label(middle, top + 15, name, text_anchor="middle"))
            continue
        x, y = round(middle + 4, 1), round(top + 12, 1)
        room = min(TURNED, x / SLOPE - 8)
        parts.append(label(x, y, name, room=room, text_anchor="end", transform=f"rotate(-45 {x} {y})"))
    longest = min(TURNED, max(map(width, columns), default=0.0))
    return parts, top + (longest * SLOPE + 18 if turned else 22)


def bubbles(
    title: str,
    rows: Sequence[Bar],
    columns: Sequence[str],
    counts: Sequence[Sequence[int | None]],
    hover: Callable[[int, int], str],
    unlabelled: str,
) -> Markup:
    """A circle per row and column whose area is the count; None is a cross, as that cell says nothing."""
    most = max((n for row in counts for n in row if n is not None), default=0) or 1
    largest = [0.0]

    def cell(i: int, j: int, box: Box) -> list[Markup]:
        x, y, wide, tall = box
        largest[0] = min(wide, tall) / 2 - 0.5
        x, y, count = x + wide / 2, y + tall / 2, counts[i][j]
        if count is None:
            return [_cross(x, y, hover(i, j))]
        if count == 0:
            return [mark("circle", hover(i, j), cx=x, cy=y, r=min(6.0, largest[0]), style="fill:transparent")]
        r = max(1.5, largest[0] * math.sqrt(count / most))
        return [mark("circle", hover(i, j), cx=x, cy=y, r=r, style="fill:var(--s1);fill-opacity:.75")]

    parts, top = grid(rows, columns, cell)
    steps = dict.fromkeys(n for n in (_leading(most / 40), _leading(most / 10), _leading(most / 2.5)) if n)
    entries: list[tuple[str, Sample]] = [(f"{n:,}", _ring(largest[0] * math.sqrt(n / most))) for n in steps]
    if any(n is None for row in counts for n in row):
        entries.append((unlabelled, lambda x, y: _cross(x + 12, y)))
    names, end = legend(entries, top + 8, 8)
    words = "; ".join(hover(i, j) for i in range(len(rows)) for j in range(len(columns)))
    return svg(title, words, end + 6, [*parts, *names])


def _leading(value: float) -> int:
    """The number with only its first digit kept: 1,234 → 1,000."""
    power = 10 ** max(0, math.floor(math.log10(value))) if value >= 1 else 1
    return int(value // power * power)


def _ring(r: float) -> Sample:
    return lambda x, y: mark(
        "circle", cx=x + 12, cy=y, r=max(1.5, r), style="fill:var(--s1);fill-opacity:.75"
    )


def _cross(x: float, y: float, hover: str = "") -> Markup:
    path = f"M{x - 4:.1f} {y - 4:.1f}l8 8m0 -8l-8 8"
    return mark(
        "path", hover, d=path, style="fill:none;stroke:var(--soft);stroke-width:1.5;pointer-events:all"
    )


def matrix(
    title: str, rows: Sequence[Bar], columns: Sequence[str], counts: Sequence[Sequence[float]], show: Show
) -> Markup:
    """A heat map whose rows are shares of their sum; the counts are written into cells that have room for
    them."""
    texts = [[show(n) for n in row] for row in counts]
    longest = max((width(text) for row in texts for text in row), default=0.0)

    def share(i: int, j: int) -> float:
        return counts[i][j] / sum(counts[i]) if sum(counts[i]) else 0.0

    def describe(i: int, j: int) -> str:
        return f"{rows[i].name} called {columns[j]}: {texts[i][j]} ({100 * share(i, j):.1f} %)"

    def cell(i: int, j: int, box: Box) -> list[Markup]:
        x, y, wide, tall = box
        rim = "var(--ink);stroke-width:1.4" if i == j else "var(--line);stroke-width:0.6"
        # Half as dense as the share: the same ink stays readable on it, on a light page and on a dark one.
        style = f"fill:var(--s1);fill-opacity:{share(i, j) / 2:.3f};stroke:{rim}"
        marks = [mark("rect", describe(i, j), x=x + 1, y=y + 1, width=wide - 2, height=tall - 2, style=style)]
        if longest + 2 <= wide and counts[i][j]:
            style = "fill:var(--ink);pointer-events:none"
            x, y = x + wide / 2, y + tall / 2 + 4
            marks.append(label(x, y, texts[i][j], text_anchor="middle", style=style))
        return marks

    parts, top = grid(rows, columns, cell, square=True)
    words = "; ".join(describe(i, j) for i in range(len(rows)) for j in range(len(columns)) if counts[i][j])
    return svg(title, words, top, parts)


# Planes -----------------------------------------------------------------------------------------------------


def reliability(title: str, bins: Sequence[tuple[float, float, float, float, float]]) -> Markup:
    """How often decisions are right (up) against how sure they were (across), and below how many decisions
    each bin has.

    A bin is (from, to, count, mean confidence, share that was right).
    """
    left, right, top, bottom, floor = 46.0, WIDTH - 20.0, 10.0, 210.0, 272.0
    most = max((count for _, _, count, _, _ in bins), default=0.0) or 1.0

    def across(x: float) -> float:
        return left + x * (right - left)

    def up(y: float) -> float:
        return bottom - y * (bottom - top)

    parts = []
    for x in ticks(0.0, 1.0):
        parts += [
            mark("line", class_="grid", x1=left, x2=right, y1=up(x), y2=up(x)),
            label(left - 6, up(x) + 4, f"{100 * x:.0f} %", text_anchor="end"),
            label(across(x), floor + 15, f"{100 * x:.0f} %", text_anchor="middle"),
        ]
    texts = []
    for low, high, count, sure, correct in bins:
        if not count:
            continue
        texts.append(f"sure by {100 * sure:.1f} %, right in {100 * correct:.1f} % of {count:,.0f}")
        x, wide, tall = across(low) + 1, across(high) - across(low) - 2, 40 * count / most
        for y, height, style in (
            (up(correct), bottom - up(correct), "fill:var(--s1);fill-opacity:.3;stroke:var(--s1)"),
            (floor - tall, max(1.0, tall), "fill:var(--soft)"),
        ):
            parts.append(mark("rect", texts[-1], x=x, y=y, width=wide, height=height, style=style))
    broken = "stroke:var(--soft);stroke-dasharray:4 3"
    ends = {"x1": across(0), "x2": across(1), "y1": up(0), "y2": up(1)}
    parts.append(mark("line", "as often right as sure", **ends, style=broken))
    filled = [one for one in bins if one[2]]
    parts += [
        shape(2, across(sure), up(right_), hover)
        for (_, _, _, sure, right_), hover in zip(filled, texts, strict=True)
    ]
    parts += [
        mark("line", class_="axis", x1=left, x2=right, y1=bottom, y2=bottom),
        mark("line", class_="axis", x1=left, x2=right, y1=floor, y2=floor),
        label(left - 6, floor - 36, f"{most:,.0f}", text_anchor="end"),
        label((left + right) / 2, floor + 31, "confidence in the decision", text_anchor="middle"),
    ]
    return svg(title, "; ".join(texts), floor + 38, parts)


@dataclass(frozen=True)
class Spot:
    """A point of a map: where, how large a share of the largest, and what it is."""

    x: float
    y: float
    size: float
    name: str
    hover: str


def maps(title: str, panels: Sequence[tuple[str, Sequence[Spot]]]) -> Markup:
    """Maps of named points, one above the other; distances are the same in both directions."""
    parts, top, tall = [], 0.0, 220.0
    for name, spots in panels:
        parts.append(label(4, top + 14, name, style="fill:var(--ink);font-weight:600"))
        top += 22
        frame = {"x": 1, "y": top, "width": WIDTH - 2, "height": tall, "rx": 4}
        parts.append(mark("rect", **frame, style="fill:none;stroke:var(--line)"))
        parts += _spots(spots, (16.0, top + 16, WIDTH - 32.0, tall - 32))
        top += tall + 10
    words = "; ".join(f"{name}: " + ", ".join(spot.hover for spot in spots) for name, spots in panels)
    return svg(title, words, top, parts)


def _spots(spots: Sequence[Spot], box: Box) -> list[Markup]:
    left, top, wide, tall = box
    xs, ys = [spot.x for spot in spots], [spot.y for spot in spots]
    scale = min(wide / ((max(xs) - min(xs)) or 1.0), tall / ((max(ys) - min(ys)) or 1.0))
    middle_x, middle_y = (max(xs) + min(xs)) / 2, (max(ys) + min(ys)) / 2
    placed = [
        (
            left + wide / 2 + (s.x - middle_x) * scale,
            top + tall / 2 - (s.y - middle_y) * scale,
            2.5 + 11 * math.sqrt(s.size),
            s,
        )
        for s in spots
    ]
    taken: list[Box] = [(x - r, y - r, 2 * r, 2 * r) for x, y, r, _ in placed]
    marks = [
        mark("circle", s.hover, cx=x, cy=y, r=r, style="fill:var(--s1);fill-opacity:.45;stroke:var(--s1)")
        for x, y, r, s in placed
    ]
    for x, y, r, spot in sorted(placed, key=lambda one: one[2]):
        long = min(NAMES, width(spot.name))
        middle = x - long / 2
        corners = ((x + r + 3, y - 7), (x - r - 3 - long, y - 7), (middle, y - r - 15), (middle, y + r + 1))
        inside = [
            (cx, cy) for cx, cy in corners if 2 <= cx <= WIDTH - 2 - long and top - 15 <= cy <= top + tall + 1
        ]
        crowd = {c: sum(_overlap((*c, long, 14.0), other) for other in taken) for c in inside or corners[:1]}
        at = min(crowd, key=lambda c: crowd[c])
        if crowd[at] > long * 14.0 * CROWDED:
            continue
        taken.append((*at, long, 14.0))
        style = "fill:var(--ink)"
        marks.append(label(at[0], at[1] + 11, spot.name, room=NAMES, hover=spot.hover, style=style))
    return marks


def _overlap(a: Box, b: Box) -> float:
    """The area two boxes share."""
    across = min(a[0] + a[2], b[0] + b[2]) - max(a[0], b[0])
    down = min(a[1] + a[3], b[1] + b[3]) - max(a[1], b[1])
    return max(0.0, across) * max(0.0, down)
