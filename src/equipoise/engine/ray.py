"""Sites as tasks of a Ray cluster, behind the same `ask` as the other engines.

A task is a function of ours, by its name, with bytes and texts as arguments. Ray itself pickles what it
carries; we give it nothing whose unpickling would run code. The broadcast is put into the object store once
per question. A task whose node or process died is repeated by Ray on another one: answers are deterministic,
and private state is on a file system that all nodes share, so the round ends with the same bits.

Ray is an extra: nothing here imports it before it is used.
"""

from __future__ import annotations

import importlib.util
import json
import os
import shutil
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from itertools import islice
from typing import Any

from equipoise import errors
from equipoise.engine.options import EngineOptions
from equipoise.errors import ConfigError, EquipoiseError, SiteError
from equipoise.exchange.question import Question

RETRIES = 3
"""how often Ray repeats a task whose node or process died"""
AHEAD = 256
"""tasks that are submitted at a time; the others wait here, so that answers do not fill the object store"""
QUIET = {"RAY_USAGE_STATS_ENABLED": "0"}
"""nothing is reported to Ray's makers"""

LOOPBACK = "127.0.0.1"
ALONE = {"RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER": "0"}
"""what keeps Ray on the loopback address: otherwise it takes that for the address of this machine"""

Task = Callable[..., bytes]
"""a function of a module: what every task of a kind runs"""


def need_ray() -> None:
    """Refuse, with the fix, where Ray is not installed."""
    if importlib.util.find_spec("ray") is None:
        raise ConfigError('engine.kind is "ray", which is not installed: pip install ray on every node')


@contextmanager
def cluster(options: EngineOptions) -> Iterator[Any]:
    """Ray, connected to the cluster of the options: one that is there, or one of this machine alone, which
    nobody else can reach and which ends here. A process that is connected already stays so."""
    need_ray()
    for name, value in (QUIET if options.address else QUIET | ALONE).items():
        os.environ.setdefault(name, value)
    import ray

    if ray.is_initialized():
        yield ray
        return
    plain: dict[str, Any] = {"log_to_driver": False, "configure_logging": False}
    folder = None
    if options.address is None:
        # Sockets have short names, so their folder must be near the root.
        folder = tempfile.mkdtemp(prefix="eq-", dir="/tmp" if os.path.isdir("/tmp") else None)
        alone = {"include_dashboard": False, "_node_ip_address": LOOPBACK, "_temp_dir": folder}
        plain |= {"address": "local", "num_cpus": options.workers, **alone}
    else:
        plain["address"] = options.address
    try:
        try:
            ray.init(**plain)
        except (ConnectionError, RuntimeError, ValueError) as error:
            raise ConfigError(
                f"no Ray cluster answers at engine.address '{options.address}' ({_first_line(error)}): start "
                "it with `ray start`, or leave address out for one on this machine"
            ) from error
        yield ray
    finally:
        with suppress(Exception):
            ray.shutdown()
        if folder is not None:
            shutil.rmtree(folder, ignore_errors=True)


class Ray:
    """The nodes of a cluster behind the same `ask` as the serial engine.

    `task(order, call, payload, extra)` gives one site's answer, framed as `framed` does; the largest sites
    are asked first.
    """

    def __init__(self, task: Task, order: bytes, options: EngineOptions, sizes: Mapping[str, int]) -> None:
        self._sizes = sizes
        self._connection = cluster(options)
        self._ray = self._connection.__enter__()
        self._task = remote(self._ray, task, options)
        self._order = self._ray.put(order)
        self.nodes: dict[str, str] = {}
        """by site: the node that gave its last answer"""

    def ask(self, question: Question, sites: Sequence[str]) -> Iterator[tuple[str, bytes]]:
        payload = self._ray.put(question.payload)
        waiting = iter(sorted(sites, key=lambda site: -self._sizes.get(site, 0)))
        running: dict[Any, str] = {}

        def submit(count: int) -> None:
            for site in islice(waiting, count):
                call = question.call(site).model_dump_json()
                started = self._task.options(name=f"{question.name} at {site}").remote(
                    self._order, call, payload, question.each.get(site, b"")
                )
                running[started] = site

        try:
            submit(AHEAD)
            while running:
                (done,), _ = self._ray.wait(list(running), num_returns=1)
                site = running.pop(done)
                self.nodes[site], data = self._answer(question, site, done)
                submit(1)
                yield site, data
        finally:
            for left in running:
                with suppress(Exception):
                    self._ray.cancel(left)

    def _answer(self, question: Question, site: str, done: Any) -> tuple[str, bytes]:
        """The node and the bytes of an answer."""
        try:
            status, data = unframed(self._ray.get(done))
        except self._ray.exceptions.RayError as error:
            raise SiteError(
                f"site '{site}' gave no answer to '{question.name}' in round {question.round}: Ray says "
                f"{type(error).__name__}: {_first_line(error)}; `equipoise resume` continues the run"
            ) from error
        if "error" in status:
            kind = getattr(errors, status["error"], EquipoiseError)
            raise kind(f"{status['message']} (on node {status['node']})")
        return status["node"], data

    def close(self) -> None:
        self._connection.__exit__(None, None, None)


def remote(ray: Any, task: Task, options: EngineOptions) -> Any:
    """A function as a task. A process stays for the next task, with a GPU too: it has built its networks and
    found its images."""
    return ray.remote(num_cpus=options.cpus, num_gpus=options.gpus, max_retries=RETRIES, max_calls=0)(task)


def framed(status: Mapping[str, str], data: bytes = b"") -> bytes:
    """How a task ended, and its answer, as one piece of bytes."""
    return json.dumps(status).encode() + b"\n" + data


def unframed(result: bytes) -> tuple[dict[str, str], bytes]:
    """The inverse of `framed`."""
    end = result.index(b"\n")
    return json.loads(result[:end]), result[end + 1 :]


def node() -> str:
    """The name of the node that this task runs on."""
    import socket

    import ray

    return f"{socket.gethostname()}/{ray.get_runtime_context().get_node_id()[:8]}"


def _first_line(error: BaseException) -> str:
    return (str(error).strip().splitlines() or [""])[0]


__all__ = ["Ray", "cluster", "framed", "need_ray", "node", "remote", "unframed"]
