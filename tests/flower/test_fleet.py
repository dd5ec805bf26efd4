"""The coordinator's end: late, lost, spoiled and foreign answers; sites that come, go and come back."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import pytest
from flwr.app import ConfigRecord, Error, Message, RecordDict

from equipoise.engine import Question
from equipoise.engine.flower.fleet import FlowerEngine
from equipoise.engine.flower.wire import array, message_type, unwrap, wrap
from equipoise.errors import SiteError
from equipoise.exchange.codec import CodecError

RUN = "00112233445566aa"
QUESTION = Question("look", 3, b"payload", {"b": b"only b"}, {}, "3.0", {})


@dataclass
class Node:
    node_id: int
    public_key: bytes
    last_activated_at: str = "once"


@dataclass
class Desks:
    """A grid of scripted nodes: `script[node]` has what a node does with its first, second, … message."""

    script: dict[int, list[Callable[[Message], Message | None]]]
    nodes: list[Node] = field(default_factory=lambda: [Node(11, b"key a"), Node(12, b"key b")])
    asked: list[Message] = field(default_factory=list)
    waiting: dict[str, Message] = field(default_factory=dict)

    def get_nodes(self) -> list[Node]:
        return self.nodes

    def push_messages(self, messages: Sequence[Message]) -> list[str]:
        numbers = []
        for message in messages:
            number = f"m{len(self.asked)}"
            message.metadata.__dict__["_message_id"] = number
            self.asked.append(message)
            steps = self.script[message.metadata.dst_node_id]
            reply = steps.pop(0)(message) if steps else None
            if reply is not None:
                self.waiting[number] = reply
            numbers.append(number)
        return numbers

    def pull_messages(self, message_ids: Sequence[str]) -> Iterator[Message]:
        for number in [one for one in self.waiting if one in message_ids]:
            yield self.waiting.pop(number)


def good(message: Message) -> Message:
    table, data = unwrap(message.content)
    told = b"|".join(data[name] for name in sorted(data))
    return Message(wrap(echo(table), {"answer": array(told)}), reply_to=message)


def echo(table: dict[str, Any], **changes: Any) -> dict[str, Any]:
    return {key: table[key] for key in ("run", "ticket", "site", "round", "question")} | changes


def says(**changes: Any) -> Callable[[Message], Message]:
    """An answer whose echo is changed."""

    def reply(message: Message) -> Message:
        return Message(
            wrap(echo(unwrap(message.content)[0], **changes), {"answer": array(b"x")}), reply_to=message
        )

    return reply


def silence(message: Message) -> None:
    return None


def broken(message: Message) -> Message:
    return Message(Error(0, "secret reason"), reply_to=message)


def gone(message: Message) -> Message:
    return Message(Error(5, "secret reason"), reply_to=message)


def strange(message: Message) -> Message:
    return Message(RecordDict({"other": ConfigRecord({"a": 1})}), reply_to=message)


def empty(message: Message) -> Message:
    return Message(wrap(echo(unwrap(message.content)[0])), reply_to=message)


@dataclass
class Told:
    lines: list[dict[str, Any]] = field(default_factory=list)

    def __call__(self, event: str, **facts: Any) -> None:
        json.dumps(facts)  # as a journal would
        self.lines.append({"event": event, **facts})

    def of(self, site: str | None) -> list[str]:
        return [line["event"] for line in self.lines if line.get("site") == site]


def fleet(desks: Desks, told: Told, deadline: float = 0.3, retries: int = 1) -> FlowerEngine:
    return FlowerEngine(
        desks, RUN, {"a": b"key a", "b": b"key b"}, told, deadline=deadline, retries=retries, poll=0.01
    )


def ask(desks: Desks, told: Told, **options: Any) -> dict[str, bytes]:
    return dict(fleet(desks, told, **options).ask(QUESTION, ["a", "b"]))


def test_each_site_gets_what_is_for_it() -> None:
    told, desks = Told(), Desks({11: [good], 12: [good]})
    assert ask(desks, told) == {"a": b"payload", "b": b"only b|payload"}
    assert not told.lines
    assert (
        {message.metadata.message_type for message in desks.asked}
        == {"train.look"}
        == {message_type(QUESTION)}
    )
    tables = [unwrap(message.content)[0] for message in desks.asked]
    assert [table["site"] for table in tables] == ["a", "b"] and {table["run"] for table in tables} == {RUN}
    assert tables[0]["ticket"] < tables[1]["ticket"]


def test_a_letter_has_the_time_of_a_question() -> None:
    """It is answered in no time, but the site may be at work for another run."""
    told, desks = Told(), Desks({11: [good, good], 12: [good, good]})
    engine = fleet(desks, told, deadline=500.0)
    assert dict(engine.relay("share", {"a": b"for a", "b": b"for b"}, 0)) == {"a": b"for a", "b": b"for b"}
    dict(engine.ask(QUESTION, ["a", "b"]))
    letters, questions = desks.asked[:2], desks.asked[2:]
    assert {one.metadata.ttl for one in letters} == {one.metadata.ttl for one in questions} == {560.0}


def test_a_question_that_changes_nothing_is_a_query() -> None:
    assert message_type(Question("look", 0, b"")) == "query.look"


@pytest.mark.parametrize(
    "first", [silence, broken, strange, says(ticket=1), says(run="other"), says(site="b"), says(round=2)]
)
def test_what_is_no_answer_is_asked_again(first: Callable[[Message], Message | None]) -> None:
    told, desks = Told(), Desks({11: [first, good], 12: [good]})
    assert ask(desks, told, deadline=0.3 if first is silence else 5.0) == {
        "a": b"payload",
        "b": b"only b|payload",
    }
    assert told.of("a")[-1] == "asked again" and not told.of("b")
    assert "secret" not in json.dumps(told.lines)


@pytest.mark.parametrize("bad", [silence, gone, broken, strange, says(ticket=1), says(question="other")])
def test_a_site_that_never_answers_is_left_out(bad: Callable[[Message], Message | None]) -> None:
    told, desks = Told(), Desks({11: [bad, bad, good], 12: [good]})
    assert ask(desks, told, deadline=0.2) == {"b": b"only b|payload"}
    assert len([message for message in desks.asked if message.metadata.dst_node_id == 11]) == 2
    assert told.of("a")[-1] == {silence: "silent", gone: "silent", broken: "failed"}.get(bad, "ignored")


def test_a_refusal_is_not_asked_again() -> None:
    told, desks = Told(), Desks({11: [says(refused="policy rule 'each': no"), good], 12: [good]})
    assert ask(desks, told) == {"b": b"only b|payload"}
    assert told.lines == [
        {"event": "refused", "site": "a", "round": 4, "question": "look", "reason": "policy rule 'each': no"}
    ]


def test_a_failure_is_asked_again_as_often_as_retries_say() -> None:
    told, desks = Told(), Desks({11: [says(failed="OSError")] * 3 + [good], 12: [good]})
    assert ask(desks, told, retries=3, deadline=5.0)["a"] == b"payload"
    assert told.of("a").count("failed") == 3


def test_no_answer_in_an_answer() -> None:
    told, desks = Told(), Desks({11: [empty], 12: [good]})
    assert ask(desks, told) == {"b": b"only b|payload"}
    assert told.of("a") == ["ignored"]


def test_an_answer_to_nothing_is_ignored() -> None:
    told, desks = Told(), Desks({11: [good], 12: [good]})

    class Stuffed(Desks):
        def pull_messages(self, message_ids: Sequence[str]) -> Iterator[Message]:
            foreign = good(self.asked[0])
            foreign.metadata.__dict__["_reply_to_message_id"] = "m99"
            yield foreign
            yield from super().pull_messages(message_ids)

    stuffed = Stuffed(desks.script)
    assert set(dict(fleet(stuffed, told).ask(QUESTION, ["a", "b"]))) == {"a", "b"}
    assert told.of(None)[0] == "ignored"


def test_a_site_that_was_started_anew_is_asked_again_at_once() -> None:
    told, desks = Told(), Desks({11: [silence, good], 12: [good]})
    answers = fleet(desks, told, deadline=60.0).ask(QUESTION, ["a", "b"])
    assert next(answers)[0] == "b"
    desks.nodes = [Node(11, b"key a", "again"), desks.nodes[1]]
    assert next(answers) == ("a", b"payload")


def test_a_late_answer_to_the_first_try_counts() -> None:
    told, desks = Told(), Desks({11: [silence, silence], 12: [good]})
    answers = fleet(desks, told, deadline=0.3).ask(QUESTION, ["a", "b"])
    next(answers)

    class Late(Desks):
        def pull_messages(self, message_ids: Sequence[str]) -> Iterator[Message]:
            if len(self.asked) == 3:
                self.waiting["m0"] = good(self.asked[0])
            yield from super().pull_messages(message_ids)

    desks.__class__ = Late
    assert next(answers) == ("a", b"payload")


def test_an_offline_site_is_waited_for_and_named() -> None:
    told, desks = Told(), Desks({12: [good]}, nodes=[Node(12, b"key b")])
    assert ask(desks, told, deadline=0.2) == {"b": b"only b|payload"}
    assert told.lines[0]["event"] == "silent" and "not online" in told.lines[0]["reason"]


def test_a_node_with_an_unlisted_key_is_nobody() -> None:
    told, desks = Told(), Desks({12: [good]}, nodes=[Node(11, b"key of a thief"), Node(12, b"key b")])
    assert ask(desks, told, deadline=0.2) == {"b": b"only b|payload"}


def test_a_message_flower_does_not_take_stops_the_run() -> None:
    class Full(Desks):
        def push_messages(self, messages: Sequence[Message]) -> Any:
            return [None]

    with pytest.raises(SiteError, match="did not take the message for site 'a'"):
        ask(Full({}), Told())


def test_sites_have_time_to_come_online_before_the_first_round() -> None:
    def card(message: Message) -> Message:
        return Message(wrap(echo(unwrap(message.content)[0], card={"who": "me"})), reply_to=message)

    told, desks = Told(), Desks({11: [card], 12: [says(refused="no")]}, nodes=[])
    polls = iter(range(100))

    class Slow(Desks):
        def get_nodes(self) -> list[Node]:
            return [Node(11, b"key a"), Node(12, b"key b")] if next(polls) else []

    assert fleet(Slow(desks.script), told).invite({"config": {}}, ["a", "b"], 10.0) == {"a": {"who": "me"}}
    assert told.of("b") == ["refused"] and told.of("a") == ["joined"]
    assert told.lines[0] == {"event": "invited", "sites": ["a", "b"], "seconds": 10.0}


def test_a_site_that_is_listed_while_others_are_waited_for_is_invited() -> None:
    def card(message: Message) -> Message:
        return Message(wrap(echo(unwrap(message.content)[0], card={"who": "me"})), reply_to=message)

    told, desks = Told(), Desks({11: [card], 12: [card]}, nodes=[])
    polls, new = iter(range(100)), [{"b": b"key b"}]

    class Slow(Desks):
        def get_nodes(self) -> list[Node]:
            return [Node(11, b"key a"), Node(12, b"key b")] if next(polls) else []

    engine = FlowerEngine(
        Slow(desks.script), "run", {"a": b"key a"}, told, deadline=5.0, retries=1, poll=0.01
    )
    found = engine.invite({"config": {}}, ["a"], 10.0, lambda: new.pop() if new else {})
    assert found == {"a": {"who": "me"}, "b": {"who": "me"}}
    assert [line["sites"] for line in told.lines if line["event"] == "invited"] == [["a"], ["b"]]


@pytest.mark.parametrize(
    "content",
    [
        RecordDict(),
        RecordDict({"table": ConfigRecord({"json": "[1]"})}),
        RecordDict({"table": ConfigRecord({"json": "{"})}),
        RecordDict({"table": ConfigRecord({"text": "{}"})}),
        RecordDict({"table": ConfigRecord({"json": "{}"}), "more": ConfigRecord({})}),
        RecordDict({"table": ConfigRecord({"json": 5})}),
        RecordDict({"table": ConfigRecord({"json": ["{}"]})}),
        RecordDict({"table": ConfigRecord({"json": '{"a":' * 1200 + "1" + "}" * 1200})}),
        RecordDict({"table": ConfigRecord({"json": '{"a":' * 100_000})}),
        RecordDict({"table": ConfigRecord({"json": '{"a":' + "[" * 20 + "]" * 20 + "}"})}),
        RecordDict({"table": ConfigRecord({"json": '{"a": NaN}'})}),
        RecordDict({"table": ConfigRecord({"json": '{"a": 1, "a": 2}'})}),
        RecordDict({"table": ConfigRecord({"json": json.dumps({"a": "x" * 2**22})})}),
    ],
)
def test_other_messages_are_not_ours(content: RecordDict) -> None:
    with pytest.raises(CodecError, match="not a message of ours"):
        unwrap(content)


def test_what_is_wrapped_is_unwrapped() -> None:
    table = {"a": [1, None, "ü"], "b": {"c": True}}
    assert unwrap(wrap(table, {"x": array(b"\x00\xff"), "y": array(bytearray(b"12"))})) == (
        table,
        {"x": b"\x00\xff", "y": b"12"},
    )
