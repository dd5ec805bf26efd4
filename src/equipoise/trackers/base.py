"""What a tracker is: something outside that gets a run's rounds and stores them in a form of its own."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

from equipoise.evaluate.protocol import ENDING

Numbers = dict[str, float]
"""the numbers of one round by their path, such as `test/generalisation/macro_auc`"""


@dataclass(frozen=True)
class Run:
    """What a tracker gets to know of a run when it begins, or is resumed."""

    name: str
    folder: Path
    """the run folder; a tracker may keep files in a folder of its own name there"""
    config: dict[str, Any]
    """the resolved config, without what is only of this machine (`base`) or of the trackers"""
    classes: tuple[str, ...]
    tags: dict[str, str]
    """method, version of Equipoise, hashes of code, config and data"""
    history: tuple[tuple[int, Numbers], ...] = ()
    """the rounds that earlier sessions trained for good; a later one that they told of comes again"""

    @property
    def first_round(self) -> int:
        """The round of the first row to come."""
        return self.history[-1][0] + 1 if self.history else 1


@dataclass(frozen=True)
class Summary:
    """What a run came to."""

    numbers: Numbers
    """the metrics of the reported rounds, as in a row but with `result/` before them"""
    facts: dict[str, str]
    """the reported rounds, and the hash of the final state"""


class Tracker:
    """Is told of a run: `begin`, a `row` for every round, `end`; what it does not define is left out.

    The keys that stand beside its `name` in `evaluate.trackers` are the arguments of its constructor, which
    may be called more than once and only keeps them: work starts with `begin`. A hook that raises is reported
    once, and the tracker is left out from then on; the run goes on.
    """

    packages: ClassVar[tuple[str, ...]] = ()
    """what must be installed"""

    def begin(self, run: Run) -> None:
        """The run begins, or goes on from its newest checkpoint."""

    def row(self, round: int, numbers: Numbers) -> None:
        """A round was trained; a method's ending counts as a round after the last."""

    def end(self, summary: Summary | None) -> None:
        """The run is over; without a summary it was interrupted, and may be resumed."""


def numbers(row: Mapping[str, Any], classes: Sequence[str]) -> Numbers:
    """Every number of a row of metrics under its path; those of a method's ending are under `ending/`."""
    return dict(_numbers(row, classes, "ending/" if ENDING in row else ""))


def summary(result: Mapping[str, Any]) -> Summary:
    """The summary of a run, from what `Result.summary` says."""
    facts = {
        "selected_rounds": ", ".join(map(str, result["selected_rounds"])),
        "state_hash": str(result["state_hash"]),
    }
    return Summary(dict(_numbers(result["metrics"], result["classes"], "result/")), facts)


def _numbers(row: Mapping[str, Any], classes: Sequence[str], prefix: str) -> Iterator[tuple[str, float]]:
    for key, value in row.items():
        if isinstance(value, Mapping):
            yield from _numbers(value, classes, f"{prefix}{key}/")
        elif key == "recall":
            named = zip(classes, value, strict=True)
            yield from ((f"{prefix}recall/{name}", float(r)) for name, r in named if r is not None)
        elif isinstance(value, int | float) and key not in ("round", ENDING):
            yield prefix + key, float(value)
