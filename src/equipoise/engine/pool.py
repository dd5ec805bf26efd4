"""Worker processes, each a full host; the longest site starts first.

A worker is a copy of this process where that is safe (see `fork`); otherwise it is started with a command and
the run's config. It reads questions from its standard input and answers on its standard output (see
`frames`); broadcast and answers are in memory that both sides map (see `shared`). It ends when its input
ends, so no worker outlives a killed run. A worker that dies is started again and the question repeated once:
answers are deterministic, so nothing is lost.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import queue
import subprocess
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import IO

from equipoise import errors
from equipoise.engine import frames
from equipoise.engine.fork import Copy, can_fork
from equipoise.engine.members import RUN, Members
from equipoise.engine.shared import Rooms, can_share, mapped
from equipoise.errors import EquipoiseError, SiteError
from equipoise.exchange.codec import heap
from equipoise.exchange.question import Question
from equipoise.memory import free_memory

SAME = b""
"""sent instead of a broadcast the worker has already"""


class Worker:
    """One process and what was last sent to it."""

    def __init__(self, command: Sequence[str], setup: bytes) -> None:
        self.command, self.setup = command, setup
        self._process: subprocess.Popen[bytes] | Copy | None = None
        self._payload: bytes | None = None

    def start(self, work: Callable[[], None] | None = None) -> None:
        """Start the process, as a copy of this one where there is `work` for it; it builds its host while we
        go on."""
        self._process = frames.begin(self.command) if work is None else Copy(work)
        self._payload = None
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        for pipe in (self._process.stdin, self._process.stdout):
            widen(pipe)
        if work is None:
            frames.write(self._process.stdin, self.setup)

    def answer(self, question: Question, site: str, place: bytes = b"", masks: bytes = b"") -> bytes:
        """One site's answer; a dead process is replaced once."""
        for attempt in (1, 2):
            try:
                return self._try(question, site, place, masks)
            except (EOFError, OSError):
                code = self.stop()
                if attempt == 2:
                    raise SiteError(
                        f"the worker process died twice while site '{site}' answered '{question.name}' in "
                        f"round {question.round} (exit {code}): probably out of memory; use fewer workers or "
                        "a smaller batch, then resume"
                    ) from None
                self.start()
        raise AssertionError

    def _try(self, question: Question, site: str, place: bytes, masks: bytes) -> bytes:
        assert (
            self._process is not None and self._process.stdin is not None and self._process.stdout is not None
        )
        known = self._payload is question.payload
        call = question.call(site).model_dump_json().encode()
        payload = SAME if known or place else question.payload
        place = SAME if known else place
        frames.write(self._process.stdin, call, payload, place, question.each.get(site, b""), masks)
        self._payload = question.payload
        status = json.loads(frames.read(self._process.stdout))
        data, place = frames.read(self._process.stdout), frames.read(self._process.stdout)
        if "error" in status:
            kind = getattr(errors, status["error"], EquipoiseError)
            raise kind(status["message"])
        return mapped(place) if place else data

    def stop(self) -> int | None:
        """End the process by its own id, gently first."""
        process, self._process = self._process, None
        return None if process is None else frames.end(process)


def widen(pipe: IO[bytes]) -> None:
    """Let a pipe hold a megabyte, where the system can: a model then crosses in a few dozen turns instead of
    hundreds."""
    with contextlib.suppress(AttributeError, OSError):
        fcntl.fcntl(pipe.fileno(), fcntl.F_SETPIPE_SZ, 2**20)


class Pool:
    """Several workers behind the same `ask` as the serial engine."""

    run = RUN

    def __init__(
        self,
        command: Sequence[str],
        setup: bytes,
        workers: int,
        sizes: Mapping[str, int],
        members: Members | None = None,
        work: Callable[[], None] | None = None,
    ) -> None:
        """`work` is what a worker does that is a copy of this process; none: all are started anew."""
        self.sizes, self.members = sizes, members
        self.workers = [Worker(command, setup) for _ in range(workers)]
        self._rooms = Rooms()
        self.room = self._rooms.room if can_share() else heap
        """where a broadcast is put"""
        for worker in self.workers:
            worker.start(work if can_fork() else None)

    def ask(self, question: Question, sites: Sequence[str]) -> Iterator[tuple[str, bytes]]:
        waiting: queue.SimpleQueue[str] = queue.SimpleQueue()
        done: queue.SimpleQueue[tuple[str, bytes | Exception]] = queue.SimpleQueue()
        for site in sorted(sites, key=lambda s: -self.sizes.get(s, 0)):
            waiting.put(site)
        halt = threading.Event()
        free_memory()  # what was in use between two questions, and is not while sites train
        masks = self._masks(question, sites)
        place = self._rooms.place(question.payload)

        def serve(worker: Worker) -> None:
            while not halt.is_set():
                try:
                    site = waiting.get_nowait()
                except queue.Empty:
                    return
                try:
                    done.put((site, worker.answer(question, site, place, masks.get(site, b""))))
                except Exception as error:
                    done.put((site, error))
                    return

        threads = [threading.Thread(target=serve, args=(worker,), daemon=True) for worker in self.workers]
        for thread in threads:
            thread.start()
        try:
            for _ in sites:
                site, result = done.get()
                if isinstance(result, Exception):
                    raise result
                yield site, result
        finally:
            halt.set()
            for thread in threads:
                thread.join()

    def relay(self, step: str, letters: Mapping[str, bytes], round: int) -> Iterator[tuple[str, bytes]]:
        assert self.members is not None
        yield from self.members.relay(step, letters)

    def _masks(self, question: Question, sites: Sequence[str]) -> dict[str, bytes]:
        """What each site adds to its answer, where that is asked for."""
        if self.members is None or not question.letters:
            return {}
        return {
            site: self.members.masks(question.call(site), question.payload, question.letters[site])
            for site in sites
        }

    def close(self) -> None:
        for worker in self.workers:
            worker.stop()
        self._rooms.close()
