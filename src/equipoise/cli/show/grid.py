"""The look of every table on the terminal."""

from __future__ import annotations

from rich import box
from rich.table import Table


def grid(*columns: str, title: str | None = None, right: int = 1) -> Table:
    """A table whose columns from number `right` on are numbers."""
    table = Table(box=box.SIMPLE_HEAD, title=title, title_justify="left", pad_edge=False)
    for i, column in enumerate(columns):
        table.add_column(column, justify="right" if i >= right else "left", overflow="fold")
    return table
