"""Waiting for messages at the server; what it starts, and processes that end with all they started."""

from __future__ import annotations

import asyncio
import dataclasses
import io
import subprocess
import sys
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import httpx
import pytest
from flwr.app import Array, Message
from flwr.proto.fleet_pb2 import PushMessagesRequest, PushMessagesResponse
from flwr.proto.message_pb2 import Message as Envelope
from flwr.proto.message_pb2 import Metadata
from flwr.supercore.constant import TaskType
from flwr.supercore.inflatable.inflatable_object import (
    get_all_nested_objects,
    get_object_id,
    get_object_tree,
    iterate_object_tree,
)
from flwr.supercore.inflatable.inflatable_utils import inflate_object_from_contents
from flwr.supercore.retry.http_retry import _RETRYABLE_STATUS_CODES
from flwr.supercore.superexec.executor import ExecutionSpec, LaunchResultStatus
from starlette.middleware import Middleware

from equipoise.deploy import flower, inside, processes, superlink
from equipoise.deploy.parcel import pack, unpack
from equipoise.engine.flower.wire import array, unwrap, wrap

# Waiting for messages ---------------------------------------------------------------------------------------


class Server:
    """An app behind `LongPoll`: pulls are answered with what was pushed. `log` has what reached it."""

    def __init__(self, status: int = 200) -> None:
        self.status, self.work, self.log = status, b"", list[str]()
        self.polled = superlink.LongPoll(self.answer)

    async def answer(self, scope: Any, receive: Any, send: Any) -> None:
        heard = await receive()
        self.log.append(scope["path"].rpartition("/")[2])
        body = b""
        if scope["path"].endswith("push-messages"):
            self.work = heard["body"]
        elif scope["path"].endswith("pull-messages"):
            assert heard == {"type": "http.request", "body": b"me", "more_body": False}
            body, self.work = self.work, b""
        await send({"type": "http.response.start", "status": self.status})
        await send({"type": "http.response.body", "body": body})

    async def call(
        self, path: str, body: bytes = b"me", gone: asyncio.Event | None = None
    ) -> tuple[int, bytes] | None:
        said, given = list[dict[str, Any]](), [{"type": "http.request", "body": body, "more_body": False}]

        async def receive() -> dict[str, Any]:
            if given:
                return given.pop()
            await (gone or asyncio.Event()).wait()
            return {"type": "http.disconnect"}

        async def send(message: Any) -> None:
            said.append(message)

        headers = [(b"content-length", str(len(body)).encode())]
        await self.polled({"type": "http", "path": path, "headers": headers, "state": {}}, receive, send)
        return (said[0]["status"], said[1]["body"]) if said else None


def hold(monkeypatch: pytest.MonkeyPatch, seconds: float) -> None:
    monkeypatch.setattr(superlink, "HOLD", dict.fromkeys(superlink.HOLD, seconds))


def scene(play: Any) -> Any:
    """Play a scene with an event loop; one that hangs is no answer."""

    async def timed() -> Any:
        return await asyncio.wait_for(play, 30)

    return asyncio.run(timed())


def test_a_site_waits_until_a_question_has_come_whole(monkeypatch: pytest.MonkeyPatch) -> None:
    hold(monkeypatch, 20.0)
    server = Server()

    async def play() -> Any:
        pull = asyncio.ensure_future(server.call("/v1/fleet/pull-messages"))
        await asyncio.sleep(0.01)
        assert server.log == ["pull-messages"] and not pull.done()
        await server.call("/v1/runtime/push-messages", b"work")
        for _ in range(3):
            await asyncio.sleep(superlink.QUIET / 4)
            await server.call("/v1/runtime/push-object")
        assert not pull.done()
        return await pull

    assert scene(play()) == (200, b"work")
    assert server.log == ["pull-messages", "push-messages", *["push-object"] * 3, "pull-messages"]


def test_a_site_that_finds_work_or_an_error_does_not_wait(monkeypatch: pytest.MonkeyPatch) -> None:
    hold(monkeypatch, 1000.0)
    server = Server()
    server.work = b"there"
    assert scene(server.call("/v1/fleet/pull-messages")) == (200, b"there")
    assert scene(Server(401).call("/v1/fleet/pull-messages")) == (401, b"")


