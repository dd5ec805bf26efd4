"""A small table that shows itself: as text on a terminal, as HTML in a notebook, as a DataFrame on demand."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from html import escape
from typing import Any

from equipoise.errors import ConfigError
from equipoise.text import printable

WIDEST = 60
"""letters of a cell that a terminal shows"""


@dataclass(frozen=True, repr=False)
class Listing:
    """Columns by rows; iterating gives a dict per row."""

    columns: tuple[str, ...]
    cells: tuple[tuple[Any, ...], ...]
    title: str = ""
    note: str = ""

    def rows(self) -> list[dict[str, Any]]:
        """A dict per row, by column."""
        return [dict(zip(self.columns, row, strict=True)) for row in self.cells]

    def frame(self) -> Any:
        """The rows as a pandas DataFrame."""
        return to_frame(self.rows())

    def __iter__(self) -> Iterator[dict[str, Any]]:
        return iter(self.rows())

    def __len__(self) -> int:
        return len(self.cells)

    def __repr__(self) -> str:
        lines = (self.title, aligned([self.columns, *self.cells]), self.note)
        return "\n".join(line for line in lines if line)

    def _repr_html_(self) -> str:
        title, note = (f"<p>{escape(text)}</p>" if text else "" for text in (self.title, self.note))
        return title + html_table(self.columns, self.cells) + note


def aligned(rows: Sequence[Sequence[Any]]) -> str:
    """Cells in columns, long ones cut; those that are numbers to the right."""
    cells = [[_short(cell) for cell in row] for row in rows]
    widths = [max(map(len, column)) for column in zip(*cells, strict=True)]
    last = rows[-1]
    lines = (
        "  ".join(
            cell.rjust(width) if isinstance(kind, int | float) else cell.ljust(width)
            for cell, width, kind in zip(row, widths, last, strict=True)
        ).rstrip()
        for row in cells
    )
    return "\n".join(lines)


def html_table(heads: Sequence[Any], rows: Sequence[Sequence[Any]]) -> str:
    """An HTML table; a cell that is a `Raw` text is taken as it is."""
    top = "".join(f"<th>{_html(head)}</th>" for head in heads)
    body = "".join("<tr>" + "".join(f"<td>{_html(cell)}</td>" for cell in row) + "</tr>" for row in rows)
    return f"<table><thead><tr>{top}</tr></thead><tbody>{body}</tbody></table>"


class Raw(str):
    """HTML that is made here, and so needs no escape."""


def to_frame(rows: Sequence[dict[str, Any]]) -> Any:
    """Rows as a pandas DataFrame; one sentence where pandas is not installed."""
    try:
        import pandas
    except ImportError as error:
        raise ConfigError(
            "a DataFrame needs pandas, which is not installed: run pip install pandas, or use .rows()"
        ) from error
    return pandas.DataFrame(list(rows))


def _short(cell: Any) -> str:
    text = "–" if cell is None else f"{cell:,}" if isinstance(cell, int) else printable(str(cell))
    text = " ".join(text.split())
    return text if len(text) <= WIDEST else text[: WIDEST - 1].rstrip() + "…"


def _html(cell: Any) -> str:
    if isinstance(cell, Raw):
        return cell
    return escape("–" if cell is None else f"{cell:,}" if isinstance(cell, int) else str(cell))
