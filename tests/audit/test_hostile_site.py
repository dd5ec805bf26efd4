"""One hostile site of four: whatever it sends, it is named and left out, and the run is that of the other
three."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from flwr.app import Array, ArrayRecord, ConfigRecord, Error, Message, RecordDict
from tests.hostile import COUNTED, SCORED, TRAIN, Bad
from tests.light import LIGHT
from tests.spoiled import Change, Spoil, delta
from torch import Tensor

from equipoise import setup
from equipoise.config import Config
from equipoise.data.samples import Samples
from equipoise.engine import Engine, Question
from equipoise.engine.flower.wire import array, unwrap, wrap
from equipoise.errors import Rejected
from equipoise.exchange import Bounds, check, decode_upload, encode_upload, unpack
from equipoise.leaves import Mean
from equipoise.methods import METHODS
from equipoise.partition import Census, Holding
from equipoise.running import Result, prepare, run
from equipoise.setup import make_host, material
from equipoise.tree import flatten, unflatten

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
    config: Config,
    question: str,
    bad: Bad,
    name: str,
    folder: Path,
    lost: Callable[..., tuple[Result, Path]],
    rows: Rows,
) -> None:
    """A run with this bad answer in all rounds but the last is the run that lost those answers; the journal
    says why."""
    change, reason = bad[name]
    rounds = tuple(range(ROUNDS - 1))
    found = spoiled(config, folder, change, question, rounds)
    expected, other = lost(config, question, rounds)
    assert found.state_hash == expected.state_hash
    assert rows(folder) == rows(other)
    turned_away = lines(folder, "rejected")
    assert [(line["site"], line["round"], line["question"]) for line in turned_away] == [
        (HOSTILE, r + 1, question) for r in rounds
    ]
    for line in turned_away:
        assert re.search(reason, line["reason"]), line["reason"]
        assert len(line["reason"]) < 400 and line["reason"].isprintable()


@pytest.mark.parametrize("name", TRAIN)
def test_a_bad_update_is_left_out(name: str, tiny: MakeConfig, lost: Any, rows: Rows, tmp_path: Path) -> None:
    compare(four(tiny, evaluate={"every": ROUNDS}), "train", TRAIN, name, tmp_path, lost, rows)


@pytest.mark.parametrize("name", COUNTED)
def test_bad_statistics_are_left_out(
    name: str, tiny: MakeConfig, lost: Any, rows: Rows, tmp_path: Path
) -> None:
    compare(four(tiny, evaluate={"exact": False}), "evaluate", COUNTED, name, tmp_path, lost, rows)


@pytest.mark.parametrize("name", SCORED)
def test_bad_scores_are_left_out(name: str, tiny: MakeConfig, lost: Any, rows: Rows, tmp_path: Path) -> None:
    compare(four(tiny), "evaluate", SCORED, name, tmp_path, lost, rows)


# The guard alone, and memory --------------------------------------------------------------------------------


def honest(config: Config, folder: Path) -> Callable[[str], tuple[bytes, Callable[[bytes], None]]]:
    """honest(question): the site's answer, and what judges another in its place."""
    dataset = material(config)
    host, kept, sent = make_host(config, dataset, folder), dict[str, bytes](), dict[str, Any]()
    census = dataset.facts.census
    ledger, images = prepare(config, dataset.facts, dataset).ledger, census.images()
    bounds = Bounds(config.method.limits(len(dataset.samples.classes), config.train.epochs), images)

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
        return kept[
            question
        ], lambda data: check(HOSTILE, data, line, config.exchange, bounds, 0, sent[question]) and None

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
from tests.light import LIGHT
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
    """In a process of its own: all bad updates, one after the other, take a few times the bytes of the
    largest, ten megabytes."""
    command = [sys.executable, "-c", CHILD, json.dumps(four(tiny).table()), str(tmp_path)]
    environment = os.environ | {"PYTHONPATH": f"{ROOT / 'src'}{os.pathsep}{ROOT}"}
    found = subprocess.run(command, env=environment, capture_output=True, text=True)
    assert found.returncode == 0, found.stderr
    assert int(found.stdout) < 200_000  # kilobytes