def test_a_site_waits_no_longer_than_it_may(monkeypatch: pytest.MonkeyPatch) -> None:
    hold(monkeypatch, 0.1)
    server = Server()
    assert scene(server.call("/v1/fleet/pull-messages")) == (200, b"")
    assert server.log == ["pull-messages"] * 2


def test_work_is_not_taken_for_a_site_that_has_left(monkeypatch: pytest.MonkeyPatch) -> None:
    hold(monkeypatch, 20.0)
    server = Server()

    async def play() -> Any:
        gone = asyncio.Event()
        pull = asyncio.ensure_future(server.call("/v1/fleet/pull-messages", gone=gone))
        await asyncio.sleep(0.01)
        gone.set()
        await server.call("/v1/runtime/push-messages", b"work")
        return await pull

    assert scene(play()) is None
    assert server.work == b"work" and server.log.count("pull-messages") == 1


def test_who_queues_for_too_long_comes_again_instead(monkeypatch: pytest.MonkeyPatch) -> None:
    """A server that is slow serves some and sends the others away: none of them waits until it has left."""
    hold(monkeypatch, 0.3)
    server, answer = Server(), Server.answer

    async def slow(scope: Any, receive: Any, send: Any) -> None:
        await asyncio.sleep(0.2)
        await answer(server, scope, receive, send)

    server.polled.app = slow

    async def play() -> Any:
        return await asyncio.gather(*(server.call("/v1/fleet/pull-messages") for _ in range(6)))

    found = scene(play())
    assert {status for status, _ in found} == {200, 503} and len(server.log) < 6


def test_the_coordinator_waits_until_an_answer_has_come_whole(monkeypatch: pytest.MonkeyPatch) -> None:
    hold(monkeypatch, 20.0)
    server = Server()

    async def play() -> Any:
        pull = asyncio.ensure_future(server.call("/v1/runtime/pull-messages"))
        await asyncio.sleep(0.01)
        await server.call("/v1/fleet/push-messages", b"answer")
        await asyncio.sleep(superlink.QUIET / 2)
        assert not pull.done()
        await server.call("/v1/fleet/push-object")
        return await pull

    assert scene(play()) == (200, b"answer")
    assert server.log == ["pull-messages", "push-messages", "push-object", "pull-messages"]


def test_each_side_waits_for_the_other_only(monkeypatch: pytest.MonkeyPatch) -> None:
    """What one site pushes does not wake the others."""
    hold(monkeypatch, 0.2)
    server = Server()

    async def play() -> None:
        pull = asyncio.ensure_future(server.call("/v1/fleet/pull-messages"))
        await asyncio.sleep(0.01)
        await server.call("/v1/fleet/push-object")
        await pull

    scene(play())
    assert server.log == ["pull-messages", "push-object", "pull-messages"]


@pytest.mark.parametrize(
    "call", ["fleet/pull-messages", "fleet/push-object", "runtime/pull-messages", "runtime/get-nodes"]
)
def test_flower_that_trips_says_come_again(call: str) -> None:
    """Its programs give up at a 500 and come again after a 503."""
    assert scene(Server(500).call(f"/v1/{call}")) == (503, b"")
    assert httpx.codes.SERVICE_UNAVAILABLE in _RETRYABLE_STATUS_CODES


def test_only_a_short_question_for_work_may_wait(monkeypatch: pytest.MonkeyPatch) -> None:
    hold(monkeypatch, 1000.0)
    monkeypatch.setattr(superlink, "SMALL", 1)
    assert scene(Server().call("/v1/fleet/pull-messages")) == (200, b"")


# Messages with their parts ----------------------------------------------------------------------------------


class Parts:
    """Flower's state, as far as parts of messages go."""

    def __init__(self) -> None:
        self.kept, self.refuse, self.dropped = dict[str, bytes](), False, list[str]()
        self.state = SimpleNamespace(linkstate_factory=SimpleNamespace(state=lambda: self))

    @property
    def object_store(self) -> Any:
        return SimpleNamespace(delete=self.dropped.append)

    def get_object(self, run: int, number: str) -> bytes | None:
        assert run == 7
        return self.kept.get(number)

    def store_object(self, run: int, session: str, number: str, content: bytes) -> bool:
        assert (run, session) == (7, "session")
        self.kept |= {} if self.refuse else {number: content}
        return not self.refuse


