"""TensorBoard: events in the run folder's `tensorboard/`."""

from __future__ import annotations

import json
from typing import Any

from equipoise.trackers.base import Numbers, Run, Summary, Tracker

FOLDER = "tensorboard"


class TensorBoard(Tracker):
    """Scalars by round; config, tags and result as text."""

    packages = ("tensorboard",)

    def __init__(self) -> None:
        self._writer: Any = None

    def begin(self, run: Run) -> None:
        from torch.utils.tensorboard import SummaryWriter

        folder = run.folder / FOLDER
        known = any(folder.glob("events.out.tfevents.*"))
        self._writer = SummaryWriter(str(folder), purge_step=run.first_round if known else None)
        if known:
            return  # rounds from purge_step on are forgotten by who reads the events: they come again
        self._writer.add_text("config", _block(run.config), 0)
        self._writer.add_text("tags", _block(run.tags), 0)
        for round, numbers in run.history:
            self.row(round, numbers)
        self._writer.flush()

    def row(self, round: int, numbers: Numbers) -> None:
        for name, value in numbers.items():
            self._writer.add_scalar(name, value, round)
        self._writer.flush()

    def end(self, summary: Summary | None) -> None:
        if summary is not None:
            self._writer.add_text("result", _block(summary.facts | summary.numbers), 0)
        self._writer.close()


def _block(table: dict[str, Any]) -> str:
    """A table as TensorBoard's Markdown shows it line by line."""
    return "".join(f"    {line}\n" for line in json.dumps(table, indent=1, ensure_ascii=False).splitlines())
