"""All runs of a comparison through one pool of processes. A run that fails is written down; the others go
on."""

from __future__ import annotations

import json
import os
import queue
import subprocess
import threading
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from equipoise.compare.job import letter
from equipoise.compare.nodes import Events, Nodes
from equipoise.compare.plan import Job, Plan
from equipoise.config import digest_in
from equipoise.engine import frames
from equipoise.engine.ray import need_ray
from equipoise.errors import ConfigError, StorageError
from equipoise.names import unknown
from equipoise.run_folder import CONFIG, RESULT
from equipoise.running import Watch

RAY = "ray"


@dataclass(frozen=True)
class Failure:
    """A run that did not reach its end, and why."""

    run: str
    error: str
    exit_code: int


def finished(folder: Path) -> bool:
    """Whether a run folder holds a result."""
    return (folder / RESULT).is_file()


def race(
    plan: Plan, out: Path, processes: int | None = None, watch: Watch | None = None, on: str | None = None
) -> list[Failure]:
    """Run every job that has no result yet, `processes` at a time (default: one per core), and tell which
    failed. `on` is "ray" where the runs go to the nodes of a cluster: as many at a time as it has room for.

    `watch` is told of ("begin", {rounds, runs, finished}), and of each run: ("round", {run, round, rounds}),
    ("done", {run}) and ("failed", {run, error}).
    """
    watch = watch or (lambda event, facts: None)
    placed(on)
    for job in plan.jobs:
        folder = out / job.name
        if (folder / CONFIG).exists() and digest_in(folder) != job.config.digest:
            raise StorageError(f"{folder} holds a run with another config: choose another --out")
    todo = [job for job in plan.jobs if not finished(out / job.name)]
    rounds = {job.name: max(1, job.config.train.rounds) for job in plan.jobs}
    total = sum(rounds.values())
    done = total - sum(rounds[job.name] for job in todo)
    watch("begin", {"rounds": total, "done": done, "runs": len(rounds), "finished": len(rounds) - len(todo)})
    count = min(processes or os.cpu_count() or 1, len(todo))
    waiting: queue.SimpleQueue[Job] = queue.SimpleQueue()
    for job in todo:
        waiting.put(job)
    events: Events = queue.SimpleQueue()
    runners: Sequence[_Runner | Nodes] = [_Runner(out) for _ in range(count)]
    if on and todo:
        runners = [Nodes(out, processes)]
    queues = (waiting, events)
    threads = [threading.Thread(target=runner.serve, args=queues, daemon=True) for runner in runners]
    failures: dict[str, Failure] = {}
    ended = 0
    try:
        for thread in threads:
            thread.start()
        while ended < len(todo):
            job, facts = events.get()
            event = facts["event"]
            watch(event, facts | {"run": job.name, "rounds": rounds[job.name]})
            ended += event in ("done", "failed")
            if event == "failed":
                failures[job.name] = Failure(job.name, facts["error"], facts["exit_code"])
    finally:
        for runner in runners:
            runner.stop()
        for thread in threads:
            thread.join()
    return [failures[job.name] for job in plan.jobs if job.name in failures]  # in the plan's order


def placed(on: str | None) -> None:
    """Refuse a place where runs cannot go."""
    if on not in (None, RAY):
        raise ConfigError("--on: " + unknown("place", str(on), [RAY]))
    if on:
        need_ray()


class _Runner:
    """One process, started when first needed and again after it died."""

    def __init__(self, out: Path) -> None:
        self.out = out
        self._process: subprocess.Popen[bytes] | None = None
        self._halted = False

    def serve(self, waiting: queue.SimpleQueue[Job], events: Events) -> None:
        """Take jobs until there are none."""
        while not self._halted:
            try:
                job = waiting.get_nowait()
            except queue.Empty:
                return
            try:
                self._run(job, events)
            except (EOFError, OSError):
                code = self._end()
                events.put((job, {"event": "failed", "error": _died(code), "exit_code": 1}))

    def _run(self, job: Job, events: Events) -> None:
        process = self._process
        if process is None:
            process = self._process = frames.begin(frames.command("equipoise.compare.worker"))
        if self._halted:
            raise EOFError
        assert process.stdin is not None and process.stdout is not None
        frames.write(process.stdin, letter(job, self.out).encode())
        while True:
            facts = json.loads(frames.read(process.stdout))
            events.put((job, facts))
            if facts["event"] in ("done", "failed"):
                return

    def stop(self) -> None:
        """End the process, in the middle of a run if need be."""
        self._halted = True
        self._end()

    def _end(self) -> int | None:
        process, self._process = self._process, None
        return None if process is None else frames.end(process)


def _died(code: int | None) -> str:
    return (
        f"the process died (exit {code}), probably out of memory: use fewer --jobs or a smaller batch, "
        f"then start again"
    )
