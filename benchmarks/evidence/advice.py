"""Which method for which shape of imbalance, as one picture, from what is recorded.

Every shape names the tables that can speak for it. The first of them with two seeds of a method and of its
reference speaks; where none has, the picture says so.
"""

from __future__ import annotations

import statistics
import textwrap
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from html import escape

from evidence.claims import SEEDS, VIEWS
from evidence.figures import Difference, converged, difference, on_validation, values
from evidence.lists import BOUNDS, BOUNDS_CE, TABLES
from evidence.records import Record
from evidence.runs import Runs

NO_METHODS = {*BOUNDS, *BOUNDS_CE}
"""training alone, and on pooled images: they join nothing"""


@dataclass(frozen=True)
class Shape:
    """A shape of imbalance: how a hospital would say it, and which tables have it."""

    text: str
    tables: tuple[str, ...]
    view: str


SHAPES = (
    Shape("A long tail; every site has nearly every class", ("pbc-tail",), "G"),
    Shape("A long tail; many sites lack the rare classes", ("pbc-skew",), "G"),
    Shape("Real hospitals: other cameras, other patients, other frequencies", ("sites-48",), "A"),
    Shape("The same, and the network is pretrained", ("sites-lite0",), "A"),
    Shape("Each hospital wants the best predictor for its own patients", ("sites-48", "pbc-skew"), "S"),
    Shape("Many small sites that train long between rounds", ("fedsdc-niid1",), "G"),
    Shape("Nothing is imbalanced: sites and classes are alike", ("fedsdc-iid",), "G"),
    Shape("Several findings per image; sites leave one unlabelled", ("fedmlp-1", "fedmlp-list-1"), "G"),
    Shape("Several findings per image; sites leave several unlabelled", ("fedmlp-3",), "G"),
    Shape("Several findings per image; each site labels only one", ("fedmlp-7", "fedmlp-list-7"), "G"),
    Shape("Labels are wrong at some sites", (), "G"),
)


@dataclass(frozen=True)
class Advice:
    """The best row of a table, and how far it is from the table's reference."""

    table: str
    row: str
    mean: float
    reference: str
    gap: Difference | None
    """None where the reference itself is the best row"""
    seeds: int
    converged: bool
    other: str | None = None
    """the best row on validation images, where that is another"""

    @property
    def clear(self) -> bool:
        """Whether the row is above the reference with all of its interval, and best on other images too."""
        return self.gap is not None and self.gap.low > 0 and self.other is None


def advice(shape: Shape) -> Advice | None:
    """The advice of the first of the shape's tables that has something to compare."""
    for name in shape.tables:
        runs = Runs(name, TABLES[name], 1)
        rows = {row: runs.finished(row, SEEDS) for row in TABLES[name].rows if ":" not in row}
        found = best(name, rows, TABLES[name].compared, VIEWS[shape.view])
        if found is not None:
            return found
    return None


def best(table: str, rows: Mapping[str, list[Record]], reference: str, view: str) -> Advice | None:
    """The row with the highest mean; None with fewer than two rows, or seeds, to compare. Training alone
    and pooling the images are no methods and do not count, nor do seeds that some row lacks. What is said of
    the row is over all seeds that it shares with the reference."""
    compared = [found for row, found in rows.items() if row not in NO_METHODS and len(found) > 1]
    seeds = [{record["seed"] for record in found} for found in compared]
    shared = set.intersection(*seeds) if seeds else set()
    alike = {row: [record for record in found if record["seed"] in shared] for row, found in rows.items()}
    means = {
        row: statistics.mean(found)
        for row, records in alike.items()
        if row not in NO_METHODS and len(found := values(records, view, "balanced_accuracy")) > 1
    }
    if len(means) < 2 or reference not in means:
        return None
    first = max(means, key=lambda row: means[row])
    gap = None if first == reference else difference(rows[first], rows[reference], view)
    both = {record["seed"] for record in (alike if gap is None else rows)[reference]}
    told = [record for record in rows[first] if record["seed"] in both]
    heard = {row: validated(alike[row], view) for row in means}
    most = max(heard, key=lambda row: heard[row])
    other = most if heard[most] > heard[first] else None
    mean = statistics.mean(values(told, view, "balanced_accuracy"))
    return Advice(table, first, mean, reference, gap, len(told), converged(told, alike[reference]), other)


