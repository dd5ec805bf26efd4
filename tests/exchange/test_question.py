"""A call has one shape wherever it is: made by a question, carried as JSON, checked where it arrives."""

from __future__ import annotations

import json
from typing import Any

import pytest
from pydantic import ValidationError

from equipoise.engine import Call, Question
from equipoise.engine.flower.wire import Request

QUESTION = Question("train", 4, b"x", {}, {"a": "3.0"}, "4.0", {"a": ("2.0", "1.7")}, ("a", "b"), tuned=True)
MORE = {"run": "00112233445566aa", "ticket": 7}


def test_each_site_is_told_its_own() -> None:
    mine, theirs = QUESTION.call("a"), QUESTION.call("b")
    assert (mine.question, mine.round, mine.site, mine.write, mine.tuned) == ("train", 4, "a", "4.0", True)
    assert (mine.read, mine.keep, mine.asked) == ("3.0", ("2.0", "1.7"), ("a", "b"))
    assert (theirs.read, theirs.keep, theirs.asked) == (None, (), ("a", "b"))
    with pytest.raises(ValidationError, match="frozen"):
        mine.round = 5  # type: ignore[misc]


def test_it_travels_as_json() -> None:
    call = QUESTION.call("a")
    assert Call.model_validate_json(bytearray(call.model_dump_json().encode())) == call
    sent = json.loads(json.dumps(call.model_dump(mode="json") | MORE))
    arrived = Request.model_validate(sent)
    assert isinstance(arrived, Call)
    assert {name: getattr(arrived, name) for name in Call.model_fields} == dict(call)


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("write", "../../secret"),
        ("read", "4.0\n"),
        ("keep", ["1.0", "/etc/passwd"]),
        ("round", -1),
        ("round", "4"),
        ("asked", [f"s{i}" for i in range(100_001)]),
        ("else", 1),
    ],
)
def test_what_is_not_in_order_is_refused(field: str, value: Any) -> None:
    with pytest.raises(ValidationError):
        Call.model_validate(QUESTION.call("a").model_dump() | {field: value})


@pytest.mark.parametrize("field", list(Call.model_fields))
def test_nothing_may_be_left_out(field: str) -> None:
    with pytest.raises(ValidationError, match="required"):
        Call.model_validate({key: value for key, value in QUESTION.call("a") if key != field})


@pytest.mark.parametrize(
    ("field", "value"),
    [("question", "__init__"), ("asked", ["a", "b\nc"]), ("run", "x"), ("ticket", 0), ("journal", "no")],
)
def test_over_the_network_names_are_checked_too(field: str, value: Any) -> None:
    table = QUESTION.call("a").model_dump(mode="json") | MORE
    Request.model_validate(table)
    with pytest.raises(ValidationError):
        Request.model_validate(table | {field: value})
