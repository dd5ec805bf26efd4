"""A site as a node of Flower's: messages come and go whole, and what goes wrong has a name of its own."""

from __future__ import annotations

import json
import random
import ssl
import time
import tracemalloc
from collections.abc import Callable
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory
from types import SimpleNamespace
from typing import Any

import httpx
import pytest
from cryptography.hazmat.primitives.asymmetric import ec
from flwr.app import ArrayRecord, ConfigRecord, Message, RecordDict
from flwr.common.constant import FLWR_PRIVATE_MAX_ARRAY_CHUNK_SIZE as PIECE
from flwr.proto.fleet_pb2 import (
    PullMessagesRequest,
    PullMessagesResponse,
    PushMessagesRequest,
    PushMessagesResponse,
)
from flwr.proto.message_pb2 import Message as Envelope
from flwr.proto.message_pb2 import Metadata, ObjectTree, PullObjectResponse, PushObjectResponse
from flwr.supercore.error import ApiErrorCode
from flwr.supercore.inflatable.inflatable_object import (
    get_all_nested_objects,
    get_object_id,
    get_object_tree,
    iterate_object_tree,
)
from flwr.supercore.inflatable.inflatable_utils import inflate_object_from_contents

from equipoise.deploy import flower
from equipoise.deploy.keys import new_keys, new_pair
from equipoise.engine.flower.wire import BYTES, INLINE, JSON, TABLE, array, unwrap, wrap

RUN = 7
KEY = ec.generate_private_key(ec.SECP384R1())


@cache
def authority() -> bytes:
    """A certificate of an authority."""
    with TemporaryDirectory() as folder:
        new_keys(Path(folder), [], [])
        return (Path(folder) / "keys" / "ca.crt").read_bytes()


def status(code: int, body: str = "") -> httpx.HTTPStatusError:
    request = httpx.Request("POST", "https://127.0.0.1:1/v1/fleet/pull-messages")
    return httpx.HTTPStatusError("no", request=request, response=httpx.Response(code, text=body))


def flowers(code: ApiErrorCode, http: int) -> httpx.HTTPStatusError:
    return status(http, json.dumps({"code": int(code), "detail": "in Flower's words"}))


class SuperLink:
    """The server's end of the calls. It has one message, whose parts come after `late` looks at each, or
    with the message if they are small."""

    def __init__(self, message: Message | None = None, late: int = 0, small: int = 0) -> None:
        self.message, self.late, self.small = message, late, small
        self.received = list[str]()
        self.calls, self.kept, self.looks = list[str](), dict[str, bytes](), dict[str, int]()
        self.trees = list[ObjectTree]()
        self.failures = list[Exception]()
        self.parts: dict[str, bytes] = {}
        if message is not None:
            message.metadata.__dict__["_message_id"] = message.object_id
            self.parts = {number: one.deflate() for number, one in get_all_nested_objects(message).items()}

    def __getattr__(self, name: str) -> Callable[[Any], Any]:
        def call(request: Any) -> Any:
            self.calls.append(name)
            if self.failures:
                raise self.failures.pop(0)
            return getattr(self, f"on_{name}")(request)

        if name[0].islower():
            raise AttributeError(name)
        return call

    def on_ActivateNode(self, request: Any) -> Any:  # noqa: N802
        return SimpleNamespace(node_id=3)

    def on_DeactivateNode(self, request: Any) -> Any:  # noqa: N802
        assert request.node_id == 3

    def _unary_unary(self, path: str, rpc_method: str, request: Any, response_type: Any) -> Any:
        """Calls of ours; with them go the parts that are `small`."""
        name = "".join(map(str.title, path.removeprefix("/v1/fleet/").split("-")))
        sent, response = flower.Parcel(self.heads[name]()), response_type()
        sent.ParseFromString(request.SerializeToString(deterministic=True))
        response.ParseFromString(getattr(self, name)(sent))
        return response

    heads = {"PullWhole": PullMessagesRequest, "PushWhole": PushMessagesRequest}

    def on_PullWhole(self, sent: Any) -> bytes:  # noqa: N802
        self.received.append(sent.parts[0].decode())
        if self.message is None:
            return b""
        envelope, tree = Envelope(metadata=Metadata(run_id=RUN)), get_object_tree(self.message)
        head = PullMessagesResponse(messages_list=[envelope], message_object_trees=[tree])
        parts = [part for part in self.parts.values() if len(part) < self.small]
        return flower.Parcel(head, parts).SerializeToString()

    def on_PullObject(self, request: Any) -> Any:  # noqa: N802
        assert request.run_id == RUN
        number = request.object_id
        self.looks[number] = self.looks.get(number, 0) + 1
        there = self.looks[number] > self.late
        content = self.parts.get(number, b"")
        return PullObjectResponse(
            object_found=number in self.parts,
            object_available=there and number in self.parts,
            object_content=content if there else b"",
        )

    def on_ConfirmMessageReceived(self, request: Any) -> None:  # noqa: N802
        assert self.message is not None and request.message_object_id == self.message.object_id

    def on_PushWhole(self, sent: Any) -> bytes:  # noqa: N802
        self.trees = list(sent.head.message_object_trees)
        numbers = [one.object_id for one in iterate_object_tree(self.trees[0])]
        self.kept |= {get_object_id(part): part for part in sent.parts if len(part) < self.small}
        missing = [number for number in numbers if number not in self.kept]
        return PushMessagesResponse(objects_to_push=missing, session_id="session").SerializeToString()

    def on_PushObject(self, request: Any) -> Any:  # noqa: N802
        assert request.session_id == "session"
        self.kept[request.object_id] = request.object_content
        return PushObjectResponse(stored=True)

    def close(self) -> None:
        self.calls.append("close")


