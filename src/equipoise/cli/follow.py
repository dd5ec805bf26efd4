"""A run of a federation, followed by the lines it writes into its folder."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from equipoise.cli.progress import line

LEFT_OUT = ("left out", "rejected", "withheld")
"""events whose reason names the site"""
TROUBLE = ("failed", "silent")
"""events whose reason does not"""


def follow(folder: Path, rounds: int, quiet: bool) -> Callable[[], None]:
    """A line for every site that joins, for every round as it is finished, and for every site or answer that
    is left out, from now on."""
    journal = Sentences()

    def rows(name: str) -> list[str]:
        path = folder / name
        if not path.exists():
            return []
        return [text for text in path.read_text().splitlines(keepends=True) if text.endswith("\n")]

    seen = {name: len(rows(name)) for name in ("metrics.jsonl", "journal.jsonl")}

    def fresh(name: str) -> list[dict[str, Any]]:
        before, now = seen[name], rows(name)
        seen[name] = len(now)
        return [json.loads(text) for text in now[before:]]

    def look() -> None:
        if quiet:
            return
        events = [text for entry in fresh("journal.jsonl") for text in journal.sentences(entry)]
        for text in (*events, *(line(row, rounds) for row in fresh("metrics.jsonl"))):
            print(f"{time.strftime('%H:%M:%S')}  {text}", file=sys.stderr, flush=True)

    return look


class Sentences:
    """Lines of a journal as sentences; who is still waited for is known from the lines before."""

    def __init__(self) -> None:
        self.invited, self.waiting = list[str](), list[str]()
        self.refusals = set[str]()

    def sentences(self, entry: dict[str, Any]) -> Iterator[str]:
        """What somebody who waits wants to know of a line, if anything; a refusal once, not in every
        round."""
        event, site, question = entry["event"], entry.get("site"), entry.get("question")
        when = f"round {entry['round']}: " if entry.get("round") else ""
        if event == "invited":
            self.invited += entry["sites"]
            self.waiting += entry["sites"]
            waiting = ", ".join(self.waiting)
            yield f"waiting for {waiting}: who does not join within {entry['seconds']:g} s is not in the run"
        elif event == "joined":
            yield f"{site} joined{self._still(site)}"
        elif event == "resumed":
            yield "continued after its last finished round"
        elif event == "refused":
            what = f"does not answer '{question}'" if question else "does not join"
            text = f"site '{site}' {what}: {entry['reason']}"
            if text not in self.refusals:
                self.refusals.add(text)
                yield f"{when}{text}{'' if when else self._still(site)}"
        elif event in TROUBLE:
            yield f"{when}site '{site}': {entry['reason']}{'' if when else self._still(site)}"
        elif event == "missing":
            yield f"{when}no usable answer to '{question}' from {', '.join(entry['sites'])}"
        elif event in LEFT_OUT:
            yield f"{when}{entry['reason']}"

    def _still(self, site: str | None) -> str:
        """Who has not answered the invitation yet."""
        if site in self.waiting:
            self.waiting.remove(site)
        rest = f"waiting for {', '.join(self.waiting)}" if self.waiting else "nobody else is waited for"
        return f" ({len(self.invited) - len(self.waiting)} of {len(self.invited)} have answered; {rest})"
