"""The terminal: whatever is shown on it, a name out of somebody's file cannot move its cursor or turn its
text around."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from rich.console import Console, ConsoleOptions, RenderableType
from rich.segment import Segment

from equipoise.text import printable


class Terminal(Console):
    """A console that shows control and invisible characters as escapes; its own colours stay."""

    def render(self, renderable: RenderableType, options: ConsoleOptions | None = None) -> Iterable[Segment]:
        for text, style, control in super().render(renderable, options):
            yield Segment(text if control else printable(text), style, control)


def terminal(**options: Any) -> Terminal:
    """A console for tables and sentences."""
    return Terminal(highlight=False, **options)