def make(server: SuperLink) -> tuple[flower.Node, list[bool], list[float]]:
    """A node of this server's, with what it notes and how long it pauses."""
    notes, pauses = list[bool](), list[float]()
    node = flower.Node("127.0.0.1:1", authority(), KEY, notes.append, pauses.append)
    node._client.close()
    node._client = node._post._client = server  # type: ignore[assignment]
    return node, notes, pauses


def large(data: bytes) -> RecordDict:
    """The content of a message whose bytes are an array, however few they are."""
    return RecordDict({TABLE: ConfigRecord({JSON: "{}"}), BYTES: ArrayRecord({"payload": array(data)})})


def question(data: bytes = b"tensors") -> Message:
    return Message(wrap({"ticket": 1}, {"payload": array(data)}), 3, "train.train", group_id="1", ttl=60.0)


@pytest.mark.parametrize("late", [0, 3])
def test_a_message_is_received_whole(late: int) -> None:
    """Parts that are still on their way are waited for."""
    server = SuperLink(question(), late)
    node, _, pauses = make(server)
    message = node.receive()
    assert message is not None and unwrap(message.content) == ({"ticket": 1}, {"payload": b"tensors"})
    assert message.metadata.message_id == server.message.object_id  # type: ignore[union-attr]
    assert server.calls[0] == "PullWhole" and server.calls[-1] == "ConfirmMessageReceived"
    assert len(pauses) == late * len(server.parts)


def test_a_small_message_crosses_in_one_request_and_its_answer_in_another() -> None:
    server = SuperLink(question(), small=1000)
    node, _, _ = make(server)
    asked = node.receive()
    assert asked is not None and unwrap(asked.content)[1] == {"payload": b"tensors"}
    node.send(Message(wrap({}, {"answer": array(b"update")}), reply_to=asked), 1.5)
    assert server.calls == ["PullWhole", "PushWhole"]
    sent = inflate_object_from_contents(server.trees[0].object_id, dict(server.kept))
    assert isinstance(sent, Message) and unwrap(sent.content)[1] == {"answer": b"update"}


