"""How far a run or a comparison is, in one line of text that is written over again; in notebooks too."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, TextIO

from equipoise.report.folder import percent
from equipoise.running import Watch
from equipoise.text import printable


def in_notebook() -> bool:
    """Whether this process serves a notebook; IPython is asked only where it is there already."""
    ask = getattr(sys.modules.get("IPython"), "get_ipython", lambda: None)
    return type(ask()).__name__ == "ZMQInteractiveShell"


@contextmanager
def showing(progress: bool | None, watch: Watch | None) -> Iterator[Watch]:
    """A `watch` that shows a line, and tells another; `progress` None shows it where somebody can see it."""
    tell = watch or (lambda event, facts: None)
    notebook = in_notebook()
    shown = notebook or sys.stderr.isatty() if progress is None else progress
    if not shown:
        yield tell
        return
    line = Line(sys.stdout if notebook else sys.stderr)

    def both(event: str, facts: dict[str, Any]) -> None:
        line.tell(event, facts)
        tell(event, facts)

    try:
        yield both
    finally:
        line.end()


class Line:
    """One line of text: the state of a run, or of all runs of a comparison."""

    def __init__(self, file: TextIO) -> None:
        self.file, self._width = file, 0
        self._rounds = self._done = self._runs = self._finished = 0
        self._begin, self._start = 0, time.monotonic()
        self._figures = ""
        self._reached: dict[str, int] = {}

    def tell(self, event: str, facts: dict[str, Any]) -> None:
        """Take note of an event, and write the line anew."""
        if event == "data":
            return self.show(f"{facts['text']} {facts['done']:,}/{facts['total']:,}")
        if event in ("note", "rejected"):
            return self.say(facts["text" if event == "note" else "reason"])
        if event == "begin":
            self._rounds, self._start = max(1, facts["rounds"]), time.monotonic()
            self._runs, self._finished = facts.get("runs", 0), facts.get("finished", 0)
            self._done = self._begin = facts.get("done", 0)
        elif event == "round" and "run" not in facts:
            first = self._done == 0 and facts["round"] > 1
            self._begin = facts["round"] - 1 if first else self._begin  # done by an earlier session
            self._done = min(self._rounds, facts["round"])
            self._figures = _figures(facts) or self._figures
        elif event in ("round", "done", "failed"):
            self._reach(event, facts)
        else:
            return None
        return self.show(self.text())

    def _reach(self, event: str, facts: dict[str, Any]) -> None:
        """One run of several is so far, or at its end."""
        now = min(facts["rounds"], facts["round"]) if event == "round" else facts["rounds"]
        self._done += now - self._reached.get(facts["run"], 0)
        self._reached[facts["run"]] = now
        self._finished += event == "done"
        if event == "failed":
            self.say(f"{facts['run']} failed: {facts['error']}")

    def text(self) -> str:
        """How far it is, the newest figures, and the time left."""
        runs = f" of {self._runs} runs, {self._finished} finished" if self._runs else ""
        done = f"{self._done}/{self._rounds}"
        far = f"{done} rounds{runs}" if runs else f"round {done}"
        return " · ".join(part for part in (far, self._figures, self._left()) if part)

    def _left(self) -> str:
        gained, rest = self._done - self._begin, self._rounds - self._done
        if gained <= 0 or rest <= 0:
            return ""
        minutes, seconds = divmod(round((time.monotonic() - self._start) * rest / gained), 60)
        hours, minutes = divmod(minutes, 60)
        return f"{hours}:{minutes:02d}:{seconds:02d} left" if hours else f"{minutes}:{seconds:02d} left"

    def show(self, text: str) -> None:
        """Write over the line."""
        text = printable(text)
        self.file.write("\r" + text.ljust(self._width))
        self.file.flush()
        self._width = len(text)

    def say(self, text: str) -> None:
        """A sentence that stays, above the line."""
        self.show(text)
        self.end()

    def end(self) -> None:
        """Leave the line as it is; what comes next starts below it."""
        if self._width:
            self.file.write("\n")
            self.file.flush()
        self._width = 0


def _figures(row: dict[str, Any]) -> str:
    if "test" not in row:
        return ""
    both = (row["test"][view]["balanced_accuracy"] for view in ("generalisation", "specialisation"))
    return "balanced accuracy {} global, {} own".format(*map(percent, both))
