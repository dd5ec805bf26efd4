"""A run of a federation, followed by the lines it writes into its folder."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from equipoise.cli.progress import line


def follow(folder: Path, rounds: int, quiet: bool) -> Callable[[], None]:
    """A line for every round as it is finished, and for every site, answer or class that is left out."""
    seen = {"metrics.jsonl": 0, "journal.jsonl": 0}
    before = set[str]()

    def fresh(name: str) -> list[dict[str, Any]]:
        path = folder / name
        if not path.exists():
            return []
        rows = [text for text in path.read_text().splitlines(keepends=True) if text.endswith("\n")]
        before, seen[name] = seen[name], len(rows)
        return [json.loads(text) for text in rows[before:]]

    def look() -> None:
        if quiet:
            return
        told = [text for entry in fresh("journal.jsonl") for text in _lines(entry, before)]
        for text in (*told, *(line(row, rounds) for row in fresh("metrics.jsonl"))):
            print(f"{time.strftime('%H:%M:%S')}  {text}", file=sys.stderr, flush=True)

    return look


def _lines(entry: dict[str, Any], before: set[str]) -> Iterator[str]:
    """What a line of the journal says to somebody who waits; a refusal is said once, not in every round."""
    event, site = entry["event"], entry.get("site")
    when = f"round {entry['round'] + 1}: " if "round" in entry else ""
    if event in ("left out", "rejected", "withheld"):
        yield when + entry["reason"]
    elif event == "refused":
        what = f"does not answer '{entry['question']}'" if entry["question"] else "does not join"
        text = f"site '{site}' {what}: {entry['reason']}"
        if text not in before:
            before.add(text)
            yield (when if entry["question"] else "") + text
    elif event == "missing":
        yield f"{when}no usable answer to '{entry['question']}' from {', '.join(entry['sites'])}"
