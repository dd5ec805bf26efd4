"""The pool against a stand-in worker that starts in no time, and (slow) against real ones: same bits as
serial, whatever dies."""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from equipoise.config import Config
from equipoise.engine import Engine, Pool, Question
from equipoise.errors import MethodError, SiteError
from equipoise.exchange.codec import pack
from equipoise.running import Result, run
from equipoise.tree import digest, unflatten

MakeConfig = Callable[..., Config]
Once = Callable[[Config], Result]
Rows = Callable[[Path], list[dict[str, Any]]]

# Speaks the frames of `engine.frames`, imports nothing heavy; answers with what it was told. `setup` is a
# folder for its diary.
STAND_IN = r"""
import json, os, struct, sys, pathlib, time
def read():
    head = sys.stdin.buffer.read(8)
    if len(head) < 8:
        os._exit(0)
    return sys.stdin.buffer.read(struct.unpack("<Q", head)[0])
def write(*frames):
    for f in frames:
        sys.stdout.buffer.write(struct.pack("<Q", len(f)) + f)
    sys.stdout.buffer.flush()
diary = pathlib.Path(json.loads(read())["diary"])
while True:
    call, payload, place, extra, masks = json.loads(read()), read(), read(), read(), read()
    if place:
        told = json.loads(place)
        payload = open(told["path"], "rb").read()[told["start"]:]
    with open(diary / f"{os.getpid()}", "a") as file:
        file.write(json.dumps([call["site"], len(payload)]) + "\n")
    if call["question"] == "die":
        try:
            open(diary / "died", "x").close()
            os._exit(9)
        except FileExistsError:
            pass
    if call["question"] == "always die":
        os._exit(9)
    if call["question"] == "fail":
        write(json.dumps({"error": "MethodError", "message": f"no {call['site']}"}).encode(), b"", b"")
        continue
    write(b"{}", json.dumps([call, len(payload), extra.decode()]).encode(), b"")
"""


def alive(pid: int) -> bool:
    """Whether a process still runs (one that only waits to be reaped does not)."""
    try:
        os.kill(pid, 0)
        stat = Path(f"/proc/{pid}/stat")
        return not stat.exists() or stat.read_text().rpartition(")")[2].split()[0] != "Z"
    except (ProcessLookupError, FileNotFoundError):
        return False


def pids(pool: Pool) -> list[int]:
    return [worker._process.pid for worker in pool.workers if worker._process is not None]


@pytest.fixture
def pool(tmp_path: Path) -> Iterator[Pool]:
    made = Pool(
        [sys.executable, "-S", "-c", STAND_IN],
        json.dumps({"diary": str(tmp_path)}).encode(),
        2,
        {"a": 1, "b": 3, "c": 2},
    )
    yield made
    made.close()


def diary(folder: Path) -> list[list[Any]]:
    return [
        json.loads(line)
        for path in folder.iterdir()
        if path.name.isdigit()
        for line in path.read_text().splitlines()
    ]


def test_every_site_is_asked_once_and_told_its_own(pool: Pool) -> None:
    question = Question(
        "train", 4, b"x" * 10, {"b": b"only b"}, {"a": "3.0"}, "4.0", {"a": ("2.0",)}, tuned=True
    )
    answers = {site: json.loads(data) for site, data in pool.ask(question, ("a", "b", "c"))}
    assert sorted(answers) == ["a", "b", "c"]
    call, _, extra = answers["a"]
    expected = {
        "question": "train",
        "round": 4,
        "site": "a",
        "read": "3.0",
        "write": "4.0",
        "keep": ["2.0"],
        "tuned": True,
    }
    assert {key: call[key] for key in expected} == expected
    assert extra == ""
    assert answers["b"][2] == "only b"
    assert answers["c"][0]["read"] is None


def test_the_broadcast_goes_to_each_worker_once(pool: Pool, tmp_path: Path) -> None:
    question = Question("train", 0, b"x" * 1000)
    for _ in range(2):
        assert len(list(pool.ask(question, ("a", "b", "c")))) == 3
    sent = [length for _, length in diary(tmp_path)]
    assert 1 <= sent.count(1000) <= 2
    assert sent.count(0) == 6 - sent.count(1000)
    list(pool.ask(Question("train", 1, b"y" * 2000), ("a", "b", "c")))
    assert 1 <= [length for _, length in diary(tmp_path)].count(2000) <= 2


