"""What a site has spent of its privacy: kept in its folder over all runs, and counted before an answer is
made.

`privacy.json` lists the private steps of every run. They count from the moment they begin, whether the answer
reaches anyone or not. The journal has a line for each time, so that a list which was deleted, or replaced by
an older one, is noticed.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from pydantic import Field, ValidationError

from equipoise.errors import StorageError
from equipoise.keeping import read_json, write_json
from equipoise.options import Options
from equipoise.server import Journal
from equipoise.server.journal import read as read_journal
from equipoise.site.accounting import Spent, epsilon

FILE, EVENT = "privacy.json", "spent"
FIX = "restore it: without it nobody knows what this site has spent"


class Budget(Options):
    """What a site may spend in all runs together."""

    epsilon: float = Field(gt=0, allow_inf_nan=False)
    """largest ε of one training image, over all runs"""
    delta: float = Field(default=1e-5, gt=0, lt=1)
    """δ at which it is counted"""


class Account:
    """The list of a site's private steps."""

    def __init__(self, folder: Path, journal: Journal) -> None:
        self.path, self.journal = folder / FILE, journal
        lines, _ = read_journal(folder / "journal.jsonl")
        self._written = sum(line["event"] == EVENT for line in lines)
        """times of spending in the journal"""

    def read(self) -> tuple[int, dict[str, list[Spent]]]:
        """How often something was spent, and by run what."""
        table: dict[str, Any] = read_json(self.path, FIX) if self.path.exists() else {"times": 0, "runs": {}}
        if table["times"] < self._written:
            raise StorageError(f"{self.path} is gone, or older than the journal: {FIX}")
        try:
            runs = {run: [Spent.model_validate(one) for one in spent] for run, spent in table["runs"].items()}
        except ValidationError as error:
            raise StorageError(f"{self.path} is damaged: {FIX}") from error
        return table["times"], runs

    def epsilon(self, delta: float) -> float:
        """ε of all that was spent."""
        return epsilon((one for spent in self.read()[1].values() for one in spent), delta)

    def over(self, budget: Budget, more: Spent) -> float | None:
        """What ε would come to with further steps, if that is more than the budget."""
        before = (one for spent in self.read()[1].values() for one in spent)
        after = epsilon((*before, more), budget.delta)
        return after if after > budget.epsilon else None

    def spend(self, run: str, more: Spent) -> None:
        """Write down further steps; on disk when this returns."""
        times, runs = self.read()
        spent = runs.setdefault(run, [])
        for place, one in enumerate(spent):
            if (one.noise, one.rate) == (more.noise, more.rate):
                spent[place] = one.model_copy(update={"steps": one.steps + more.steps})
                break
        else:
            spent.append(more)
        plain = {name: [one.model_dump(mode="json") for one in kept] for name, kept in runs.items()}
        write_json(self.path, {"times": times + 1, "runs": plain})
        self.journal.write(EVENT, run=run, **more.model_dump(mode="json"))
        self._written += 1
