"""A hostile coordinator: whatever it asks, a site answers with a refusal or a failure, journals it, and
touches nothing by its word."""

from __future__ import annotations

import json
import struct
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import count
from pathlib import Path
from typing import Any

import pytest
import torch
from flwr.app import Array, ArrayRecord, ConfigRecord, Message, RecordDict
from tests import doctored

from equipoise import __version__
from equipoise.config import Config
from equipoise.deploy import apps
from equipoise.deploy.site import SiteClient
from equipoise.engine.flower.wire import array, unwrap, wrap
from equipoise.exchange import pack, unpack
from equipoise.server.journal import read as read_journal

pytestmark = pytest.mark.audit

MakeConfig = Callable[..., Config]
SITE = "site-00"
WORD = "Qx7planted"
"""stands in every name and path the coordinator makes up; it must reach no file, folder, module or process"""
EVENTS = (
    "open",
    "import",
    "exec",
    "compile",
    "subprocess.Popen",
    "socket.connect",
    "os.",
    "shutil.",
    "tempfile.",
    "ctypes.",
)

seen: list[tuple[str, str]] = []
watched = [False]


def _hook(event: str, facts: tuple[Any, ...]) -> None:
    if watched[0] and event.startswith(EVENTS):
        text = " ".join(str(fact)[:500] for fact in facts)
        if WORD in text:
            seen.append((event, text))


@pytest.fixture(scope="module", autouse=True)
def _listening() -> None:
    sys.addaudithook(_hook)  # stays until the process ends, and does nothing but here


@contextmanager
def untouched(folder: Path) -> Iterator[None]:
    """Nothing was opened, made or imported by the coordinator's word, and no file came or went but for
    journal and tickets."""

    def files() -> set[str]:
        return {str(path) for path in folder.rglob("*")}

    before = files()
    seen.clear()
    watched[0] = True
    try:
        yield
    finally:
        watched[0] = False
    assert not seen, seen[:3]
    assert files() == before


@dataclass
class Asked:
    """A desk that has answered one question, that question and its bytes, and the invitation before it."""

    desk: SiteClient
    table: dict[str, Any]
    data: dict[str, bytes]
    tickets: Iterator[int]
    message: Message

    def newer(self, **changes: Any) -> dict[str, Any]:
        return self.table | {"ticket": next(self.tickets)} | changes

    def letter(self, **changes: Any) -> dict[str, Any]:
        run = self.table["run"]
        config = doctored.table(self.desk.folder / "runs" / run / "config.json")
        letter = {
            "run": run,
            "site": SITE,
            "round": 0,
            "question": "",
            "config": config,
            "version": __version__,
        }
        return letter | {"ticket": next(self.tickets)} | changes

    def last(self) -> dict[str, Any]:
        return read_journal(self.desk.folder / "journal.jsonl")[0][-1]

    def state(self) -> dict[str, bytes]:
        """What the site remembers of the run."""
        private = self.desk.folder / "runs" / self.table["run"] / "private"
        return {str(path): path.read_bytes() for path in sorted(private.rglob("*.safetensors"))}


@pytest.fixture(scope="module")
def asked(tiny: MakeConfig, town: Any) -> Asked:
    there = town(tiny("fca", train={"rounds": 2}))
    kept: list[Message] = []

    def tap(message: Message, reply: Message) -> Message:
        if message.metadata.message_type == "train.train":
            kept.append(message)
        return reply

    there.wire.change = tap
    there.go()
    message = [one for one in kept if unwrap(one.content)[0]["site"] == SITE][-1]
    table, data = unwrap(message.content)
    return Asked(apps.desk(str(there.sites[SITE])), table, data, count(table["ticket"] + 10**12), message)


def refused(asked: Asked, kind: str, table: dict[str, Any], data: dict[str, bytes]) -> None:
    """The desk says no, in a sentence or by the name of an error, and its journal has it; private state stays
    as it was."""
    before, lines = asked.state(), asked.last()["seq"]
    with untouched(asked.desk.folder):
        reply, answer = asked.desk.reply(kind, table, data)
    assert answer is None and ("refused" in reply or "failed" in reply) and "card" not in reply
    json.dumps(reply)
    assert asked.last()["event"] in ("refused", "failed") and asked.last()["seq"] > lines
    assert asked.state() == before


NESTED: Any = [[[[[[[[1]]]]]]]]
ODD: dict[str, Any] = {
    "none": None,
    "true": True,
    "minus": -1,
    "half": 0.5,
    "endless": 10**40,
    "empty": "",
    "path": f"../../{WORD}",
    "root": f"/{WORD}/passwd",
    "zero byte": f"{WORD}\x00",
    "lines": f"{WORD}\n",
    "long": WORD * 100_000,
    "signs": f"\x1b[2J\u202e{WORD}",
    "half a sign": "\ud800",
    "list": [WORD],
    "table": {WORD: WORD},
    "nested": NESTED,
}
FIELDS = ("run", "ticket", "site", "round", "question", "read", "write", "keep", "tuned")
ALLOWED = {("read", "none"), ("write", "none"), ("tuned", "true"), ("ticket", "endless")}
"""what is no offence"""