# Through Flower's messages ----------------------------------------------------------------------------------

Reply = Callable[[Message], Any]


def told(**changes: Any) -> Reply:
    """A reply whose table says something else beside the right answer."""

    def spoil(reply: Message) -> RecordDict:
        table, data = unwrap(reply.content)
        return wrap(table | changes, {"answer": array(data["answer"])})

    return spoil


def as_text(change: Callable[[str], Any]) -> Reply:
    """A reply whose table is other text."""

    def spoil(reply: Message) -> RecordDict:
        table, data = unwrap(reply.content)
        return RecordDict({"table": ConfigRecord({**data, "json": change(json.dumps(table))})})

    return spoil


def with_arrays(**arrays: Any) -> Reply:
    """A reply with other arrays, each in a record of its own as large answers are."""

    def spoil(reply: Message) -> RecordDict:
        table, data = unwrap(reply.content)
        made = {name: array(data["answer"]) if one is None else one for name, one in arrays.items()}
        text = ConfigRecord({"json": json.dumps(table)})
        return RecordDict({"table": text, "bytes": ArrayRecord(made)})

    return spoil


REPLIES: dict[str, tuple[Reply, str, str]] = {
    "old ticket": (told(ticket=5), "ignored", "of another ticket"),
    "ticket that is true": (told(ticket=True), "ignored", "of another ticket"),
    "ticket in words": (told(ticket="5"), "ignored", "of another ticket"),
    "no ticket": (told(ticket=None), "ignored", "of another ticket"),
    "other run": (told(run="0" * 16), "ignored", "of another run"),
    "run that is a list": (told(run=["0"]), "ignored", "of another run"),
    "other site": (told(site="site-00"), "ignored", "of another site"),
    "other round": (told(round=99), "ignored", "of another round"),
    "other question": (told(question="evaluate"), "ignored", "of another question"),
    "question that is a table": (told(question={"a": {}}), "ignored", "of another question"),
    "refusal that is a table": (told(refused={"a": ["b"]}), "refused", "{'a': ['b']}"),
    "endless refusal": (told(refused="\x1b[2Jno" * 100_000), "refused", "?[2Jno"),
    "endless failure": (told(failed="\u202eOSError" * 10_000), "failed", "?OSError"),
    "nested deep": (
        as_text(lambda text: '{"a":' * 1200 + "1" + "}" * 1200),
        "ignored",
        "not a message of ours",
    ),
    "nested without end": (as_text(lambda text: "[" * 100_000), "ignored", "not a message of ours"),
    "nested a little": (
        as_text(lambda text: text[:-1] + ',"x":' + "[" * 30 + "]" * 30 + "}"),
        "ignored",
        "not a message of ours",
    ),
    "too long": (
        as_text(lambda text: text[:-1] + ',"x":"' + "x" * 2**22 + '"}'),
        "ignored",
        "not a message of ours",
    ),
    "NaN": (as_text(lambda text: text[:-1] + ',"x":NaN}'), "ignored", "not a message of ours"),
    "said twice": (
        as_text(lambda text: text[:-1] + ',"site":"site-02"}'),
        "ignored",
        "not a message of ours",
    ),
    "a list": (as_text(lambda text: "[]"), "ignored", "not a message of ours"),
    "no text": (as_text(lambda text: b"{}"), "ignored", "not a message of ours"),
    "a list of texts": (as_text(lambda text: [text]), "ignored", "not a message of ours"),
    "no records": (lambda reply: RecordDict(), "ignored", "not a message of ours"),
    "other records": (
        lambda reply: RecordDict({**reply.content, "more": ConfigRecord({"a": 1})}),
        "ignored",
        "not a message of ours",
    ),
    "no answer": (with_arrays(), "ignored", "sent no answer"),
    "answer of another name": (with_arrays(other=None), "ignored", "sent no answer"),
    "answer as numbers": (
        with_arrays(answer=Array("float32", (2,), "numpy.ndarray", bytes(8))),
        "ignored",
        "not a message of ours",
    ),
    "answer that is empty": (
        with_arrays(answer=Array("uint8", (0,), "safetensors", b"")),
        "rejected",
        "message",
    ),
    "answer of another size than it says": (
        with_arrays(answer=Array("uint8", (2**40,), "safetensors", b"short")),
        "rejected",
        "message",
    ),
    "an error": (lambda reply: Error(0, "\x1b[2J" * 1000), "failed", "Flower's error 0"),
}


