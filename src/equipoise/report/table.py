"""The table of a comparison: mean ± standard deviation, best bold, second underlined; as Markdown, CSV and
LaTeX."""

from __future__ import annotations

import csv
import io
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from statistics import mean, stdev
from typing import Literal

from equipoise.text import cell

Rank = Literal["best", "second", ""]
Value = str | float | None
"""a cell of a table for programs"""

LATEX = {
    "\\": r"\textbackslash{}",
    "~": r"\textasciitilde{}",
    "^": r"\textasciicircum{}",
    "±": r"$\pm$",
    "–": "--",
    "Δ": r"$\Delta$",
    "<": "$<$",
    ">": "$>$",
    "†": r"$\dagger$",
    **{letter: f"\\{letter}" for letter in "&%$#_{}"},
}


@dataclass(frozen=True)
class Figure:
    """A metric over runs."""

    mean: float
    std: float | None
    """None for a single run"""

    @staticmethod
    def of(values: Sequence[float | None]) -> Figure | None:
        """The figure of those runs that have the metric."""
        known = [value for value in values if value is not None]
        return Figure(mean(known), stdev(known) if len(known) > 1 else None) if known else None

    def __str__(self) -> str:
        return f"{100 * self.mean:.1f}" + ("" if self.std is None else f" ± {100 * self.std:.1f}")


@dataclass(frozen=True)
class Row:
    """One arm: its figures under the table's columns, then remarks in words."""

    label: str
    figures: tuple[Figure | None, ...]
    remarks: tuple[str, ...] = ()
    ranked: bool = True
    """whether it can be best or second; what others are only measured against cannot"""


@dataclass(frozen=True)
class Table:
    """Arms by metrics, in per cent."""

    columns: tuple[str, ...]
    rows: tuple[Row, ...]
    remarks: tuple[str, ...] = ()
    """heads of the remarks"""
    unranked: int = 0
    """so many of the last columns have no best: nobody says whether more is better there"""

    @property
    def heads(self) -> tuple[str, ...]:
        return ("method", *self.columns, *self.remarks)

    def ranks(self) -> list[tuple[Rank, ...]]:
        """Best and second of every column in which more is better, by the digits that are shown; what looks
        equal ranks equal."""
        ranked = len(self.columns) - self.unranked
        figures = [[row.figures[i] if row.ranked else None for row in self.rows] for i in range(ranked)]
        columns = [_ranks(column) for column in figures]
        columns += [[""] * len(self.rows)] * self.unranked
        return [tuple(column[i] for column in columns) for i in range(len(self.rows))]

    def cells(self) -> list[tuple[str, ...]]:
        """Every cell as plain text, without the row's label."""
        return [
            (*("–" if figure is None else str(figure) for figure in row.figures), *row.remarks)
            for row in self.rows
        ]


def _ranks(figures: Sequence[Figure | None]) -> list[Rank]:
    shown = [None if figure is None else round(100 * figure.mean, 1) for figure in figures]
    order = sorted({value for value in shown if value is not None}, reverse=True)
    order = order[: 2 if len(figures) > 1 else 0]
    names: dict[float | None, Rank] = dict(zip(order, ("best", "second"), strict=False))
    return [names.get(value, "") for value in shown]


def markdown(table: Table) -> str:
    """A Markdown table; the second is underlined with HTML, as Markdown has no underline."""
    marks: dict[Rank, str] = {"best": "**{}**", "second": "<u>{}</u>", "": "{}"}
    rule = ["---"] + ["---:"] * (len(table.heads) - 1)
    lines = [list(table.heads), rule, *_marked(table, marks, escaped)]
    return "".join(f"| {' | '.join(line)} |\n" for line in lines)


def latex(table: Table) -> str:
    r"""A LaTeX tabular for the booktabs package: \textbf for the best, \underline for the second."""
    marks: dict[Rank, str] = {"best": r"\textbf{{{}}}", "second": r"\underline{{{}}}", "": "{}"}
    lines = [r"\begin{tabular}{l" + "r" * (len(table.heads) - 1) + "}", r"\toprule"]
    lines += [" & ".join(map(_plain_latex, table.heads)) + r" \\", r"\midrule"]
    lines += [" & ".join(row) + r" \\" for row in _marked(table, marks, _plain_latex)]
    return "\n".join([*lines, r"\bottomrule", r"\end{tabular}", ""])


def comma_separated(heads: Sequence[str], rows: Iterable[Sequence[Value]]) -> str:
    """A table for spreadsheets and scripts: numbers as numbers, empty where there is none."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow([cell(head) for head in heads])
    for row in rows:
        writer.writerow([_plain_value(value) for value in row])
    return text.getvalue()


def _plain_value(value: Value) -> str:
    if isinstance(value, str):
        return cell(value)
    return "" if value is None else f"{value:.8g}"


def _marked(table: Table, marks: Mapping[Rank, str], plain: Callable[[str], str]) -> list[list[str]]:
    """Every row with its label, escaped, the best and the second marked."""
    lines = []
    for row, cells, ranks in zip(table.rows, table.cells(), table.ranks(), strict=True):
        figures = [marks[rank].format(plain(cell)) for rank, cell in zip(ranks, cells, strict=False)]
        lines.append([plain(row.label), *figures, *map(plain, row.remarks)])
    return lines


def escaped(text: str) -> str:
    """Words that Markdown shows as they are, on one line."""
    return re.sub(r"([\\|*_<>`\[\]])", r"\\\1", " ".join(text.split()))


def _plain_latex(text: str) -> str:
    text = "".join(LATEX.get(letter, letter) for letter in text)
    return re.sub(r"(?<![\w}.])-(?=\d)", "$-$", text)  # a hyphen is no minus
