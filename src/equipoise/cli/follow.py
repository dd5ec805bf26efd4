"""A run of a federation, followed by the lines it writes into its folder."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from equipoise.cli.progress import line


def follow(folder: Path, rounds: int, quiet: bool) -> Callable[[], None]:
    """A line for every round as it is finished, and for every site or answer that is left out."""
    seen = {"metrics.jsonl": 0, "journal.jsonl": 0}

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
        left_out = [entry for entry in fresh("journal.jsonl") if entry["event"] in ("left out", "rejected")]
        told = [
            f"round {entry['round']}: {entry['reason']}" if "round" in entry else entry["reason"]
            for entry in left_out
        ]
        for text in (*told, *(line(row, rounds) for row in fresh("metrics.jsonl"))):
            print(f"{time.strftime('%H:%M:%S')}  {text}", file=sys.stderr, flush=True)

    return look