def odd_fields(fields: Sequence[str]) -> list[tuple[str, str]]:
    return [(field, odd) for field in fields for odd in ODD if (field, odd) not in ALLOWED]


@pytest.mark.parametrize(("field", "odd"), odd_fields(FIELDS))
def test_a_question_with_an_odd_field_is_refused(field: str, odd: str, asked: Asked) -> None:
    refused(asked, "train.train", asked.newer(**{field: ODD[odd]}), asked.data)


@pytest.mark.parametrize("field", FIELDS)
def test_a_question_without_a_field_is_refused(field: str, asked: Asked) -> None:
    table = asked.newer()
    del table[field]
    refused(asked, "train.train", table, asked.data)


@pytest.mark.parametrize(
    "kind",
    [
        "",
        "train",
        "train.",
        "train.train.train",
        "query.train",
        "system",
        WORD,
        f"train.{WORD}",
        "train.loss",
        "query.evaluate",
    ],
)
def test_a_question_of_another_kind_is_refused(kind: str, asked: Asked) -> None:
    refused(asked, kind, asked.newer(), asked.data)


@pytest.mark.parametrize(
    "question", ["loss", "predict", "init", "round", "finish", "model_dump", "__init__", "questions", WORD]
)
def test_what_is_no_question_is_refused(question: str, asked: Asked) -> None:
    refused(asked, f"train.{question}", asked.newer(question=question), asked.data)


def test_a_replay_is_refused(asked: Asked) -> None:
    table = asked.newer()
    assert asked.desk.reply("train.train", table, asked.data)[1] is not None
    for _ in range(2):
        refused(asked, "train.train", table, asked.data)
    refused(asked, "train.train", table | {"ticket": 1}, asked.data)


@pytest.mark.parametrize("version", ["0.0.0", f"{WORD}.0", "0.0/../../x", "0.0\n", "0.0\x00", "..", "~"])
@pytest.mark.parametrize("field", ["read", "write", "keep"])
def test_a_version_is_no_path(field: str, version: str, asked: Asked) -> None:
    refused(
        asked, "train.train", asked.newer(**{field: [version] if field == "keep" else version}), asked.data
    )


@pytest.mark.parametrize("field", ["read", "write"])
def test_a_version_that_is_no_file_name_is_a_failure(field: str, asked: Asked) -> None:
    refused(asked, "train.train", asked.newer(**{field: "9" * 300 + ".0"}), asked.data)


def model_of(asked: Asked) -> dict[str, torch.Tensor]:
    return unpack(asked.data["payload"])[1]


def message_of(table: str, body: bytes = b"") -> bytes:
    raw = table.encode()
    raw += b" " * (-len(raw) % 8)
    return struct.pack("<Q", len(raw)) + raw + body


ONE = '"dtype":"F32","shape":[1],"data_offsets":[0,4]'
PAYLOADS: dict[str, Callable[[Asked], Any]] = {
    "nothing": lambda asked: b"",
    "garbage": lambda asked: bytes(range(256)),
    "zeros": lambda asked: bytes(50_000_000),
    "cut": lambda asked: bytes(asked.data["payload"][:-1]),
    "longer": lambda asked: bytes(asked.data["payload"]) + bytes(8),
    "table of 4 GiB": lambda asked: struct.pack("<Q", 2**32) + bytes(64),
    "nested without end": lambda asked: message_of("[" * 100_000),
    "giant shape": lambda asked: message_of(
        '{"__metadata__":{"equipoise":"{}"},"model/x":{"dtype":"F32","shape":[1099511627776],"data_offsets":[0,4]}}',
        bytes(4),
    ),
    "names nested deep": lambda asked: message_of(
        f'{{"__metadata__":{{"equipoise":"{{}}"}},"model/{"x/" * 1200}y":{{{ONE}}}}}', bytes(4)
    ),
    "tensor and branch": lambda asked: pack({}, {"model": torch.ones(1), "model/x": torch.ones(1)}),
    "no model": lambda asked: pack({}, {}),
    "unknown tensor": lambda asked: pack({}, {**model_of(asked), f"model/{WORD}": torch.ones(2)}),
    "path for a name": lambda asked: pack({}, {**model_of(asked), f"model/../../{WORD}": torch.ones(2)}),
    "other shapes": lambda asked: pack({}, {name: x[None] for name, x in model_of(asked).items()}),
    "a model that is a number": lambda asked: pack({}, {"model": torch.ones(1)}),
}


