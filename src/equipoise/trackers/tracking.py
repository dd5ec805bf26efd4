"""The trackers of one run, kept away from it: none of them can change or stop it."""

from __future__ import annotations

import copy
import sys
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

from equipoise.trackers.base import Run, Tracker, numbers, summary


def describe(
    folder: Path,
    table: Mapping[str, Any],
    classes: tuple[str, ...],
    tags: Mapping[str, str],
    history: Iterable[Mapping[str, Any]],
) -> Run:
    """A run as trackers get to know it; `history` are the rows of its metrics so far."""
    config = {key: copy.deepcopy(value) for key, value in table.items() if key != "base"}
    del config["evaluate"]["trackers"]
    rows = tuple((int(row["round"]), numbers(row, classes)) for row in history)
    return Run("/".join(folder.resolve().parts[-2:]), folder, config, classes, dict(tags), rows)


class Tracking:
    """Tells every tracker of a run. One that raises is reported in a line, and told no more."""

    def __init__(self, trackers: Mapping[str, Tracker], run: Run) -> None:
        self._trackers, self._classes = dict(trackers), run.classes
        self._tell(lambda tracker: tracker.begin(copy.deepcopy(run)))

    def row(self, row: Mapping[str, Any]) -> None:
        """One row of metrics."""
        self._tell(lambda tracker: tracker.row(int(row["round"]), numbers(row, self._classes)))

    def end(self, result: Mapping[str, Any] | None) -> None:
        """The run is over, with what `Result.summary` says, or was interrupted."""
        self._tell(lambda tracker: tracker.end(None if result is None else summary(result)))

    def _tell(self, call: Callable[[Tracker], None]) -> None:
        for name, tracker in list(self._trackers.items()):
            try:
                call(tracker)
            except (Exception, SystemExit) as error:
                del self._trackers[name]
                reason = " ".join(f"{type(error).__name__}: {error}".split())
                print(f"the tracker '{name}' is left out from here on ({reason})", file=sys.stderr)