def test_a_broadcast_that_is_packed_for_the_pool_is_mapped_and_not_sent(pool: Pool, tmp_path: Path) -> None:
    payload = pack({}, {"x": torch.zeros(1000)}, pool.room)
    assert isinstance(payload, memoryview)
    for _ in range(2):
        assert len(list(pool.ask(Question("train", 0, payload), ("a", "b", "c")))) == 3
    lengths = [length for _, length in diary(tmp_path)]
    assert 1 <= lengths.count(len(payload)) <= 2
    assert lengths.count(0) == 6 - lengths.count(len(payload))


def test_the_longest_site_starts_first(tmp_path: Path) -> None:
    one = Pool(
        [sys.executable, "-S", "-c", STAND_IN],
        json.dumps({"diary": str(tmp_path)}).encode(),
        1,
        {"a": 1, "b": 3, "c": 2},
    )
    try:
        assert [site for site, _ in one.ask(Question("train", 0, b"x"), ("a", "b", "c"))] == ["b", "c", "a"]
    finally:
        one.close()


def test_a_worker_that_dies_is_started_again_and_told_everything_anew(pool: Pool, tmp_path: Path) -> None:
    list(pool.ask(Question("train", 0, b"x" * 5), ("a", "b", "c")))
    before = set(pids(pool))
    answers = list(pool.ask(Question("die", 1, b"y" * 7), ("a", "b", "c")))
    assert sorted(site for site, _ in answers) == ["a", "b", "c"]
    fresh = set(pids(pool)) - before
    assert len(fresh) == 1
    first = json.loads((tmp_path / str(fresh.pop())).read_text().splitlines()[0])
    assert first[1] == 7


def test_a_worker_that_dies_twice_is_an_error_that_names_site_round_and_question(pool: Pool) -> None:
    with pytest.raises(
        SiteError, match=r"died twice while site 'a' answered 'always die' in round 3 .*fewer workers"
    ):
        list(pool.ask(Question("always die", 3, b"x"), ("a",)))


def test_an_error_at_a_site_comes_back_as_what_it_was(pool: Pool) -> None:
    with pytest.raises(MethodError, match="no a"):
        list(pool.ask(Question("fail", 0, b"x"), ("a",)))


def test_no_process_is_left_after_close(pool: Pool) -> None:
    list(pool.ask(Question("train", 0, b"x"), ("a", "b")))
    ids = pids(pool)
    assert len(ids) == 2
    assert all(alive(pid) for pid in ids)
    pool.close()
    assert not any(alive(pid) for pid in ids)
    pool.close()


# Real workers -----------------------------------------------------------------------------------------------


class Around:
    """An engine around another."""

    def __init__(self, engine: Engine) -> None:
        self.engine = engine

    def ask(self, question: Question, sites: Sequence[str]) -> Iterator[tuple[str, bytes]]:
        yield from self.engine.ask(question, sites)

    def close(self) -> None:
        self.engine.close()


class Shuffled(Around):
    """Answers arrive in another order each time."""

    def ask(self, question: Question, sites: Sequence[str]) -> Iterator[tuple[str, bytes]]:
        answers = list(self.engine.ask(question, sites))
        random.Random(f"{question.name} {question.round}").shuffle(answers)
        yield from answers


class Reversed(Around):
    def ask(self, question: Question, sites: Sequence[str]) -> Iterator[tuple[str, bytes]]:
        yield from reversed(list(self.engine.ask(question, sites)))


class Killer(Around):
    """Kills workers with SIGKILL: one before round 0 is asked, all after the first answer of round 1."""

    killed = 0

    def ask(self, question: Question, sites: Sequence[str]) -> Iterator[tuple[str, bytes]]:
        assert isinstance(self.engine, Pool)
        if (question.name, question.round) == ("train", 0):
            self._kill(pids(self.engine)[:1])
        for number, answer in enumerate(self.engine.ask(question, sites)):
            if (question.name, question.round, number) == ("train", 1, 0):
                self._kill(pids(self.engine))
            yield answer

    def _kill(self, ids: list[int]) -> None:
        for pid in ids:
            os.kill(pid, signal.SIGKILL)
            self.killed += 1