class Link(Parts):
    """A server behind `Parcels`: sites are handed what waits, and what was pushed is written down."""

    def __init__(self) -> None:
        super().__init__()
        self.waiting, self.paths, self.status = list[Message](), list[str](), 200
        self.app = superlink.Parcels(self.answer)

    def put(self, data: bytes) -> Message:
        """A message that is there, with all its parts."""
        message = Message(wrap({}, {"payload": array(data)}), 3, "train.train", ttl=60.0)
        message.metadata.__dict__["_run_id"] = 7
        self.waiting.append(message)
        self.kept |= {number: one.deflate() for number, one in get_all_nested_objects(message).items()}
        return message

    async def answer(self, scope: Any, receive: Any, send: Any) -> None:
        self.paths.append(scope["path"])
        heard = await receive()
        body = b""
        assert dict(scope["headers"])[b"content-length"] == b"%d" % len(heard["body"])
        if scope["path"].endswith("/push-messages"):
            pushed = PushMessagesRequest.FromString(heard["body"])
            numbers = [
                one.object_id for tree in pushed.message_object_trees for one in iterate_object_tree(tree)
            ]
            body = PushMessagesResponse(objects_to_push=numbers, session_id="session").SerializeToString()
        elif self.waiting:
            message = self.waiting.pop(0)
            envelope = Envelope(metadata=Metadata(run_id=7))
            tree = get_object_tree(message)
            kind = flower.PULLED[scope["path"].removesuffix(flower.PULL)]
            answer = kind(messages_list=[envelope], message_object_trees=[tree])
            body = answer.SerializeToString()
        await send({"type": "http.response.start", "status": self.status})
        await send({"type": "http.response.body", "body": body})

    def call(self, path: str, body: bytes, key: bytes = b"north") -> tuple[int, bytes]:
        said = list[Any]()

        async def receive() -> Any:
            return {"type": "http.request", "body": body, "more_body": False}

        async def send(part: Any) -> None:
            said.append(part)

        headers = [(flower.KEY_HEADER.encode(), key), (b"content-length", b"%d" % len(body))]
        scope = {"type": "http", "path": path, "headers": headers, "app": self, "state": {}}
        scene(self.app(scope, receive, send))
        return said[0]["status"], b"".join(part.get("body", b"") for part in said[1:])

    def pull(self, last: str = "", key: bytes = b"north", side: str = flower.FLEET) -> list[bytes]:
        status, body = self.call(side + flower.PULL_WHOLE, pack([b"", last.encode()]), key)
        assert status == 200
        return unpack(body)[1:] if body else []


def test_a_message_is_handed_out_with_all_its_parts() -> None:
    link = Link()
    message = link.put(b"tensors")
    parts = link.pull()
    found = inflate_object_from_contents(message.object_id, {get_object_id(part): part for part in parts})
    assert isinstance(found, Message) and unwrap(found.content)[1] == {"payload": b"tensors"}
    assert link.paths == ["/v1/fleet/pull-messages"] and link.pull(message.object_id) == []
    assert link.dropped == [message.object_id]


def test_a_message_that_was_not_received_is_sent_again() -> None:
    """To the site that it was for, until it says that it has it or begins anew."""
    link = Link()
    message = link.put(b"tensors")
    first = link.pull()
    assert link.pull(key=b"south") == [] and link.pull() == first == link.pull("another")
    assert link.pull(message.object_id) == [] and link.pull() == []
    link.put(b"more")
    assert link.pull()
    link.call("/v1/fleet/activate-node", b"")
    assert link.pull() == []


