"""Files of a run folder changed on purpose, with the digests they would have had."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from equipoise.keeping import append_line, bare, read_json, read_lines, read_text, write_json, write_text


def table(path: Path) -> dict[str, Any]:
    """What a JSON file holds."""
    return read_json(path, "")


def change(path: Path, **keys: Any) -> None:
    """Other values in a JSON file."""
    write_json(path, table(path) | keys)


def replace(path: Path, *pairs: tuple[str, str]) -> None:
    """Other words in a text file."""
    text = read_text(path, "")
    for old, new in pairs:
        text = text.replace(old, new)
    write_text(path, text)


def rows(path: Path) -> list[dict[str, Any]]:
    """What a file of JSON lines holds."""
    return [bare(line) for line in read_lines(path)[0]]


def fill(path: Path, lines: Iterable[Mapping[str, Any]]) -> None:
    """Other lines in a file of JSON lines."""
    path.unlink(missing_ok=True)
    for line in lines:
        append_line(path, line)
