"""Pieces of inline SVG, and line charts made of them: axes, ticks, a legend, and a text for those who cannot
see them.

Colours come from the page's style sheet (`--s1` …), so a chart follows the light or dark page it stands in.
Whatever differs in colour also differs in dashes, shape or filling, because colour alone does not reach every
reader or printer. A chart is 400 units wide and scales with the page: letters of 12 units stay readable on a
phone.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from unicodedata import east_asian_width

from markupsafe import Markup, escape

WIDTH, HEIGHT = 400, 230
LEFT, RIGHT, TOP, BOTTOM = 46, 12, 12, 40
LETTER, WIDE = 6.8, 12.4
"""width of an average letter of 12 units, and of one of the wide scripts"""
COLOURS = 6
DASHES = ("", "7 3", "2 3", "9 3 2 3", "5 5", "1 4")
MARKS = 100
"""points of one line that answer the pointer; of more only every so many do"""

Show = Callable[[float], str]
Sample = Callable[[float, float], Markup]
"""draws what stands before a name of the legend, at a place"""


# Pieces -----------------------------------------------------------------------------------------------------


def svg(title: str, words: str, height: float, parts: Sequence[Markup]) -> Markup:
    """The whole picture."""
    return Markup(
        '<svg class="chart" viewBox="0 0 {} {}" role="img"><title>{}</title><desc>{}</desc>{}</svg>'
    ).format(WIDTH, math.ceil(height), title, words, Markup("").join(parts))


def mark(tag: str, hover: str = "", /, **facts: float | str) -> Markup:
    """An element that tells `hover` to the pointer; attributes as keywords, `class_` and `stroke_width` for
    what Python cannot say."""
    attributes = ""
    for name, fact in facts.items():
        shown = round(fact, 1) if isinstance(fact, float) else escape(fact)
        attributes += f' {name.strip("_").replace("_", "-")}="{shown}"'
    if not hover:
        return Markup(f"<{tag}{attributes}/>")
    return Markup(f"<{tag}{attributes}><title>{escape(hover)}</title></{tag}>")


def label(
    x: float, y: float, text: str, *, room: float = WIDTH, hover: str = "", **facts: float | str
) -> Markup:
    """Text, shortened to the room there is; what is cut off, or else `hover`, is told to the pointer."""
    shown = shorten(text, room)
    hover = hover or (text if shown != text else "")
    attributes = mark("text", "", x=float(x), y=float(y), **facts)[:-2]
    title = Markup("<title>{}</title>").format(hover) if hover else ""
    return Markup("{}>{}{}</text>").format(Markup(attributes), title, shown)


def width(text: str) -> float:
    """How wide a text is, about."""
    return sum(WIDE if east_asian_width(letter) in "WF" else LETTER for letter in text)


def shorten(text: str, room: float) -> str:
    """As much of the text as has room: its beginning, … and some of its end, which often tells names
    apart."""
    if width(text) <= room:
        return text
    for length in range(len(text) - 1, 0, -1):
        head, tail = text[: length - length // 3].rstrip(), text[len(text) - length // 3 :].lstrip()
        if width(head) + LETTER + width(tail) <= room:
            return f"{head}…{tail}"
    return "…"


def colour(i: int) -> str:
    """The colour of the i-th of several things."""
    return f"var(--s{i % COLOURS + 1})"


def dashes(i: int) -> str:
    """The dashes of the i-th line; when colours come round again, dashes have moved on."""
    return DASHES[(i + i // COLOURS) % len(DASHES)]


def shape(i: int, x: float, y: float, hover: str = "") -> Markup:
    """The i-th of eight marks that differ in form: four, filled and hollow."""
    r = 4.6
    corners = {
        1: ((-r, -r), (r, -r), (r, r), (-r, r)),
        2: ((0, -r - 1.6), (r + 1.6, 0), (0, r + 1.6), (-r - 1.6, 0)),
        3: ((0, -r - 1), (r + 1, r), (-r - 1, r)),
    }
    style = f"fill:{colour(i)}" if i % 8 < 4 else f"fill:var(--card);stroke:{colour(i)};stroke-width:2"
    if i % 4 == 0:
        return mark("circle", hover, cx=float(x), cy=float(y), r=r, style=style)
    points = " ".join(f"{x + dx:.1f},{y + dy:.1f}" for dx, dy in corners[i % 4])
    return mark("polygon", hover, points=points, style=style)


def legend(
    entries: Sequence[tuple[str, Sample]], top: float, left: float = LEFT
) -> tuple[list[Markup], float]:
    """A sample and a name each, wrapped to the width of the chart, and where they end."""
    parts, x, y = [], float(left), top + 8
    for name, sample in entries:
        shown = shorten(name, WIDTH - left - 34)
        across = 34 + width(shown)
        if x > left and x + across > WIDTH:
            x, y = float(left), y + 18
        parts += [sample(x, y), label(x + 27, y + 4, name, room=WIDTH - left - 34)]
        x += across + 10
    return parts, y + 12


def ticks(low: float, high: float, count: int = 5) -> list[float]:
    """Round numbers from at or below `low` to at or above `high`, about `count` of them."""
    span = (high - low) or abs(high) or 1.0
    rough = span / max(1, count - 1)
    power = 10.0 ** math.floor(math.log10(rough))
    step = next(power * m for m in (1, 2, 2.5, 5, 10) if power * m >= rough * (1 - 1e-9))
    first = math.floor(low / step + 1e-9)
    last = max(first + 1, math.ceil(high / step - 1e-9))
    return [i * step for i in range(first, last + 1)]


def rounds(low: int, high: int) -> list[int]:
    """Whole rounds to write under the axis: both ends, and round numbers between that do not crowd them."""
    sizes = (power * m for power in (1, 10, 100, 1000, 10**4, 10**5) for m in (1, 2, 5))
    step = next(size for size in sizes if size * 6 >= high - low)
    first = (low // step + 1) * step
    inner = [n for n in range(first, high, step) if min(n - low, high - n) * 2 >= step]
    return [low, *inner, high] if high > low else [low]


# Lines ------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Series:
    """A named line; a point without a value is left out."""

    name: str
    points: Sequence[tuple[int, float | None]]
    spread: Sequence[float | None] = ()
    """how far the band around each point reaches up and down; nothing = no band"""

    @property
    def known(self) -> list[tuple[int, float]]:
        return [(x, y) for x, y in self.points if y is not None]

    @property
    def band(self) -> list[tuple[int, float, float]]:
        """Round, lower and upper end."""
        pairs = zip(self.points, self.spread, strict=bool(self.spread))
        return [(x, y - (wide or 0.0), y + (wide or 0.0)) for (x, y), wide in pairs if y is not None]


def lines(title: str, series: Sequence[Series], *, percent: bool = False, show: Show | None = None) -> Markup:
    """The chart, or nothing when no series has a point. Per cent, and what is shown in a unit (`show`), start
    at zero."""
    series = [one for one in series if one.known]
    if not series:
        return Markup("")
    xs = [x for one in series for x, _ in one.known]
    ys = [y for one in series for _, y in one.known]
    ys += [y for one in series for _, *ends in one.band for y in ends]
    zero = percent or show is not None
    y_ticks = ticks(0.0 if zero else min(ys), max(ys))
    x_low, x_high, y_low, y_high = min(xs), max(xs), y_ticks[0], y_ticks[-1]
    on_axis = show or ((lambda y: f"{100 * y:.3g} %") if percent else (lambda y: f"{y:.3g}"))
    exact = show or ((lambda y: f"{100 * y:.1f} %") if percent else (lambda y: f"{y:.3g}"))
    left = max(LEFT, 10 + max(width(on_axis(y)) for y in y_ticks)) if show else LEFT
    bottom = HEIGHT - BOTTOM

    def place(x: float, y: float) -> tuple[float, float]:
        across = (x - x_low) / (x_high - x_low) if x_high > x_low else 0.5
        up = max(0.0, (y - y_low) / (y_high - y_low))
        return round(left + across * (WIDTH - left - RIGHT), 1), round(bottom - up * (bottom - TOP), 1)

    parts = []
    for y in y_ticks:
        height = place(x_low, y)[1]
        parts.append(mark("line", class_="grid", x1=left, x2=WIDTH - RIGHT, y1=height, y2=height))
        parts.append(label(left - 6, height + 4, on_axis(y), text_anchor="end"))
    for x in rounds(x_low, x_high):
        across = place(x, y_low)[0]
        parts.append(mark("line", class_="axis", x1=across, x2=across, y1=bottom, y2=bottom + 4))
        parts.append(label(min(across, WIDTH - width(str(x)) / 2), bottom + 17, str(x), text_anchor="middle"))
    parts.append(mark("line", class_="axis", x1=left, x2=WIDTH - RIGHT, y1=bottom, y2=bottom))
    parts.append(label((left + WIDTH - RIGHT) / 2, bottom + 32, "round", text_anchor="middle"))
    faint = 0.16 if len(series) <= 4 else 0.08
    for i, one in enumerate(series):
        if any(high > low for _, low, high in one.band):
            edge = [place(x, high) for x, _, high in one.band]
            edge += [place(x, low) for x, low, _ in reversed(one.band)]
            path = " ".join(f"{x},{y}" for x, y in edge)
            parts.append(mark("polygon", points=path, style=f"fill:{colour(i)};fill-opacity:{faint}"))
    for i, one in enumerate(series):
        path = " ".join(f"{x},{y}" for x, y in (place(*point) for point in one.known))
        look = {"class_": f"s{i % COLOURS + 1}", "stroke_dasharray": dashes(i)}
        parts.append(mark("polyline", one.name, **look, points=path))
        parts += _points(i, one, place, exact)
    names, end = legend([(one.name, _stroke(i)) for i, one in enumerate(series)], HEIGHT, left)
    words = "; ".join(_in_words(one, exact) for one in series)
    return svg(title, words, end, [*parts, *names])


def _points(
    i: int, one: Series, place: Callable[[float, float], tuple[float, float]], exact: Show
) -> list[Markup]:
    """The points of a line, each telling its value; of long lines they are felt, not seen."""
    wide = {x: high - y for (x, _, high), (_, y) in zip(one.band, one.known, strict=bool(one.band))}
    few = len(one.known) <= 20
    circles = []
    for x, y in one.known[:: math.ceil(len(one.known) / MARKS)]:
        across, height = place(x, y)
        reach = f" ± {exact(wide[x])}" if wide.get(x) else ""
        look: dict[str, float | str] = (
            {"class_": f"s{i % COLOURS + 1}", "r": 2.6} if few else {"style": "fill:transparent", "r": 5.0}
        )
        hover = f"{one.name}, round {x}: {exact(y)}{reach}"
        circles.append(mark("circle", hover, cx=across, cy=height, **look))
    return circles


def _stroke(i: int) -> Sample:
    def draw(x: float, y: float) -> Markup:
        look = {"class_": f"s{i % COLOURS + 1}", "stroke_dasharray": dashes(i)}
        return mark("polyline", **look, points=f"{x:.1f},{y} {x + 22:.1f},{y}")

    return draw


def _in_words(series: Series, exact: Show) -> str:
    (x0, first), (x1, last) = series.known[0], series.known[-1]
    return f"{series.name}: {exact(first)} in round {x0}, {exact(last)} in round {x1}"
