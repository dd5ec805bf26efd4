"""The Ray engine: against a stand-in that starts in no time, and (sweep) on a real cluster of two nodes of
this machine: same bits as serial, whatever dies."""

from __future__ import annotations

import json
import os
import shutil
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from tests.engine.test_pool import private
from tests.light import LIGHTEST

from equipoise import task
from equipoise.compare import compare, make_plan
from equipoise.config import Config, resolve
from equipoise.engine import EngineOptions, Question
from equipoise.engine import ray as engine
from equipoise.engine.ray import AHEAD, ALONE, LOOPBACK, QUIET, Ray, cluster, framed, unframed
from equipoise.errors import ConfigError, MethodError, SiteError, StorageError
from equipoise.methods import METHODS
from equipoise.running import run
from equipoise.setup import order

MakeConfig = Callable[..., Config]
Rows = Callable[[Path], list[dict[str, Any]]]


class LostError(Exception):
    """What the stand-in raises for a task that died too often."""


class StandIn:
    """As much of Ray as the engine uses, in this process."""

    exceptions = SimpleNamespace(RayError=LostError)

    def __init__(self) -> None:
        self.stored: list[Any] = []
        self.asked: list[tuple[Any, ...]] = []
        self.options: dict[str, Any] = {}
        self.names: list[str] = []
        self.most = self.cancelled = 0

    def put(self, value: Any) -> int:
        self.stored.append(value)
        return len(self.stored) - 1

    def remote(self, **options: Any) -> Callable[..., Any]:
        self.options = options

        def make(function: Callable[..., bytes]) -> Any:
            def started(name: str) -> Any:
                self.names.append(name)

                def start(order: int, call: str, payload: int, extra: bytes) -> int:
                    self.asked.append((call, payload, extra))
                    return self.put(function(self.stored[order], call, self.stored[payload], extra))

                return SimpleNamespace(remote=start)

            return SimpleNamespace(options=started)

        return make

    def wait(self, running: list[int], num_returns: int) -> tuple[list[int], list[int]]:
        self.most = max(self.most, len(running))
        return running[-num_returns:], running[:-num_returns]

    def get(self, place: int) -> bytes:
        found: bytes = self.stored[place]
        if found == b"lost":
            raise LostError("the node died\nand much more")
        return found

    def cancel(self, place: int) -> None:
        self.cancelled += 1


def echo(order: bytes, call: str, payload: bytes, extra: bytes) -> bytes:
    told = json.loads(call)
    if told["question"] == "fail" and told["site"] == "b":
        return framed({"node": "n7", "error": "MethodError", "message": "no b"})
    if told["question"] == "lose":
        return b"lost"
    return framed({"node": f"n{len(told['site'])}"}, b"\n".join((order, payload, extra)))


@pytest.fixture
def there(monkeypatch: pytest.MonkeyPatch) -> StandIn:
    stand_in = StandIn()

    @contextmanager
    def connected(options: EngineOptions) -> Iterator[StandIn]:
        yield stand_in

    monkeypatch.setattr(engine, "cluster", connected)
    return stand_in


def question(name: str, sites: tuple[str, ...], **each: bytes) -> Question:
    return Question(name, 3, b"model", each, asked=sites)


def test_the_largest_site_is_asked_first_and_the_broadcast_stored_once(there: StandIn) -> None:
    options = EngineOptions(kind="ray", cpus=2, gpus=0.25)
    ray = Ray(echo, b"order", options, {"a": 1, "b": 9, "cc": 5})
    found = dict(ray.ask(question("train", ("a", "b", "cc"), b=b"own"), ("a", "b", "cc")))
    assert [json.loads(call)["site"] for call, _, _ in there.asked] == ["b", "cc", "a"]
    assert there.names == ["train at b", "train at cc", "train at a"]
    assert found == {"a": b"order\nmodel\n", "b": b"order\nmodel\nown", "cc": b"order\nmodel\n"}
    assert there.stored.count(b"model") == there.stored.count(b"order") == 1
    assert (there.options["num_cpus"], there.options["num_gpus"]) == (2, 0.25)
    assert there.options["max_retries"] == 3 and there.options["max_calls"] == 0
    assert ray.nodes == {"a": "n1", "b": "n1", "cc": "n2"}


def test_ten_thousand_sites_are_not_submitted_at_once(there: StandIn) -> None:
    sites = tuple(f"site-{i}" for i in range(2 * AHEAD))
    ray = Ray(echo, b"", EngineOptions(kind="ray"), {})
    assert sorted(site for site, _ in ray.ask(question("train", sites), sites)) == sorted(sites)
    assert there.most == AHEAD


def test_an_error_names_site_and_node_and_the_others_are_called_off(there: StandIn) -> None:
    ray = Ray(echo, b"", EngineOptions(kind="ray"), {})
    with pytest.raises(MethodError, match=r"^no b \(on node n7\)$"):
        list(ray.ask(question("fail", ("a", "b", "c")), ("c", "b", "a")))
    assert there.cancelled == 1
    lost = r"^site 'a' gave no answer to 'lose' in round 3: Ray says LostError: the node died; `equipoise"
    with pytest.raises(SiteError, match=lost):
        list(ray.ask(question("lose", ("a",)), ("a",)))