def test_a_bad_reply_is_left_out(tiny: MakeConfig, town: Any, tmp_path: Path) -> None:
    """One of them in every round but the last."""
    bad = len(REPLIES)
    config = four(tiny, train={"rounds": bad + 1}, evaluate={"every": bad + 1})
    there, parts = town(config, retries=0), list(REPLIES.values())

    def spoil(asked: Message, reply: Message) -> Message:
        table = unwrap(asked.content)[0]
        if asked.metadata.message_type != "train.train" or table["site"] != HOSTILE or table["round"] >= bad:
            return reply
        made = parts[table["round"]][0](reply)
        return Message(made, reply_to=asked)

    there.wire.change = spoil
    found = there.go()
    lost = replace(config, evaluate=there.config.evaluate)
    assert (
        found.state_hash == spoiled(lost, tmp_path, lambda data: None, "train", tuple(range(bad))).state_hash
    )
    turned_away = lines(there.run, "ignored", "refused", "failed", "rejected")
    assert [(line["site"], line["round"]) for line in turned_away] == [(HOSTILE, r + 1) for r in range(bad)]
    for line, (name, (_, event, reason)) in zip(turned_away, REPLIES.items(), strict=True):
        assert line["event"] == event and reason in line["reason"], f"{name}: {line}"
        assert len(line["reason"]) < 700 and line["reason"].isprintable()


CARDS: dict[str, Any] = {
    "none": None,
    "text": "x" * 10**6,
    "empty": {},
    "giant": {"shape": [10**9, 10**9, 3]},
    "negative": {"images": {"train": -1, "validation": 0, "test": 0}},
    "classes": {"classes": [f"class {i}" for i in range(5000)]},
    "long name": {"classes": ["a", "b" * 10**6]},
    "nested": {"classes": [[[[["a"]]]]]},
}


@pytest.mark.parametrize("name", CARDS)
def test_a_bad_card_is_left_out(name: str, tiny: MakeConfig, town: Any) -> None:
    """The others begin, and come to the bits of a run the site refused to join."""
    results = []
    for refuses in (False, True):
        there = town(four(tiny, train={"rounds": 1}), retries=0)

        def spoil(asked: Message, reply: Message, refuses: bool = refuses) -> Message:
            table = unwrap(reply.content)[0]
            if asked.metadata.message_type != "query" or table["site"] != HOSTILE:
                return reply
            card, bad = table.pop("card"), CARDS[name]
            said = (
                {"refused": "no"}
                if refuses
                else {"card": card | bad if isinstance(bad, dict) and bad else bad}
            )
            return Message(wrap(table | said), reply_to=asked)

        there.wire.change = spoil
        results.append(there.go())
        named = lines(there.run, "refused") if refuses else lines(there.run, "left out", "ignored")
        assert [line["site"] for line in named] == [HOSTILE]
        assert len(named[0]["reason"]) < 700 and named[0]["reason"].isprintable()
    assert results[0].state_hash == results[1].state_hash
    assert results[0].history[0]["sites"] == ["site-00", "site-01", "site-03"]


# Every method -----------------------------------------------------------------------------------------------


