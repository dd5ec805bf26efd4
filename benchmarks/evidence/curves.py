"""The course of a table's rows over rounds, as a picture."""

from __future__ import annotations

import statistics

TEST_G = 3
"""place of the test figure in a point of a curve"""


def average(found: list[list[list[float]]]) -> list[tuple[float, float]]:
    """Mean over runs, at the rounds that all of them have."""
    common = set.intersection(*({point[0] for point in curve} for curve in found))
    figures = [{point[0]: point[TEST_G] for point in curve} for curve in found]
    return [(r, statistics.mean(one[r] for one in figures)) for r in sorted(common)]


def curves(rows: dict[str, list[list[list[float]]]]) -> str:
    """Mean test balanced accuracy (G) over rounds, one line per row, as SVG."""
    width, height, left, top = 760, max(360, 60 + 18 * len(rows)), 50, 20
    colours = (
        "#4477aa",
        "#ee6677",
        "#228833",
        "#ccbb44",
        "#66ccee",
        "#aa3377",
        "#777777",
    )  # then again, dashed
    points = {row: average(found) for row, found in rows.items()}
    last = max(r for line in points.values() for r, _ in line)
    low = min(v for line in points.values() for _, v in line)
    high = max(v for line in points.values() for _, v in line)

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
    for i in range(5):
        value = low + (high - low) * i / 4
        parts.append(
            f'<line x1="{left}" x2="{width - 240}" y1="{y(value):.1f}" y2="{y(value):.1f}" stroke="#ddd"/>'
        )
        parts.append(
            f'<text x="{left - 6}" y="{y(value) + 4:.1f}" text-anchor="end">{100 * value:.0f}</text>'
        )
        parts.append(
            f'<text x="{x(last * i / 4):.1f}" y="{height - 20}" text-anchor="middle">{last * i // 4}</text>'
        )
    parts.append(f'<text x="{left}" y="{height - 4}">round</text>')
    for i, (row_name, line) in enumerate(points.items()):
        colour, dash = colours[i % len(colours)], ' stroke-dasharray="6 3"' if i >= len(colours) else ""
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
