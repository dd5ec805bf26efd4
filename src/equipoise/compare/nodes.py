"""The runs of a comparison over the nodes of a Ray cluster; the folder of the comparison is on a file system
they share."""

from __future__ import annotations

import queue
from pathlib import Path
from typing import Any

from equipoise.compare.job import letter, perform
from equipoise.compare.plan import Job
from equipoise.engine.ray import cluster, remote, unframed
from equipoise.run_folder import METRICS

Events = queue.SimpleQueue[tuple[Job, dict[str, Any]]]
LOOK = 1.0
"""seconds after which the folders of runs are looked at again, to tell how far they are"""


class Nodes:
    """Takes jobs as one of the processes of a pool does, but `most` at a time, each a task of the cluster."""

    def __init__(self, out: Path, most: int | None) -> None:
        self.out, self.most = out, most
        self._halted = False

    def serve(self, waiting: queue.SimpleQueue[Job], events: Events) -> None:
        """Take jobs until there are none; a job that Ray gives up is one that failed."""
        jobs = [waiting.get_nowait() for _ in range(waiting.qsize())]
        left = list(jobs)
        try:
            self._run(jobs, left, events)
        except Exception as error:
            for job in left:
                events.put((job, _failed(f"{type(error).__name__}: {error}")))

    def _run(self, jobs: list[Job], left: list[Job], events: Events) -> None:
        options = jobs[0].config.engine
        with cluster(options) as ray:
            task, running = remote(ray, perform, options), dict[Any, Job]()
            waiting, reached = iter(jobs), dict[str, int]()
            while left and not self._halted:
                while len(running) < (self.most or len(jobs)) and (job := next(waiting, None)):
                    running[task.options(name=job.name).remote(letter(job, self.out))] = job
                done, _ = ray.wait(list(running), num_returns=1, timeout=LOOK)
                for job in running.values():
                    rounds = self._rounds(job)
                    if rounds > reached.get(job.name, 0):
                        events.put((job, {"event": "round", "round": rounds}))
                        reached[job.name] = rounds
                for one in done:
                    job = running.pop(one)
                    left.remove(job)
                    events.put((job, self._end(ray, one)))
            for one in running:
                ray.cancel(one, force=True)

    def _rounds(self, job: Job) -> int:
        """How many rounds a run has written down."""
        try:
            return (self.out / job.name / METRICS).read_bytes().count(b"\n")
        except OSError:
            return 0

    @staticmethod
    def _end(ray: Any, done: Any) -> dict[str, Any]:
        """How a run ended, and at which node."""
        try:
            facts, _ = unframed(ray.get(done))
        except ray.exceptions.RayError as error:
            return _failed(f"Ray gave it up: {str(error).strip().splitlines()[0]}")
        if facts["event"] == "failed":
            facts["error"] += f" (on node {facts['node']})"
        return facts

    def stop(self) -> None:
        self._halted = True


def _failed(text: str) -> dict[str, Any]:
    return {"event": "failed", "error": text, "exit_code": 1}