def everywhere(change: Callable[[Tensor], Tensor], weight: float = 1.0, statistics: bool = True) -> Change:
    """An answer to any question with other numbers; `statistics`: those of BatchNorm, too."""

    def spoil(data: bytes) -> bytes:
        header, upload = decode_upload(data)
        leaves: dict[str, Any] = {}
        for name, leaf in upload.items():
            flat = flatten({"x": leaf.value})
            made = unflatten(
                {path: change(x) if statistics or "running" not in path else x for path, x in flat.items()}
            )
            leaves[name] = (
                Mean(made["x"], leaf.weight * weight) if isinstance(leaf, Mean) else type(leaf)(made["x"])
            )
        return encode_upload(leaves, header)

    return spoil


ANYWHERE: tuple[Change, ...] = (
    everywhere(lambda x: x * 20),
    everywhere(lambda x: x * 20 if x.is_floating_point() else x, statistics=False),
    everywhere(lambda x: x * -20 if x.is_floating_point() else x, statistics=False),
    everywhere(lambda x: x * 0),
    everywhere(lambda x: x, weight=0.0),
    everywhere(lambda x: x * torch.nan if x.is_floating_point() else x),
    everywhere(lambda x: -x),
    everywhere(lambda x: torch.full_like(x, -1)),
    everywhere(lambda x: torch.ones_like(x)),
    everywhere(lambda x: x * 10**4),
)


class Hostile:
    """An engine in which one site spoils every answer, in each round in another way."""

    def __init__(self, engine: Engine) -> None:
        self.engine = engine

    def ask(self, question: Question, sites: Sequence[str]) -> Iterator[tuple[str, bytes]]:
        for site, data in self.engine.ask(question, sites):
            yield site, ANYWHERE[question.round % len(ANYWHERE)](data) if site == HOSTILE else data

    def close(self) -> None:
        self.engine.close()


@pytest.mark.parametrize("name", [name for name, cls in METHODS.items() if cls.standard != "pooled"])
def test_no_method_is_ended_by_one_site(name: str, tmp_path: Path) -> None:
    """The run goes on to its end, no honest answer is turned away, and the model is one of numbers."""
    multi = METHODS[name].tasks == ("multi",)
    table = {
        "data": {"kind": "phantom", "scale": 0.008, "image_size": 16, "task": METHODS[name].tasks[0]},
        "partition": {"kind": "iid", "sites": 4, "missing": 3 if multi else 0},
        "method": {"name": name, **LIGHT.get(name, {})},
        "train": {"rounds": len(ANYWHERE), "batch_size": 16, "lr": 0.003},
        "engine": {"device": "cpu"},
        "evaluate": {"every": 3, "exact": False},
    }
    result = run(table, tmp_path, wrap=Hostile)
    assert {line["site"] for line in lines(tmp_path, "rejected")} == {HOSTILE}
    assert all(
        bool(torch.isfinite(x).all()) for x in flatten(result.server).values() if x.is_floating_point()
    )
    assert result.metrics["test"]["generalisation"]["balanced_accuracy"] is not None


@pytest.mark.parametrize("factor", [25.0, -25.0, 250.0])
def test_a_site_that_lies_about_its_images_cannot_end_the_run(
    factor: float, tiny: MakeConfig, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It says it has a million, so its weight decides alone; the others' answers still count, round after
    round."""
    count = setup.count

    def lied(samples: Samples, holdings: Sequence[Holding]) -> Census:
        found = count(samples, holdings)
        found.sites.images[list(found.sites).index(HOSTILE), 0] = 10**6
        return found

    monkeypatch.setattr(setup, "count", lied)

    def stretch(value: dict[str, Tensor]) -> None:
        value.update({name: x * factor for name, x in value.items() if "running" not in name})

    config = four(tiny, train={"rounds": 6})
    spoiled(config, tmp_path, delta(stretch, lambda weight: 1e6), "train", tuple(range(6)))
    assert {line["site"] for line in lines(tmp_path, "rejected", "slowed")} <= {HOSTILE}
