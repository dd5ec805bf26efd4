"""The look of every table on the terminal."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from rich import box
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from equipoise.cli.console import terminal

Column = tuple[str, Sequence[str]]
"""a head and its cells"""


def grid(*columns: str, right: int = 1) -> Table:
    """A table whose columns from number `right` on are numbers."""
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    for i, column in enumerate(columns):
        table.add_column(column, justify="right" if i >= right else "left", overflow="fold")
    return table


def stacked(console: Console, labels: Column, columns: Sequence[Column]) -> Iterator[Table]:
    """Tables to print under each other, each with the labels and as many columns as fit the width: no cell is
    cut, none is left out."""
    left = list(columns)
    while left:
        count = 1
        while (
            count < len(left) and _width(console, _table(console, labels, left[: count + 1])) <= console.width
        ):
            count += 1
        yield _table(console, labels, left[:count])
        left = left[count:]


def _table(console: Console, labels: Column, columns: Sequence[Column]) -> Table:
    """One table; long names go over several lines."""
    table = grid(labels[0], *(head for head, _ in columns))
    for column in table.columns:
        column.max_width = console.width // 3
    for cells in zip(labels[1], *(cells for _, cells in columns), strict=True):
        table.add_row(*cells)
    return table


def _width(console: Console, table: Table) -> int:
    """What a table would take if there were room."""
    return console.measure(table, options=console.options.update(width=10 * console.width)).maximum


def warnings(doubts: list[str]) -> None:
    """What may be wrong, a mark before each."""
    for text in doubts:
        terminal().print(f"[yellow]![/] {escape(text)}", soft_wrap=True)
