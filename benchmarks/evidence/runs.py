"""The runs of a table: first a few short ones to choose every row's learning rate, on validation images; then
all seeds. What is recorded already is not run again; what was interrupted is resumed."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
from collections.abc import Iterable
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from equipoise.config import load, override
from equipoise.evaluate.protocol import moved
from equipoise.version import __version__
from evidence.lists import Table
from evidence.records import RECIPES, RUN, TRIAL, Record, mark, read, record_of, validated, write

ROOT = Path(__file__).resolve().parents[2]
ROUNDS, INIT = "train.rounds=", "train.init="
TRIAL_SEED = 1000
"""of the runs that choose a learning rate; `data.split.seed` gives them the test images of all others"""


@dataclass(frozen=True)
class Job:
    """One run: a row with its learning rate (none: the recipe's) and a seed."""

    table: str
    recipe: str
    row: str
    overrides: tuple[str, ...]
    seed: int
    rate: float | None
    kind: str = RUN
    source: Job | None = None
    """the run whose last model it starts from; none: it starts anew"""

    @property
    def settings(self) -> tuple[str, ...]:
        rate = () if self.rate is None else (f"train.lr={self.rate:g}",)
        return (*self.overrides, *rate, f"train.seed={self.seed}")

    @property
    def mark(self) -> str:
        source = () if self.source is None else (f"{INIT}{self.source.mark}",)
        return mark(self.recipe, (*self.settings, *source))

    @property
    def folder(self) -> Path:
        return ROOT / "runs" / "tables" / self.table / f"{self.kind}-{self.mark}"

    @property
    def rounds(self) -> int:
        """How many rounds it has, by its recipe and what is changed in it."""
        return int(override(load(RECIPES / f"{self.recipe}.toml"), self.settings)["train"]["rounds"])

    @property
    def ended(self) -> bool:
        return (self.folder / "result.json").exists()

    @property
    def command(self) -> list[str]:
        source = [] if self.source is None else [f"{INIT}{self.source.folder}"]
        start = [sys.executable, "-m", "equipoise", "run", f"recipes/{self.recipe}.toml"]
        return [*start, *self.settings, *source, "--out", str(self.folder), "--json"]


class Runs:
    """All runs of one table, a few at a time."""

    def __init__(self, name: str, table: Table, jobs: int) -> None:
        self.name, self.table, self.jobs = name, table, jobs
        self.records = read(name)
        self.failures: list[str] = []
        self._lock = threading.Lock()

    def make(self, seeds: int, wanted: set[str]) -> None:
        """Run what is missing of the wanted rows (none named: of all): seed after seed, row after row."""
        rows = [row for row in self.table.rows if not wanted or row in wanted]
        self._all(self.missing([job for row in rows for job in self.trials(row)]))
        chosen = {row: self.rate(row) for row in rows}
        ready = [row for row in rows if not self.table.rates or chosen[row] is not None]
        todo = self.missing([self.job(row, seed, chosen[row]) for seed in range(seeds) for row in ready])
        # a record does not hold a model: where its folder is gone, the run is made again, and recorded again
        sources = {job.source.mark: job.source for job in todo if job.source and not job.source.ended}
        self._all(list(sources.values()))
        self._all([job for job in todo if job.mark not in sources])

    @property
    def begun(self) -> bool:
        """Whether there is a run for the table's page, and not only short ones that choose a rate."""
        return any(record["kind"] == RUN for record in self.records.values())

    def missing(self, jobs: Iterable[Job]) -> list[Job]:
        return [job for job in jobs if job.mark not in self.records]

    def trials(self, row: str) -> list[Job]:
        """The short runs that choose a row's learning rate; they stand when the table gets more rounds."""
        if row in self.table.trained_by:
            return []
        overrides = self._lasting(row, self.table.trial_rounds)
        return [
            Job(self.name, self.table.recipe, row, overrides, TRIAL_SEED, rate, TRIAL)
            for rate in self.table.rates
        ]

    def _lasting(self, row: str, rounds: int) -> tuple[str, ...]:
        """What a row changes in the recipe, with so many rounds."""
        rest = (text for text in self.table.common if not text.startswith(ROUNDS))
        return (*self.table.rows[row], *rest, f"{ROUNDS}{rounds}")

    def rate(self, row: str) -> float | None:
        """The learning rate that did best on validation images; None where it was not looked for, or not all
        trials are there."""
        row = self.table.trained_by.get(row, row)
        found = [self.records.get(job.mark) for job in self.trials(row)]
        if not found or any(one is None for one in found):
            return None
        return max((one["score"], one["rate"]) for one in found if one is not None)[1]

    def job(self, row: str, seed: int, rate: float | None) -> Job:
        if row in self.table.trained_by:
            source = self.job(self.table.trained_by[row], seed, rate)
            overrides = self._lasting(row, rounds=0)
            return Job(self.name, self.table.recipe, row, overrides, seed, rate, source=source)
        overrides = (*self.table.rows[row], *self.table.common)
        return Job(self.name, self.table.recipe, row, overrides, seed, rate)

    def finished(self, row: str, seeds: int) -> list[Record]:
        """The recorded runs of a row, with how far each `moved` in its last quarter of rounds."""
        rate = self.rate(row)
        jobs = [self.job(row, seed, rate) for seed in range(seeds)]
        found = [(job, self.records[job.mark]) for job in jobs if job.mark in self.records]
        return [record | {"moved": moved(history(record, job.rounds))} for job, record in found]

    def _all(self, jobs: list[Job]) -> None:
        with ThreadPoolExecutor(self.jobs) as pool:
            running: list[Future[None]] = [pool.submit(self._one, job) for job in jobs]
            for one in running:
                one.result()

    def _one(self, job: Job) -> None:
        if not job.ended:
            done = subprocess.run(
                job.command,
                cwd=ROOT,
                env=os.environ | {"OMP_NUM_THREADS": "1"},
                capture_output=True,
                text=True,
            )
            if done.returncode:
                self._failed(job, done.stdout or done.stderr)
                return
        facts = {"kind": job.kind, "row": job.row, "seed": job.seed, "rate": job.rate, "mark": job.mark}
        facts |= {"version": __version__, "seconds": seconds(job.folder)}
        # of a trial only its figure on validation images is kept: nobody looks at its test images
        trial = job.kind == TRIAL
        facts |= {"score": validated(job.folder, self.table.metric)} if trial else record_of(job.folder)
        with self._lock:
            self.records[job.mark] = facts
            write(self.name, self.records)
        print(f"  {job.row}, seed {job.seed}, lr {job.rate}: done", file=sys.stderr, flush=True)

    def _failed(self, job: Job, text: str) -> None:
        reason = text.strip()[-300:]
        with self._lock:
            self.failures.append(f"{job.row}, seed {job.seed}: {reason}")
        print(f"  {job.row}, seed {job.seed}: FAILED: {reason}", file=sys.stderr, flush=True)


def history(record: Record, rounds: int) -> list[dict[str, Any]]:
    """The evaluated rounds of training of a recorded run, each with what it said of the validation images.
    A method's ending counts as a round after the last and is left out."""
    return [
        {"round": round, "validation": {"generalisation": {"balanced_accuracy": shared}}}
        for round, shared, *_ in record["curve"]
        if round <= rounds
    ]


def seconds(folder: Path) -> float:
    """How long the rounds of a run took."""
    lines = (folder / "timing.jsonl").read_text().splitlines()
    return round(sum(part for line in lines for part in times(json.loads(line))), 1)


def times(row: dict[str, float]) -> tuple[float, float]:
    return row.get("train", 0.0), row.get("evaluate", 0.0)