def validated(records: Iterable[Record], view: str) -> float:
    """The mean on validation images; 0 where none is known."""
    found = [on_validation(record, view, "balanced_accuracy") for record in records]
    return statistics.mean(value or 0.0 for value in found)


WIDTH, LEFT, RIGHT, TALL, STEP, TOP = 860, 300, 440, 62, 78, 64


def picture() -> str:
    """The advice as SVG: shapes on the left, methods on the right."""
    height = TOP + STEP * len(SHAPES) + 34
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}" font-family="sans-serif" '
        f'font-size="14">',
        "<title>Shape of imbalance and the method that did best with it here</title>",
        f'<rect width="{WIDTH}" height="{height}" fill="white"/>',
        *words(20, 26, ["At your sites"], "#000", bold=True),
        *words(WIDTH - RIGHT - 20, 26, ["Start with"], "#000", bold=True),
        *words(WIDTH - RIGHT - 20, 46, ["G, S, A: balanced accuracy, as in the tables"], "#555"),
    ]
    for i, shape in enumerate(SHAPES):
        parts += drawn(shape, TOP + STEP * i)
    note = "† one of the two rows has not converged, or none can tell. Brackets: 95 % interval over seeds."
    return "\n".join([*parts, *words(20, height - 12, [note], "#555"), "</svg>", ""])


def drawn(shape: Shape, y: int) -> Iterable[str]:
    """One line of the picture."""
    x, middle = WIDTH - RIGHT - 20, y + TALL // 2
    found = advice(shape)
    fill, line = ("#e6f3ea", "#228833") if found and found.clear else ("#f4f4f4", "#777777")
    dash = "" if found else ' stroke-dasharray="5 4"'
    yield f'<rect x="20" y="{y}" width="{LEFT}" height="{TALL}" rx="6" fill="#e9eff7" stroke="#4477aa"/>'
    text = textwrap.wrap(shape.text, 38)
    yield from words(34, middle + 5 - 9 * (len(text) - 1), text, "#000")
    yield f'<path d="M{LEFT + 24} {middle} H{x - 12}" stroke="#555" stroke-width="2"/>'
    yield f'<path d="M{x - 4} {middle} l-10 -6 v12 z" fill="#555"/>'
    yield (
        f'<rect x="{x}" y="{y}" width="{RIGHT}" height="{TALL}" rx="6" fill="{fill}" stroke="{line}"{dash}/>'
    )
    if found is None:
        yield from words(x + 14, middle + 5, ["not measured yet"], "#555")
        return
    mark = "" if found.converged else " †"
    yield from words(
        x + 14, y + 21, [f"{found.row}: {shape.view} {100 * found.mean:.1f}{mark}"], "#000", bold=True
    )
    yield from words(x + 14, y + 38, list(reason(found)), "#333", size=12)


def reason(found: Advice) -> Iterable[str]:
    """What the advice rests on, in two lines."""
    where = f"table {found.table}, {found.seeds} seeds"
    if found.other:
        where += f"; on validation images {found.other}"
    if found.gap is None:
        yield "no other method is above it (parts of methods not counted)"
        yield where
    else:
        yield f"{found.gap} against {found.reference}"
        yield where if found.clear else f"{where}; may be chance"


def words(
    x: int, y: int, lines: list[str], colour: str, *, bold: bool = False, size: int = 14
) -> Iterable[str]:
    weight = ' font-weight="bold"' if bold else ""
    for i, line in enumerate(lines):
        place = f'x="{x}" y="{y + i * (size + 4)}"'
        yield f'<text {place} font-size="{size}" fill="{colour}"{weight}>{escape(line)}</text>'