def test_a_site_says_which_message_it_has_received() -> None:
    """Also of one that it could not read: it would be sent again and again."""
    server = SuperLink(question(), small=1000)
    node, _, _ = make(server)
    node.receive()
    number = server.message.object_id  # type: ignore[union-attr]
    server.message = server.message.content  # type: ignore[union-attr, assignment]
    with pytest.raises(flower.MessageLost):
        node.receive()
    server.message = None
    node.receive()
    assert server.received[:2] == ["", number] and server.received[2] not in ("", number)


def test_of_a_large_message_only_the_pieces_are_fetched_one_by_one() -> None:
    data = random.Random(0).randbytes(2 * PIECE + 5)
    server = SuperLink(Message(large(data), 3, "train.train"), small=flower.PARCEL)
    node, _, _ = make(server)
    message = node.receive()
    assert message is not None and unwrap(message.content)[1] == {"payload": data}
    assert server.calls == ["PullWhole", *["PullObject"] * 2, "ConfirmMessageReceived"]
    server.calls.clear()
    node.send(Message(wrap({}, {"answer": array(data)}), reply_to=message), 1.0)
    assert server.calls == ["PushWhole", *["PushObject"] * 2]


@pytest.mark.parametrize("data", [b"", bytes(3 * PIECE), random.Random(0).randbytes(2 * PIECE + 5)])
def test_a_large_message_is_put_together_again(data: bytes) -> None:
    """Pieces that are alike are sent once."""
    message = make(SuperLink(Message(large(data), 3, "train.train")))[0].receive()
    assert message is not None and unwrap(message.content)[1] == {"payload": data}


def test_a_piece_that_is_named_too_often_fills_no_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    """A list of numbers is small; what it says to put together may not be."""
    monkeypatch.setattr(flower, "LARGEST", 2 * PIECE)
    server = SuperLink(Message(large(bytes(3 * PIECE)), 3, "train.train"))
    with pytest.raises(flower.MessageLost, match="larger than any model"):
        make(server)[0].receive()


def test_a_large_message_is_not_held_three_times() -> None:
    data = random.Random(0).randbytes(8 * PIECE)
    server = SuperLink(Message(large(data), 3, "train.train"))
    node, _, _ = make(server)
    tracemalloc.start()
    try:
        message = node.receive()
        received = tracemalloc.get_traced_memory()[1]
        assert message is not None
        reply = Message(wrap({}, {"answer": array(data)}), reply_to=message)
        tracemalloc.reset_peak()
        before = tracemalloc.get_traced_memory()[0]
        server.on_PushObject = lambda request: PushObjectResponse(stored=True)  # type: ignore[method-assign]
        node.send(reply, 1.0)
        sent = tracemalloc.get_traced_memory()[1] - before
    finally:
        tracemalloc.stop()
    assert received < 1.5 * len(data)  # the message itself, and a piece with its copies on the way
    assert sent < 0.5 * len(data)  # beside the answer itself: such a piece


def test_messages_that_go_together_fit_into_one_parcel() -> None:
    assert (flower.TOGETHER + 1) * INLINE <= flower.PARCEL


def test_no_message_is_none() -> None:
    assert make(SuperLink())[0].receive() is None


def test_a_message_of_which_parts_are_gone_is_lost() -> None:
    server = SuperLink(question())
    server.parts.popitem()
    with pytest.raises(flower.MessageLost, match="no longer has the whole message"):
        make(server)[0].receive()


def test_what_comes_in_place_of_a_message_is_lost() -> None:
    server = SuperLink(question())
    content = question().content
    server.parts = {number: one.deflate() for number, one in get_all_nested_objects(content).items()}
    server.message = content  # type: ignore[assignment]
    with pytest.raises(flower.MessageLost, match="a RecordDict came"):
        make(server)[0].receive()


