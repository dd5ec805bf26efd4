"""The course of a table's rows over rounds, as a picture."""

from __future__ import annotations

import statistics

from equipoise.report.chart import DASHES, rounds, ticks

TEST_G = 3
"""place of the test figure in a point of a curve"""
COLOURS = ("#4477aa", "#ee6677", "#228833", "#ccbb44", "#66ccee", "#aa3377", "#777777")
"""when they come round again, the lines are broken in another way"""


def average(found: list[list[list[float]]]) -> list[tuple[float, float]]:
    """Mean over runs, at the rounds that all of them have."""
    common = set.intersection(*({point[0] for point in curve} for curve in found))
    figures = [{point[0]: point[TEST_G] for point in curve} for curve in found]
    return [(r, statistics.mean(one[r] for one in figures)) for r in sorted(common)]


def curves(rows: dict[str, list[list[list[float]]]]) -> str:
    """Mean test balanced accuracy (G) over rounds, one line per row, as SVG."""
    width, height, left, top = 760, max(360, 60 + 18 * len(rows)), 50, 20
    points = {row: average(found) for row, found in rows.items()}
    last = max(r for line in points.values() for r, _ in line)
    lines = ticks(
        100 * min(v for line in points.values() for _, v in line),
        100 * max(v for line in points.values() for _, v in line),
        count=7,
    )
    low, high = lines[0] / 100, lines[-1] / 100

    def x(r: float) -> float:
        return left + (width - left - 240) * r / last

    def y(v: float) -> float:
        return top + (height - top - 40) * (1 - (v - low) / max(1e-9, high - low))

    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" font-family="sans-serif" '
        f'font-size="12">',
        "<title>Test balanced accuracy over rounds, mean over seeds</title>",
        f'<rect width="{width}" height="{height}" fill="white"/>',
    ]
    for value in lines:
        level = y(value / 100)
        parts.append(
            f'<line x1="{left}" x2="{width - 240}" y1="{level:.1f}" y2="{level:.1f}" stroke="#ddd"/>'
        )
        parts.append(f'<text x="{left - 6}" y="{level + 4:.1f}" text-anchor="end">{value:g}</text>')
    for r in rounds(0, int(last)):
        parts.append(f'<text x="{x(r):.1f}" y="{height - 20}" text-anchor="middle">{r}</text>')
    parts.append(f'<text x="{left}" y="{height - 4}">round</text>')
    for i, (row_name, line) in enumerate(points.items()):
        colour, broken = COLOURS[i % len(COLOURS)], DASHES[i // len(COLOURS) % len(DASHES)]
        dash = f' stroke-dasharray="{broken}"' if broken else ""
        path = " ".join(f"{x(r):.1f},{y(v):.1f}" for r, v in line)
        parts.append(
            f'<polyline points="{path}" fill="none" stroke="{colour}" '
            f'stroke-width="2"{dash}><title>{row_name}</title></polyline>'
        )
        row = top + 18 * i
        parts.append(
            f'<line x1="{width - 230}" x2="{width - 206}" y1="{row + 6}" y2="{row + 6}" stroke="{colour}" '
            f'stroke-width="2"{dash}/>'
        )
        parts.append(f'<text x="{width - 200}" y="{row + 10}">{row_name}</text>')
    return "\n".join([*parts, "</svg>", ""])