@pytest.mark.parametrize("name", PAYLOADS)
def test_a_question_with_a_bad_payload_is_refused(name: str, asked: Asked) -> None:
    payload = PAYLOADS[name](asked)
    refused(asked, "train.train", asked.newer(), {"payload": payload})
    if name not in ("nothing", "no model"):  # nothing more than the broadcast is no offence
        refused(asked, "train.train", asked.newer(), asked.data | {"extra": payload})


def test_a_question_without_a_payload_is_refused(asked: Asked) -> None:
    refused(asked, "train.train", asked.newer(), {})
    refused(asked, "train.train", asked.newer(), {WORD: asked.data["payload"]})


# Invitations ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("field", "odd"), odd_fields(("run", "site", "version", "config", "ticket")))
def test_an_invitation_with_an_odd_field_is_refused(field: str, odd: str, asked: Asked) -> None:
    refused(asked, "query", asked.letter(**{field: ODD[odd]}), {})


CONFIGS: dict[str, dict[str, Any]] = {
    "nothing": {},
    "unknown section": {WORD: {WORD: WORD}},
    "sections that are lists": {"train": [], "method": [], "net": []},
    "sections that are text": {"train": WORD, "method": WORD},
    "unknown method": {"method": {"name": WORD}},
    "method of another kind": {"method": {"name": [WORD]}},
    "no method": {"train": {"rounds": 2}},
    "unknown option": {"method": {"name": "fca", WORD: 1}},
    "endless rounds": {"method": {"name": "fca"}, "train": {"rounds": 10**40}},
    "minus rounds": {"method": {"name": "fca"}, "train": {"rounds": -1}},
    "nested": {"method": {"name": "fca", "lambda_own": NESTED}},
    "method nobody approved": {"method": {"name": "fedavg"}},
}


@pytest.mark.parametrize("name", CONFIGS)
def test_an_invitation_with_a_bad_config_is_refused(name: str, asked: Asked) -> None:
    """Also to a run that is new; a config that differs from the accepted one is refused anyway."""
    refused(asked, "query", asked.letter(config=CONFIGS[name]), {})


def test_data_named_by_the_coordinator_are_never_looked_at(asked: Asked) -> None:
    """Sections that are a site's own are not taken from an invitation, whatever they say."""
    own = asked.letter()["config"]
    strange = own | {
        "data": {"kind": "csv", "path": f"/{WORD}.csv"},
        "partition": {"kind": WORD},
        "engine": {"device": WORD},
        "base": f"/{WORD}",
    }
    refused(asked, "query", asked.letter(config=strange), {})  # another config than the one that was accepted
    with untouched(asked.desk.folder):
        assert "card" in asked.desk.reply("query", asked.letter(), {})[0]


# Messages ---------------------------------------------------------------------------------------------------


def text(value: Any) -> RecordDict:
    return RecordDict({"table": ConfigRecord({"json": value})})


MESSAGES: dict[str, RecordDict] = {
    "nothing": RecordDict(),
    "no table": RecordDict({"bytes": ArrayRecord({"payload": array(b"x")})}),
    "other records": RecordDict({"table": ConfigRecord({"json": "{}"}), WORD: ConfigRecord({})}),
    "nested deep": text('{"a":' * 1200 + "1" + "}" * 1200),
    "nested without end": text("[" * 1_000_000),
    "nested a little": text('{"run":' + "[" * 30 + "]" * 30 + "}"),
    "too long": text('{"run":"' + "x" * 2**22 + '"}'),
    "NaN": text('{"ticket": NaN}'),
    "said twice": text('{"run": "a", "run": "b"}'),
    "many digits": text('{"ticket": ' + "9" * 5000 + "}"),
    "a list": text("[]"),
    "a number": text("5"),
    "bytes": text(b"{}"),
    "numbers": text([1, 2]),
    "empty table": text("{}"),
    "other arrays": RecordDict(
        {
            "table": ConfigRecord({"json": "{}"}),
            "bytes": ArrayRecord({"payload": Array("float32", (2,), "numpy.ndarray", bytes(8))}),
        }
    ),
}


@pytest.mark.parametrize("kind", ["query", "train.train"])
@pytest.mark.parametrize("name", MESSAGES)
def test_a_bad_message_is_refused_and_journalled(name: str, kind: str, asked: Asked) -> None:
    message, lines = Message(MESSAGES[name], 2, kind), asked.last()["seq"]
    message.metadata.__dict__["_message_id"] = "m"
    with untouched(asked.desk.folder):
        reply = apps.respond(message, asked.desk)
    table, data = unwrap(reply.content)
    assert not data and ("refused" in table or "failed" in table)
    assert asked.last()["event"] in ("refused", "failed") and asked.last()["seq"] > lines


def test_an_honest_question_is_still_answered(asked: Asked) -> None:
    """After all of that."""
    reply, answer = asked.desk.reply("train.train", asked.newer(), asked.data)
    assert answer is not None and "refused" not in reply and unwrap(wrap(reply))[0] == reply