def test_of_a_large_message_the_small_parts_are_handed_out_and_nothing_is_dropped(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    link = Link()
    message = link.put(bytes(500))
    monkeypatch.setattr(flower, "PARCEL", 450)
    parts = link.pull()
    assert parts and all(len(part) < 500 for part in parts)
    assert link.pull(message.object_id) == [] and link.dropped == []


def test_parts_that_cannot_be_had_just_now_are_fetched_later(monkeypatch: pytest.MonkeyPatch) -> None:
    """Flower trips over its database now and then: its message is handed out all the same."""
    link = Link()
    link.put(b"tensors")
    monkeypatch.setattr(link, "get_object", lambda run, number: 1 / 0)
    status, body = link.call("/v1/fleet/pull-whole", pack([b"", b""]))
    (head,) = unpack(body)
    assert status == 200 and flower.PULLED[flower.FLEET].FromString(head).messages_list


def test_the_training_loop_has_received_what_it_was_handed() -> None:
    link = Link()
    message = link.put(b"update")
    assert link.pull(side=flower.RUNTIME) and link.paths == ["/v1/runtime/pull-messages"]
    assert link.dropped == [message.object_id]


@pytest.mark.parametrize("refuse", [False, True])
def test_parts_that_come_with_a_message_are_kept_and_the_others_asked_for(refuse: bool) -> None:
    link = Link()
    link.refuse = refuse
    message = Message(wrap({}, {"answer": array(b"update")}), 3, "train.train", ttl=60.0)
    message.metadata.__dict__["_run_id"] = 7
    objects = {number: one.deflate() for number, one in get_all_nested_objects(message).items()}
    sent = list(objects.values())[1:]
    request = PushMessagesRequest(
        messages_list=[Envelope(metadata=Metadata(run_id=7))],
        message_object_trees=[get_object_tree(message)],
    )
    body = pack([request.SerializeToString(), *sent, b"a part of nothing"])
    status, response = link.call("/v1/fleet/push-whole", body)
    missing = list(PushMessagesResponse.FromString(response).objects_to_push)
    assert status == 200 and missing == (list(objects) if refuse else list(objects)[:1])
    assert list(link.kept.values()) == ([] if refuse else sent)


def test_parts_that_come_without_a_message_are_not_kept() -> None:
    link = Link()
    status, response = link.call("/v1/fleet/push-whole", pack([b"", b"a part of nothing"]))
    assert status == 200 and not PushMessagesResponse.FromString(response).objects_to_push
    assert not link.kept


def test_what_flower_refuses_is_refused_and_what_is_no_parcel_too() -> None:
    link = Link()
    link.status = 401
    assert link.call("/v1/fleet/pull-whole", pack([b"", b""]))[0] == 401
    for body in (b"", b"abc", b"\0\0\0\5abc"):
        assert link.call("/v1/fleet/pull-whole", body)[0] == 400


def test_no_other_port_of_flower_is_open(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whoever starts the server may have Flower's older ports, which ask for no key, in the environment."""
    for name in ("FLWR_INTERNAL_GRPC_CONTROL_API", "FLWR_INTERNAL_GRPC_FLEET_API"):
        monkeypatch.setenv(name, "1")
        assert processes.environment(tmp_path)[name] == "0"


def test_only_the_training_loop_is_started_and_its_token_is_hidden(monkeypatch: pytest.MonkeyPatch) -> None:
    started = list[list[str]]()

    class Process:
        stdin = io.BytesIO()

        def __init__(self, command: list[str], **options: Any) -> None:
            started.append(command)

    monkeypatch.setattr(inside.subprocess, "Popen", Process)
    starter = inside.Starter()
    assert starter.get_eligible_capacity(set(TaskType)) == ({TaskType.SERVER_APP}, set())
    address, token = "127.0.0.1:8000", "secret-token"
    spec = ExecutionSpec(TaskType.SERVER_APP, address, token, False, "ca.crt", False, 7, True, 1)
    assert starter.launch(spec).status == LaunchResultStatus.ACCEPTED
    assert "serverapp" in started[0] and not any(token in word for word in started[0])
    other = dataclasses.replace(spec, task_type=TaskType.AGENT_APP)
    assert starter.launch(other).status == LaunchResultStatus.FAILED
    assert len(started) == 1


def test_a_run_that_is_started_anew_has_one_process(monkeypatch: pytest.MonkeyPatch) -> None:
    """On a busy machine processes that were too late to sign in would keep the next ones from it."""
    wait = [sys.executable, "-S", "-c", "import time; time.sleep(600)"]
    monkeypatch.setattr(inside, "command", lambda *words: wait)
    starter, started = inside.Starter(), list[subprocess.Popen[bytes]]()
    spec = ExecutionSpec(TaskType.SERVER_APP, "127.0.0.1:8000", "a", False, "ca.crt", False, 7, True, 1)
    try:
        for task in (1, 2, 1):
            assert (
                starter.launch(dataclasses.replace(spec, task_id=task)).status == LaunchResultStatus.ACCEPTED
            )
            started.append(starter._started[task])
        assert [one.poll() is None for one in started] == [False, True, True]
        started[1].kill()
        started[1].wait()
        starter.launch(dataclasses.replace(spec, task_id=3))
        started.append(starter._started[3])
        assert set(starter._started) == {1, 3}
    finally:
        for one in started:
            one.kill()
            one.wait()


@pytest.mark.filterwarnings("ignore:No path_separator found:DeprecationWarning")
def test_what_sites_send_is_not_written_to_disk(tmp_path: Path) -> None:
    """Flower's state as the server makes it: a message's tensors go in and come out, and no file has them."""
    from flwr.superlink.config_loader import get_federation_manager

    pattern = bytes(range(256)) * 64
    message = Array("uint8", (len(pattern),), "x", pattern)
    objects = get_all_nested_objects(message)
    manager = get_federation_manager(is_simulation=False)
    store, links = flower.in_memory(str(tmp_path / "books.db"), manager)
    state = links.state()
    session = state.start_session(1)
    state.preregister_object_tree(get_object_tree(message), session)
    for number, one in objects.items():
        assert state.store_object(1, session, number, one.deflate())
    assert any(pattern in state.get_object(1, number) for number in objects)
    assert store.store() is state.object_store
    files = [path for path in tmp_path.rglob("*") if path.is_file()]
    assert any(path.name == "books.db" for path in files)
    assert not any(pattern[:256] in path.read_bytes() for path in files)


def test_a_process_is_ended_with_all_that_it_started(tmp_path: Path) -> None:
    """A child that ignores SIGTERM in a session of its own, as Flower's apps are."""
    grandchild = (
        "import os, signal, sys, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); "
        "print(os.getpid(), flush=True); time.sleep(60)"
    )
    child = (
        f"import subprocess, sys; subprocess.run([sys.executable, '-c', {grandchild!r}], "
        f"start_new_session=True)"
    )
    process = processes.start([sys.executable, "-c", child], tmp_path, tmp_path / "log")
    end = time.monotonic() + 30
    while not (tmp_path / "log").read_text().strip() and time.monotonic() < end:
        time.sleep(0.05)
    number = int((tmp_path / "log").read_text())
    assert number in processes.family({process.pid})
    processes.stop(process, patience=5.0)
    assert process.poll() is not None
    for _ in range(100):
        if not Path(f"/proc/{number}").exists() or " Z " in Path(f"/proc/{number}/stat").read_text():
            return
        time.sleep(0.05)
    raise AssertionError("the grandchild lives on")


# The layers of Flower's server ------------------------------------------------------------------------------


class Layer:
    def __init__(self, app: Any, name: str) -> None:
        self.app, self.name = app, name

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        scope["passed"].append(self.name)
        await self.app(scope, receive, send)


class ControlLayer(Layer): ...


class NodeAuthLayer(Layer): ...


class ErrorLayer(Layer): ...


@pytest.mark.parametrize(
    ("path", "passed"),
    [
        ("/v1/control/start-run", ["control", "error"]),
        ("/v1/fleet/push-object", ["node", "error"]),
        ("/v1/runtime/push-object", ["error"]),
        ("/health", ["error"]),
    ],
)
def test_a_layer_is_run_for_the_requests_it_looks_at(path: str, passed: list[str]) -> None:
    """One that is not known by its name is run for all."""

    async def app(scope: Any, receive: Any, send: Any) -> None:
        pass

    chain: Any = app
    for kind, name in ((ErrorLayer, "error"), (NodeAuthLayer, "node"), (ControlLayer, "control")):
        layer = flower.narrowed(Middleware(kind, name=name))
        chain = layer.cls(chain, *layer.args, **layer.kwargs)
    scope: dict[str, Any] = {"type": "http", "path": path, "passed": []}
    asyncio.run(chain(scope, None, None))
    assert scope["passed"] == passed
