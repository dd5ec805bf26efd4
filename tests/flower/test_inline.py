"""Small byte strings travel in the record of the table: three requests for a message in place of six."""

from __future__ import annotations

import pytest
from flwr.app import ArrayRecord, ConfigRecord, Message, RecordDict
from flwr.supercore.inflatable.inflatable_object import get_all_nested_objects

from equipoise.engine.flower.wire import BYTES, INLINE, JSON, TABLE, array, unwrap, wrap
from equipoise.exchange.codec import CodecError


def parts(content: RecordDict) -> int:
    """The requests that it takes to fetch a message with this content."""
    return len(get_all_nested_objects(Message(content, 1, "train.train")))


@pytest.mark.parametrize(("size", "number"), [(0, 3), (INLINE, 3), (INLINE + 1, 6)])
def test_a_message_has_few_parts(size: int, number: int) -> None:
    content = wrap({"ticket": 1}, {"payload": array(bytes(size))})
    assert parts(content) == number
    assert unwrap(content) == ({"ticket": 1}, {"payload": bytes(size)})


def test_all_byte_strings_count() -> None:
    half = array(bytes(INLINE // 2 + 1))
    assert parts(wrap({}, {"payload": half})) == 3
    assert BYTES in wrap({}, {"payload": half, "extra": half})


@pytest.mark.parametrize("value", [1, 2.5, "text", [b"bytes"], True])
def test_other_values_are_refused(value: object) -> None:
    content = RecordDict({TABLE: ConfigRecord({JSON: "{}", "payload": value})})  # type: ignore[dict-item]
    with pytest.raises(CodecError, match="its records are of another kind"):
        unwrap(content)


def test_a_name_that_is_there_twice_is_refused() -> None:
    content = wrap({}, {"payload": array(b"one")})
    content[BYTES] = ArrayRecord({"payload": array(b"another")})
    with pytest.raises(CodecError, match="its records are of another kind"):
        unwrap(content)


def test_no_table_is_refused() -> None:
    with pytest.raises(CodecError):
        unwrap(RecordDict({TABLE: ConfigRecord({"payload": b"bytes"})}))
