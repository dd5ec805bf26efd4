"""One hostile site of four: whatever it sends, it is named and left out, and the run is that of the other three."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tests.hostile import COUNTED, SCORED, TRAIN, Bad
from tests.spoiled import Change, Spoil

from equipoise.config import Config
from equipoise.engine import Question
from equipoise.errors import Rejected
from equipoise.exchange import Bounds, check, unpack
from equipoise.running import Result, make_ledger, run
from equipoise.setup import make_host, material

pytestmark = pytest.mark.audit

MakeConfig = Callable[..., Config]
Rows = Callable[[Path], list[dict[str, Any]]]
HOSTILE = "site-02"
ROUNDS = 3
ROOT = Path(__file__).resolve().parents[2]


def four(tiny: MakeConfig, method: str = "fedavg", **sections: dict[str, Any]) -> Config:
    return tiny(method, **({"train": {"rounds": ROUNDS}, "partition": {"sites": 4}} | sections))


def lines(folder: Path, *events: str) -> list[dict[str, Any]]:
    found = [json.loads(line) for line in (folder / "journal.jsonl").read_text().splitlines()]
    return [line for line in found if line["event"] in events]


def spoiled(config: Config, folder: Path, change: Change, question: str, rounds: tuple[int, ...]) -> Result:
    return run(config, folder, wrap=lambda engine: Spoil(engine, HOSTILE, change, rounds, question))


@pytest.fixture(scope="module")
def lost(tiny: MakeConfig, tmp_path_factory: pytest.TempPathFactory) -> Callable[..., tuple[Result, Path]]:
    """lost(config, question): a run that loses the hostile site's answers, once for each."""
    made: dict[tuple[str, str], tuple[Result, Path]] = {}

    def get(config: Config, question: str, rounds: tuple[int, ...]) -> tuple[Result, Path]:
        key = (config.digest, question)
        if key not in made:
            folder = tmp_path_factory.mktemp("lost")
            made[key] = spoiled(config, folder, lambda data: None, question, rounds), folder
        return made[key]

    return get


def compare(
    config: Config, question: str, bad: Bad, name: str, folder: Path, lost: Callable[..., tuple[Result, Path]], rows: Rows
) -> None:
    """A run with this bad answer in all rounds but the last is the run that lost those answers; the journal says why."""
    change, reason = bad[name]
    rounds = tuple(range(ROUNDS - 1))
    found = spoiled(config, folder, change, question, rounds)
    expected, other = lost(config, question, rounds)
    assert found.state_hash == expected.state_hash
    assert rows(folder) == rows(other)
    turned_away = lines(folder, "rejected")
    assert [(line["site"], line["round"], line["question"]) for line in turned_away] == [(HOSTILE, r, question) for r in rounds]
    for line in turned_away:
        assert re.search(reason, line["reason"]), line["reason"]
        assert len(line["reason"]) < 400 and line["reason"].isprintable()


@pytest.mark.parametrize("name", TRAIN)
def test_a_bad_update_is_left_out(name: str, tiny: MakeConfig, lost: Any, rows: Rows, tmp_path: Path) -> None:
    compare(four(tiny, evaluate={"every": ROUNDS}), "train", TRAIN, name, tmp_path, lost, rows)


@pytest.mark.parametrize("name", COUNTED)
def test_bad_statistics_are_left_out(name: str, tiny: MakeConfig, lost: Any, rows: Rows, tmp_path: Path) -> None:
    compare(four(tiny, evaluate={"exact": False}), "evaluate", COUNTED, name, tmp_path, lost, rows)


@pytest.mark.parametrize("name", SCORED)
def test_bad_scores_are_left_out(name: str, tiny: MakeConfig, lost: Any, rows: Rows, tmp_path: Path) -> None:
    compare(four(tiny), "evaluate", SCORED, name, tmp_path, lost, rows)


# The guard alone, and memory -----------------------------------------------------------------------------------------


def honest(config: Config, folder: Path) -> Callable[[str], tuple[bytes, Callable[[bytes], None]]]:
    """honest(question): the site's answer, and what judges another in its place."""
    stuff = material(config)
    host, kept, sent = make_host(config, stuff, folder), dict[str, bytes](), dict[str, Any]()
    ledger, held = make_ledger(config, host, stuff), stuff.held()
    images = {site: {split: part.images for split, part in splits.items()} for site, splits in held.items()}
    bounds = Bounds(config.method.limits(len(stuff.samples.classes), config.train.epochs), images)

    class Tap:
        def ask(self, question: Question, sites: tuple[str, ...]) -> Any:
            for site in sites:
                data = host.answer(question.call(site), question.payload, question.each.get(site))
                if site == HOSTILE and question.name not in kept:
                    received = {name.partition("/")[2]: x for name, x in unpack(question.payload)[1].items()}
                    kept[question.name], sent[question.name] = data, received
                yield site, data

        def close(self) -> None: ...

    run(config, folder / "run", wrap=lambda engine: Tap())

    def get(question: str) -> tuple[bytes, Callable[[bytes], None]]:
        line = ledger.line(question, 0)
        assert line is not None
        return kept[question], lambda data: check(HOSTILE, data, line, config.exchange, bounds, 0, sent[question]) and None

    return get


BESIDE = ("moderately huge change", "huge change", "just below the norm")
"""bad only beside the answers of others"""


def judge(config: Config, folder: Path) -> dict[str, str]:
    """What the guard says of every bad update."""
    data, check = honest(config, folder)("train")
    check(data)
    found = {}
    for name, (change, _) in TRAIN.items():
        try:
            check(change(bytes(data)) or b"")
            found[name] = ""
        except Rejected as error:
            found[name] = str(error)
    return found


def test_the_guard_says_no_and_why(tiny: MakeConfig, tmp_path: Path) -> None:
    for name, reason in judge(four(tiny), tmp_path).items():
        assert name in BESIDE or re.search(TRAIN[name][1], reason), f"{name}: {reason}"
        assert bool(reason) == (name not in BESIDE)


CHILD = """
import json, resource, sys
from pathlib import Path
from equipoise.config import resolve
from equipoise.errors import Rejected
from tests.audit.test_hostile_site import honest
from tests.hostile import TRAIN

data, check = honest(resolve(json.loads(sys.argv[1])), Path(sys.argv[2]))("train")
before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
for change, _ in TRAIN.values():
    try:
        check(change(bytes(data)) or b"")
    except Rejected:
        pass
print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before)
"""


def test_nothing_is_allocated_by_a_messages_own_word(tiny: MakeConfig, tmp_path: Path) -> None:
    """In a process of its own: all bad updates, one after the other, take a few times the bytes of the largest, ten megabytes."""
    command = [sys.executable, "-c", CHILD, json.dumps(four(tiny).table()), str(tmp_path)]
    environment = os.environ | {"PYTHONPATH": f"{ROOT / 'src'}{os.pathsep}{ROOT}"}
    found = subprocess.run(command, env=environment, capture_output=True, text=True)
    assert found.returncode == 0, found.stderr
    assert int(found.stdout) < 200_000  # kilobytes
