"""Line charts as inline SVG: axes, ticks, a legend, and a text for those who cannot see them.

Colours come from the page's style sheet (`--s1` …), so a chart follows the light or dark page it stands in. Lines also differ
in dashes, because colour alone does not reach every reader or printer.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from markupsafe import Markup

WIDTH, HEIGHT = 400, 230
LEFT, RIGHT, TOP, BOTTOM = 46, 12, 12, 40
LETTER = 6.8
"""width of an average letter of the legend"""
DASHES = ("", "7 3", "2 3", "9 3 2 3", "5 5", "1 4")


@dataclass(frozen=True)
class Series:
    """A named line; a point without a value is left out."""

    name: str
    points: Sequence[tuple[int, float | None]]

    @property
    def known(self) -> list[tuple[int, float]]:
        return [(x, y) for x, y in self.points if y is not None]


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
    step = next(power * m for power in (1, 10, 100, 1000, 10**4, 10**5) for m in (1, 2, 5) if power * m * 6 >= high - low)
    first = (low // step + 1) * step
    inner = [n for n in range(first, high, step) if min(n - low, high - n) * 2 >= step]
    return [low, *inner, high] if high > low else [low]


def lines(title: str, series: Sequence[Series], *, percent: bool = False) -> Markup:
    """The chart, or nothing when no series has a point."""
    series = [one for one in series if one.known]
    if not series:
        return Markup("")
    xs = [x for one in series for x, _ in one.known]
    ys = [y for one in series for _, y in one.known]
    y_ticks = ticks(0.0 if percent else min(ys), max(ys))
    x_low, x_high, y_low, y_high = min(xs), max(xs), y_ticks[0], y_ticks[-1]
    legend, depth = _legend(series)
    bottom = HEIGHT - BOTTOM

    def place(x: float, y: float) -> tuple[float, float]:
        across = (x - x_low) / (x_high - x_low) if x_high > x_low else 0.5
        up = (y - y_low) / (y_high - y_low)
        return round(LEFT + across * (WIDTH - LEFT - RIGHT), 1), round(bottom - up * (bottom - TOP), 1)

    parts = []
    for y in y_ticks:
        height = place(x_low, y)[1]
        text = f"{100 * y:.3g} %" if percent else f"{y:.3g}"
        parts.append(Markup('<line class="grid" x1="{}" x2="{}" y1="{}" y2="{}"/>').format(LEFT, WIDTH - RIGHT, height, height))
        parts.append(Markup('<text x="{}" y="{}" text-anchor="end">{}</text>').format(LEFT - 6, height + 4, text))
    for x in rounds(x_low, x_high):
        across = place(x, y_low)[0]
        parts.append(Markup('<line class="axis" x1="{}" x2="{}" y1="{}" y2="{}"/>').format(across, across, bottom, bottom + 4))
        parts.append(Markup('<text x="{}" y="{}" text-anchor="middle">{}</text>').format(across, bottom + 17, x))
    middle = (LEFT + WIDTH - RIGHT) / 2
    parts.append(Markup('<line class="axis" x1="{}" x2="{}" y1="{}" y2="{}"/>').format(LEFT, WIDTH - RIGHT, bottom, bottom))
    parts.append(Markup('<text x="{}" y="{}" text-anchor="middle">round</text>').format(middle, bottom + 32))
    for i, one in enumerate(series):
        spots = [place(x, y) for x, y in one.known]
        path = " ".join(f"{x},{y}" for x, y in spots)
        style = Markup('class="s{}" stroke-dasharray="{}"').format(i % 6 + 1, DASHES[i % len(DASHES)])
        parts.append(Markup('<polyline {} points="{}"/>').format(style, path))
        if len(spots) <= 20:
            parts += [Markup('<circle class="s{}" cx="{}" cy="{}" r="2.6"/>').format(i % 6 + 1, x, y) for x, y in spots]
    alternative = "; ".join(_in_words(one, percent) for one in series)
    return Markup('<svg class="chart" viewBox="0 0 {} {}" role="img"><title>{}</title><desc>{}</desc>{}{}</svg>').format(
        WIDTH, HEIGHT + depth, title, alternative, Markup("").join(parts), legend
    )


def _legend(series: Sequence[Series]) -> tuple[Markup, int]:
    """A sample and a name per line, wrapped to the width of the chart, and the height this takes."""
    parts, x, y = [], float(LEFT), HEIGHT + 8
    for i, one in enumerate(series):
        width = 34 + LETTER * len(one.name)
        if x > LEFT and x + width > WIDTH:
            x, y = float(LEFT), y + 18
        style = Markup('class="s{}" stroke-dasharray="{}"').format(i % 6 + 1, DASHES[i % len(DASHES)])
        parts.append(Markup('<polyline {} points="{},{} {},{}"/>').format(style, x, y, x + 22, y))
        parts.append(Markup('<text x="{}" y="{}">{}</text>').format(x + 27, y + 4, one.name))
        x += width + 10
    return Markup("").join(parts), y + 12 - HEIGHT


def _in_words(series: Series, percent: bool) -> str:
    (x0, first), (x1, last) = series.known[0], series.known[-1]
    a, b = (f"{100 * value:.1f} %" if percent else f"{value:.3g}" for value in (first, last))
    return f"{series.name}: {a} in round {x0}, {b} in round {x1}"