def test_what_is_framed_is_found_again() -> None:
    assert unframed(framed({"node": "a\nb"}, b"\n\x00\n")) == ({"node": "a\nb"}, b"\n\x00\n")
    assert unframed(framed({})) == ({}, b"")


def test_a_task_answers_as_a_worker_does_and_checks_what_it_is(
    tiny: MakeConfig, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(task, "node", lambda: "here")
    asked: list[tuple[Question, bytes]] = []

    class Spy:
        def __init__(self, inner: Any) -> None:
            self.inner = inner

        def ask(self, question: Question, sites: Any) -> Iterator[tuple[str, bytes]]:
            for site, data in self.inner.ask(question, sites):
                asked.append((question, data))
                yield site, data

        def close(self) -> None:
            self.inner.close()

    blueprints = []
    config = tiny(train={"rounds": 1})
    run(config, tmp_path / "run", wrap=lambda inner: (blueprints.append(inner.host.blueprint), Spy(inner))[1])
    (first, data), (folder, blueprint) = asked[0], (tmp_path / "run" / "sites", blueprints[0])
    call = first.call(first.asked[0]).model_dump_json()
    setup = order(config, blueprint, folder)
    status, found = unframed(task.answer(setup, call, first.payload, b""))
    assert (status, found) == ({"node": "here"}, data)
    gone = order(config, blueprint, tmp_path / "elsewhere" / "sites")
    status, _ = unframed(task.answer(gone, call, first.payload, b""))
    assert status["error"] == StorageError.__name__ and "all nodes share" in status["message"]
    other = order(config, blueprint.model_copy(update={"classes": ("x",)}), folder)
    status, _ = unframed(task.answer(other, call, first.payload, b""))
    assert "blueprint is not the run's" in status["message"]
    task._host.cache_clear()


FROZEN = {"freeze": "block2", "views_kept": 2}


def test_frozen_stages_give_the_bits_of_one_process(
    there: StandIn, tiny: MakeConfig, rows: Rows, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Tasks and the serial run compute the outputs of the frozen stages each for themselves."""
    monkeypatch.setattr(task, "node", lambda: "here")
    config = tiny("fca", net=FROZEN)
    monkeypatch.setenv("EQUIPOISE_CACHE", str(tmp_path / "kept-by-tasks"))
    spread = run(config.with_engine(kind="ray"), tmp_path / "ray")
    assert there.asked and list((tmp_path / "kept-by-tasks" / "kept").glob("*.raw"))
    monkeypatch.setenv("EQUIPOISE_CACHE", str(tmp_path / "kept-here"))
    serial = run(config, tmp_path / "serial")
    assert spread.state_hash == serial.state_hash
    assert rows(tmp_path / "ray") == rows(tmp_path / "serial")
    assert private(tmp_path / "ray") == private(tmp_path / "serial")
    task._host.cache_clear()


def test_ray_that_is_not_installed_is_named_with_the_fix(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(engine.importlib.util, "find_spec", lambda name: None)
    with pytest.raises(ConfigError, match="pip install ray on every node"), cluster(EngineOptions()):
        pass


def test_runs_go_only_to_places_there_are(tmp_path: Path, tiny: MakeConfig) -> None:
    plan = make_plan(tiny().table(), ["fedavg"], seeds=(0,))
    with pytest.raises(ConfigError, match=r"--on: unknown place 'slurm'"):
        compare(plan, tmp_path, on="slurm")


# Two nodes of this machine ----------------------------------------------------------------------------------


real = [pytest.mark.sweep, pytest.mark.slow, pytest.mark.filterwarnings("default")]


NODE = {"num_cpus": 1, "node_ip_address": LOOPBACK, "object_store_memory": 2**27}
"""a node of one core that nobody outside this machine can reach"""


def marked(function: Any) -> Any:
    for mark in real:
        function = mark(function)
    return function


@pytest.fixture(scope="module")
def nodes(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    """A cluster of two nodes with one core each, which nobody outside this machine can reach."""
    folder = tempfile.mkdtemp(prefix="eq-", dir="/tmp")  # names of sockets are short
    settings = {
        "RAY_TMPDIR": folder,
        **QUIET,
        **ALONE,
        "RAY_AUTH_MODE": "disabled",
        "RAY_raylet_start_wait_time_s": "240",  # for machines that are busy
        "RAY_agent_register_timeout_ms": "240000",
        "RAY_worker_register_timeout_seconds": "240",
        "PYTHONPATH": os.pathsep.join(path for path in sys.path if path),
    }
    with pytest.MonkeyPatch.context() as patch:
        for name, value in settings.items():
            patch.setenv(name, value)
        ray = pytest.importorskip("ray")
        from ray.cluster_utils import Cluster

        made = Cluster()
        try:
            made.add_node(**NODE, include_dashboard=False)
            made.add_node(**NODE)
            plain = {"log_to_driver": False, "configure_logging": False, "_node_ip_address": LOOPBACK}
            ray.init(address=made.address, **plain)
            yield made
        finally:
            ray.shutdown()
            made.shutdown()
            shutil.rmtree(folder, ignore_errors=True)


@marked
@pytest.mark.parametrize("method", sorted(METHODS))
def test_same_bits_on_ray(method: str, nodes: Any, rows: Rows, tmp_path: Path) -> None:
    task = METHODS[method].tasks[0]
    table: dict[str, dict[str, Any]] = {
        "data": {"kind": "phantom", "scale": 0.004, "image_size": 16, "task": task},
        "partition": {"kind": "iid", "sites": 3} | ({"missing": 2} if task == "multi" else {}),
        "method": {"name": method, **LIGHTEST.get(method, {})},
        "train": {"rounds": 2, "batch_size": 8},
        "engine": {"device": "cpu"},
    }
    config = resolve(table)
    serial = run(config, tmp_path / "serial")
    seen: set[str] = set()

    def watch(event: str, facts: dict[str, Any]) -> None:
        seen.update([facts["node"]] if event == "answer" else [])

    spread = run(config.with_engine(kind="ray"), tmp_path / "ray", watch=watch)
    assert spread.state_hash == serial.state_hash
    assert rows(tmp_path / "ray") == rows(tmp_path / "serial")
    assert private(tmp_path / "ray") == private(tmp_path / "serial")
    assert not list((tmp_path / "ray").rglob("*.part"))
    assert seen and all("/" in node for node in seen)


@marked
def test_frozen_stages_on_ray(
    nodes: Any, tiny: MakeConfig, rows: Rows, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Processes of both nodes compute the outputs of the frozen stages, into one cache; then the serial run
    into another."""
    config = tiny("fca", net=FROZEN, train={"seed": 7})  # a seed that no other test has kept outputs of
    spread = run(config.with_engine(kind="ray"), tmp_path / "ray")
    monkeypatch.setenv("EQUIPOISE_CACHE", str(tmp_path / "kept-here"))
    serial = run(config, tmp_path / "serial")
    assert list((tmp_path / "kept-here" / "kept").glob("*.raw"))
    assert spread.state_hash == serial.state_hash
    assert rows(tmp_path / "ray") == rows(tmp_path / "serial")
    assert private(tmp_path / "ray") == private(tmp_path / "serial")


@marked
def test_a_comparison_on_ray_has_the_same_table(nodes: Any, tiny: MakeConfig, tmp_path: Path) -> None:
    plan = make_plan(tiny().table(), ["fedavg", "local"], seeds=(0,))
    here, there = compare(plan, tmp_path / "here", 1), compare(plan, tmp_path / "there", on="ray")
    assert there["failures"] == []
    assert (tmp_path / "there" / "table.csv").read_text() == (tmp_path / "here" / "table.csv").read_text()
    assert here["arms"]["fedavg"]["figures"] == there["arms"]["fedavg"]["figures"]


WAITING = """
import time
from pathlib import Path
from equipoise.methods import Method

class Waiting(Method):
    '''Waits for a file while it trains, but not when it is probed.'''
    def train(self, net, loc):
        here = Path(__file__).parent
        if not loc.site.startswith("probe"):
            import ray
            if ray.is_initialized():
                (here / f"busy-{loc.site}").write_text(ray.get_runtime_context().get_node_id())
            while not (here / "go").exists():
                time.sleep(0.05)
        return super().train(net, loc)
"""


@marked
def test_a_node_that_dies_in_a_round_changes_nothing(
    nodes: Any, tiny: MakeConfig, rows: Rows, tmp_path: Path
) -> None:
    (tmp_path / "waiting.py").write_text(WAITING)
    config = tiny("waiting.py:Waiting", base=tmp_path, partition={"kind": "iid", "sites": 3})
    lost = nodes.add_node(**NODE)
    killed = []

    def kill() -> None:
        """Ends the third node in the middle of a site's training, then lets everyone train."""
        end = time.monotonic() + 300
        while time.monotonic() < end and not killed:
            busy = [path.read_text() for path in tmp_path.glob("busy-*")]
            if lost.node_id in busy:
                nodes.remove_node(lost, allow_graceful=False)
                killed.append(lost)
            time.sleep(0.1)
        (tmp_path / "go").touch()

    assassin = threading.Thread(target=kill)
    assassin.start()
    # More sites at once than the other nodes have cores, so that the third has one.
    wide = config.with_engine(kind="ray", cpus=1.0)
    spread = run(wide, tmp_path / "ray")
    assassin.join()
    assert killed
    serial = run(config, tmp_path / "serial")
    assert spread.state_hash == serial.state_hash
    assert rows(tmp_path / "ray") == rows(tmp_path / "serial")
    assert private(tmp_path / "ray") == private(tmp_path / "serial")