def test_an_answer_is_sent_whole() -> None:
    server = SuperLink(question())
    node, _, _ = make(server)
    asked = node.receive()
    assert asked is not None
    reply = Message(wrap({"ticket": 1}, {"answer": array(b"update")}), reply_to=asked)
    node.send(reply, 1.5)
    sent = inflate_object_from_contents(server.trees[0].object_id, dict(server.kept))
    assert isinstance(sent, Message) and unwrap(sent.content)[1] == {"answer": b"update"}
    assert sent.metadata.reply_to_message_id == asked.metadata.message_id
    assert "GetFab" not in server.calls and "GetRun" not in server.calls  # no code of a run is fetched


FAILURES: list[tuple[httpx.HTTPError, type[Exception]]] = [
    (status(401), flower.NotListed),
    (status(412, "this key is not listed here"), flower.NotListed),
    (flowers(ApiErrorCode.FLEET_NODE_ACTIVATION_FAILED, 412), flower.StillOnline),
    (flowers(ApiErrorCode.RUNTIME_VERSION_INCOMPATIBLE, 412), flower.OtherVersion),
    (flowers(ApiErrorCode.FLEET_RUN_STATUS_NOT_ALLOWED, 403), flower.RunEnded),
    (status(413), flower.MessageLost),
    (status(503), flower.NotReached),
    (status(502, "<html>a proxy's page</html>"), flower.NotReached),
    (httpx.ConnectError("refused"), flower.NotReached),
    (httpx.ReadTimeout("late"), flower.NotReached),
    (httpx.ProxyError("407"), flower.NotReached),
]


@pytest.mark.parametrize(("error", "kind"), FAILURES, ids=lambda one: str(one)[:30])
def test_what_goes_wrong_has_a_name(error: httpx.HTTPError, kind: type[Exception]) -> None:
    assert type(flower.failure_of(error)) is kind


def test_a_certificate_that_is_not_trusted_is_told_from_a_line_that_broke() -> None:
    for cause, kind in (
        (ssl.SSLCertVerificationError("self-signed"), flower.NotTrusted),
        (ssl.SSLEOFError("eof"), flower.NotReached),
    ):
        error = httpx.ConnectError("tls")
        error.__cause__ = OSError("in between")
        error.__cause__.__context__ = cause
        assert type(flower.failure_of(error)) is kind


def test_a_call_is_made_again_until_the_coordinator_is_reached() -> None:
    server = SuperLink()
    node, notes, pauses = make(server)
    server.failures = [httpx.ConnectError("refused")] * 7
    assert node.receive() is None
    assert notes == [False] * 7 + [True]
    assert pauses == [0.5, 1.0, 2.0, 4.0, 8.0, 10.0, 10.0]


def test_a_refusal_is_not_tried_again() -> None:
    server = SuperLink()
    node, notes, _ = make(server)
    server.failures = [status(412)]
    with pytest.raises(flower.NotListed):
        node.receive()
    assert notes == [True] and server.calls == ["PullWhole"]  # the coordinator was reached


def test_a_node_signs_in_gives_signs_of_life_and_signs_out(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(flower, "BEAT", 0.01)
    server = SuperLink()
    node, notes, _ = make(server)
    beats = iter([None, httpx.ConnectError("cut"), status(412), None])

    def beat(request: Any) -> None:
        assert request.node.node_id == 3
        if (error := next(beats, None)) is not None:
            raise error

    server.on_SendNodeHeartbeat = beat  # type: ignore[attr-defined]
    node.activate()
    while len(notes) < 4:
        time.sleep(0.01)
    node.leave()
    assert notes[:4] == [True, True, False, True]
    assert server.calls[0] == "ActivateNode" and server.calls[-2:] == ["DeactivateNode", "close"]
    node._beats.join()


def test_a_node_that_cannot_reach_the_coordinator_leaves_at_once() -> None:
    server = SuperLink()
    node, _, _ = make(server)
    node.leave()
    assert server.calls == ["close"]


def test_a_key_is_read_as_flower_reads_it(tmp_path: Path) -> None:
    new_pair(tmp_path / "site")
    assert flower.read_key(tmp_path / "site").curve.name == "secp384r1"
    (tmp_path / "no").write_text("no key")
    with pytest.raises(ValueError):
        flower.read_key(tmp_path / "no")