def private(folder: Path) -> dict[str, str]:
    """Digests of what the sites keep."""
    return {
        str(path.relative_to(folder)): digest(unflatten(load_file(path)))
        for path in sorted(folder.glob("sites/*/*.safetensors"))
    }


@pytest.mark.parametrize(
    "method",
    ["fedavg", "fca", *(pytest.param(name, marks=pytest.mark.sweep) for name in ("fedprox", "local"))],
)
def test_the_order_of_answers_does_not_matter(
    method: str, tiny: MakeConfig, once: Once, rows: Rows, tmp_path: Path
) -> None:
    straight = once(tiny(method))
    for order in (Reversed, Shuffled):
        folder = tmp_path / order.__name__
        other = run(tiny(method), folder, wrap=order)
        assert other.state_hash == straight.state_hash
        assert rows(folder) == rows(straight.folder)
        assert private(folder) == private(straight.folder)


@pytest.mark.slow
def test_killed_workers_change_nothing_and_none_is_left(
    tiny: MakeConfig, once: Once, rows: Rows, tmp_path: Path
) -> None:
    """As `tests/methods/test_conformance.py` has it for every method, with workers some of which are killed.
    (As a user's run starts them, they are in `test_fork.py`.)"""
    serial = once(tiny("fca"))
    killers: list[Killer] = []
    engines: list[Engine] = []
    ids: set[int] = set()

    def wrap(engine: Engine) -> Killer:
        engines.append(engine)
        killers.append(Killer(engine))
        return killers[0]

    def watch(event: str, facts: dict[str, Any]) -> None:
        ids.update(pids(engines[0]) if engines and isinstance(engines[0], Pool) else [])

    pooled = run(
        tiny("fca", engine={"kind": "pool", "workers": 2}), tmp_path / "pool", wrap=wrap, watch=watch
    )
    assert killers[0].killed == 3
    assert len(ids) >= 4
    assert not any(alive(pid) for pid in ids)
    assert pooled.state_hash == serial.state_hash
    assert rows(tmp_path / "pool") == rows(serial.folder)
    assert private(tmp_path / "pool") == private(serial.folder)
    assert private(tmp_path / "pool")


SLEEPER = """
import time
from pathlib import Path
from equipoise.methods import Method

class Sleeper(Method):
    '''Sleeps while it trains, but not when it is probed.'''
    def train(self, net, loc):
        if not loc.site.startswith("probe"):
            Path(__file__).with_name("busy-" + loc.site).touch()
            time.sleep(600)
        return super().train(net, loc)
"""

PARENT = """
import os, sys
from pathlib import Path
from equipoise.running import run

def wrap(engine):
    print(os.getpid(), *[worker._process.pid for worker in engine.workers], flush=True)
    return engine

run(Path(sys.argv[1]), sys.argv[2], wrap=wrap)
"""


@pytest.mark.slow
def test_workers_end_when_the_run_is_killed_even_in_the_middle_of_an_answer(
    forked: Callable[..., list[str]], tmp_path: Path
) -> None:
    (tmp_path / "sleeper.py").write_text(SLEEPER)
    (tmp_path / "config.toml").write_text(
        f'base = "{tmp_path}"\n[data]\nkind = "phantom"\nscale = 0.004\nimage_size = 16\n[partition]\nkind '
        f'= "iid"\nsites = 3\n'
        '[method]\nname = "sleeper.py:Sleeper"\n[engine]\nkind = "pool"\nworkers = 2\ndevice = "cpu"\n'
    )
    parent = subprocess.Popen(
        forked(PARENT, tmp_path / "config.toml", tmp_path / "run"),
        stdout=subprocess.PIPE,
        text=True,
    )
    try:
        assert parent.stdout is not None
        parent_id, *ids = (int(pid) for pid in parent.stdout.readline().split())
        assert len(ids) == 2
        wait(lambda: len(list(tmp_path.glob("busy-*"))) == 2, 90)
        os.kill(parent_id, signal.SIGKILL)
        assert parent.wait() == -signal.SIGKILL
    finally:
        parent.kill()
        parent.stdout.close()
    wait(lambda: not any(alive(pid) for pid in ids), 10)


def wait(until: Callable[[], bool], seconds: float) -> None:
    end = time.monotonic() + seconds
    while not until():
        assert time.monotonic() < end, "waited too long"
        time.sleep(0.05)
