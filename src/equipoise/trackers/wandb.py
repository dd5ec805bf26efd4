"""Weights & Biases, always offline: a run in the run folder's `wandb/`, for `wandb sync` if you want it
sent."""

from __future__ import annotations

import os
import secrets
import shutil
from pathlib import Path
from typing import Any

from equipoise.keeping import read_json, write_json
from equipoise.trackers.base import Numbers, Run, Summary, Tracker

FOLDER, KEPT = "wandb", "run.json"
LONGEST_TAG = 64
SETTINGS: dict[str, Any] = {
    "mode": "offline",
    "console": "off",
    "host": "equipoise",
    "silent": True,
    "symlink": False,
    "disable_code": True,
    "disable_git": True,
    "save_code": False,
    "x_disable_machine_info": True,
    "x_disable_meta": True,
    "x_disable_stats": True,
    "x_disable_viewer": True,
    "x_save_requirements": False,
}
"""nothing is sent, and nothing of this machine, its user or his files is written down"""


class WandB(Tracker):
    """Metrics by round, the config; one offline run that holds all rounds, also when the run is resumed."""

    packages = ("wandb",)

    def __init__(self, project: str = "equipoise") -> None:
        if not isinstance(project, str) or not project:
            raise ValueError("project is a text")
        self.project = project
        self._run: Any = None

    def begin(self, run: Run) -> None:
        """A resumed run is written anew from its first round on, under its old id: offline runs cannot be
        continued, and of rounds that come again none is there twice."""
        os.environ["WANDB_ERROR_REPORTING"] = "false"
        import wandb

        folder = run.folder / FOLDER
        folder.mkdir(exist_ok=True)
        name = _id(folder / KEPT)
        for old in folder.glob(f"offline-run-*-{name}"):
            shutil.rmtree(old)
        self._run = wandb.init(
            project=self.project,
            id=name,
            resume="allow",
            reinit="create_new",  # a run that the user has open is his own, and may be online
            name=run.name,
            config={**run.config, "equipoise": run.tags},
            tags=[run.tags[key][-LONGEST_TAG:] for key in ("method", "version")],
            settings=wandb.Settings(root_dir=str(run.folder.resolve()), **SETTINGS),
        )
        for round, numbers in run.history:
            self.row(round, numbers)

    def row(self, round: int, numbers: Numbers) -> None:
        self._run.log(dict(numbers), step=round)

    def end(self, summary: Summary | None) -> None:
        if summary is not None:
            self._run.summary.update(summary.facts | summary.numbers)
        self._run.finish(exit_code=1 if summary is None else 0)


def _id(path: Path) -> str:
    """The id that the run keeps in W&B, made when it begins."""
    if not path.exists():
        write_json(path, {"run": secrets.token_hex(8)})
    return str(read_json(path, "delete it to begin another run in W&B")["run"])
