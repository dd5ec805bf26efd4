"""All of Flower that is not its public interface, in one place.

Other files import `flwr.app`, `flwr.clientapp` and `flwr.serverapp`, and for the rest this one. What is
needed of each private thing is listed in tests/flower/test_contract.py, which fails with its name when a new
version of Flower has changed it; docs/flower.md says why it is needed and how a new version is admitted.

A site is a node of Flower's: `Node` speaks to the SuperLink as Flower's own SuperNode does, in the process
that also answers. What goes wrong is an exception here, with a name of its own.
"""

from __future__ import annotations

import hashlib
import importlib
import json
import ssl
import threading
import time
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any, NamedTuple, Protocol, TypeVar

import httpx
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat, load_ssh_private_key
from flwr.app import Array, Message
from flwr.app.message import remove_content_from_message
from flwr.app.message.arraychunk import ArrayChunk
from flwr.common.constant import SYSTEM_TIME_TOLERANCE, TIMESTAMP_HEADER, TIMESTAMP_TOLERANCE, ErrorCode
from flwr.common.serde import fab_to_proto, message_to_proto
from flwr.proto.control_pb2 import (
    ListNodesRequest,
    ListRunsRequest,
    RegisterNodeRequest,
    StartRunRequest,
    StopRunRequest,
    UnregisterNodeRequest,
)
from flwr.proto.fleet_pb2 import (
    ActivateNodeRequest,
    DeactivateNodeRequest,
    PullMessagesRequest,
    PullMessagesResponse,
    PushMessagesRequest,
    PushMessagesResponse,
)
from flwr.proto.heartbeat_pb2 import SendNodeHeartbeatRequest
from flwr.proto.message_pb2 import ConfirmMessageReceivedRequest, PullObjectRequest, PushObjectRequest
from flwr.proto.node_pb2 import Node as NodeNumber
from flwr.proto.runtime_pb2 import (
    PullAppMessagesRequest,
    PullAppMessagesResponse,
    PushAppMessagesRequest,
    PushAppMessagesResponse,
)
from flwr.supercore.constant import FLEET_HTTP_PUBLIC_KEY_HEADER, FLEET_HTTP_SIGNATURE_HEADER, TaskType
from flwr.supercore.control import ControlHttpClient
from flwr.supercore.fab import Fab
from flwr.supercore.inflatable.inflatable_object import (
    get_all_nested_objects,
    get_object_body,
    get_object_head_values_from_object_content,
    get_object_id,
    get_object_tree,
    iterate_object_tree,
    no_object_id_recompute,
)
from flwr.supercore.inflatable.inflatable_utils import inflate_object_from_contents
from flwr.supercore.primitives.asymmetric import bytes_to_public_key, verify_signature
from flwr.supercore.protobuf.client import ProtobufCall, ProtobufClient, ProtobufRequestContext
from flwr.supercore.superexec.executor import ExecutionSpec, LaunchResult
from flwr.supercore.superexec.executor.subprocess_executor import SubprocessExecutor
from flwr.supernode.fleet_http_client import FleetHttpClient
from flwr.supernode.node_auth_http_interceptor import NodeAuthHttpInterceptor

from equipoise.deploy.parcel import pack, unpack

__all__ = ["ExecutionSpec", "LaunchResult", "SubprocessExecutor", "TaskType"]

FLEET, RUNTIME = "/v1/fleet/", "/v1/runtime/"
"""where sites come in at the SuperLink, and where the processes of its own do"""
PUSH, PULL, PUSH_PART = "push-messages", "pull-messages", "push-object"
PUSH_WHOLE, PULL_WHOLE = "push-whole", "pull-whole"
"""calls of ours: those of Flower's for messages, with the parts of the messages in the same request"""
WHOLE = {PUSH_WHOLE: PUSH, PULL_WHOLE: PULL}
ACTIVATE = "activate-node"
PULLED = {FLEET: PullMessagesResponse, RUNTIME: PullAppMessagesResponse}
PUSHED = {
    FLEET: (PushMessagesRequest, PushMessagesResponse),
    RUNTIME: (PushAppMessagesRequest, PushAppMessagesResponse),
}
PARCEL = 4 * 2**20
"""bytes of parts that go with a message; the others, pieces of large arrays, are sent and fetched one by one.
Less than such a piece has, so that a server that lets in a piece lets in a parcel"""
TOGETHER = 15
"""messages without arrays that are sure to go into one parcel"""
LAYERS = {"Control": "/v1/control/", "NodeAuth": FLEET, "Fleet": FLEET, "RuntimeTracing": RUNTIME}
"""by the first word of its name: the requests that a layer of the SuperLink looks at"""
KEY_HEADER, SIGNATURE_HEADER = FLEET_HTTP_PUBLIC_KEY_HEADER, FLEET_HTTP_SIGNATURE_HEADER
TIME_HEADER = TIMESTAMP_HEADER
AHEAD, OLDEST = SYSTEM_TIME_TOLERANCE, TIMESTAMP_TOLERANCE + SYSTEM_TIME_TOLERANCE
"""seconds that the time a site has signed may be ahead of ours, or behind it"""
HOME = "FLWR_HOME"
ENVIRONMENT = {
    "FLWR_TELEMETRY_ENABLED": "0",
    "FLWR_DISABLE_UPDATE_CHECK": "1",
    "FLWR_SUPEREXEC_TASK_POLL_INTERVAL": "0.1",
    # ports that ask for no key
    "FLWR_INTERNAL_GRPC_CONTROL_API": "0",
    "FLWR_INTERNAL_GRPC_FLEET_API": "0",
}
"""for processes of Flower's: tell nobody that they run, open no other port"""
INTERVAL, BEAT = 30.0, 12.0
"""seconds after which the SuperLink wonders where a node is (it waits twice that), and between two signs of
life"""
FIRST_PAUSE, LONGEST_PAUSE = 0.5, 10.0
"""seconds before a call is tried again: twice as many each time"""
LARGEST = 4 * 2**30
"""bytes of the largest array that a site puts together"""
FORBIDDEN = 403
RETRIED = (500, 502, 503, 504)
REFUSED = (401, 412)
Answer = TypeVar("Answer")


class Interceptor(Protocol):
    """What sees every request of a client."""

    def intercept(self, context: ProtobufRequestContext, call_next: ProtobufCall) -> httpx.Response: ...


class Headers:
    """Adds headers to every request of a client."""

    def __init__(self, headers: Mapping[str, str]) -> None:
        self._headers = dict(headers)

    def intercept(self, context: ProtobufRequestContext, call_next: ProtobufCall) -> httpx.Response:
        context.request.headers.update(self._headers)
        return call_next(context)


def add_to_every_client(headers: Mapping[str, str]) -> None:
    """Have all of Flower's clients that this process makes from now on send these headers."""
    original = ProtobufClient.__init__

    def init(self: ProtobufClient, base_url: str, *, interceptors: Any = (), **options: Any) -> None:
        original(self, base_url, interceptors=(*interceptors, Headers(headers)), **options)

    ProtobufClient.__init__ = init  # type: ignore[method-assign]


def is_recent(moment: bytes) -> bool:
    """Whether a time of day, as a site signs it, is now or not long ago; a `ValueError` if it is none."""
    age = (datetime.now(UTC) - datetime.fromisoformat(moment.decode("ascii"))).total_seconds()
    return -AHEAD < age < OLDEST


def signed(key: bytes, message: bytes, signature: bytes) -> bool:
    """Whether the holder of a key has signed a message."""
    return verify_signature(bytes_to_public_key(key), message, signature)


# The coordinator's machine ----------------------------------------------------------------------------------


class Control:
    """Asks the SuperLink who is registered and what runs, and changes it."""

    def __init__(self, address: str, certificate: bytes, headers: Mapping[str, str]) -> None:
        self._client = ControlHttpClient.from_server_address(address, False, certificate, [Headers(headers)])

    def nodes(self) -> list[Any]:
        """The nodes that are registered: node_id, public_key, status, last_activated_at, …"""
        nodes = self._client.ListNodes(ListNodesRequest()).nodes_info
        return [node for node in nodes if not node.unregistered_at]

    def register(self, name: str, key: bytes) -> None:
        self._client.RegisterNode(RegisterNodeRequest(public_key=key, name=name))

    def unregister(self, node: int) -> None:
        self._client.UnregisterNode(UnregisterNodeRequest(node_id=node))

    def runs(self, number: int | None = None) -> dict[int, Any]:
        """The runs, or one of them, by number: status, pending_at, running_at, finished_at."""
        return dict(self._client.ListRuns(ListRunsRequest(run_id=number)).run_dict)

    def start_run(self, files: Mapping[str, bytes]) -> int | None:
        """Hand in an app as a run; its number, if it was taken."""
        from flwr.cli.build import build_fab_from_files

        with warnings.catch_warnings():
            # Flower names a pattern style that its own dependency has renamed.
            warnings.simplefilter("ignore", DeprecationWarning)
            bundle, _ = build_fab_from_files(dict(files))
        fab = fab_to_proto(Fab(hashlib.sha256(bundle).hexdigest(), bundle, {}))
        answer = self._client.StartRun(StartRunRequest(fab=fab))
        return int(answer.run_id) if answer.HasField("run_id") else None

    def stop_run(self, number: int) -> None:
        self._client.StopRun(StopRunRequest(run_id=number))

    def close(self) -> None:
        self._client.close()


def is_registered(app: Any, key: bytes) -> bool:
    """Whether the SuperLink whose app this is knows a key."""
    return app.state.linkstate_factory.state().get_node_id_by_public_key(key) is not None


def in_memory(database: str, manager: Any) -> tuple[Any, Any]:
    """The SuperLink's state with its books in a database, and the tensors of messages in memory only."""
    from flwr.server.superlink.linkstate import LinkStateFactory
    from flwr.supercore.object_store import ObjectStoreFactory

    store = ObjectStoreFactory()
    return store, LinkStateFactory(database, manager, store)


def hand_out(app: Any, side: str, response: bytes) -> tuple[bytes, list[str]]:
    """Flower's response to a pull with the parts of its messages, and the messages that are whole with it."""
    pulled = PULLED[side]()
    pulled.ParseFromString(response)
    state, room = app.state.linkstate_factory.state(), PARCEL
    parts, whole = dict[str, bytes](), list[str]()
    for envelope, tree in zip(pulled.messages_list, pulled.message_object_trees, strict=True):
        numbers = [one.object_id for one in iterate_object_tree(tree)]
        for number in numbers:
            content = None if number in parts else state.get_object(envelope.metadata.run_id, number)
            if content and len(content) <= room:
                parts[number] = content
                room -= len(content)
        if parts.keys() >= set(numbers):
            whole.append(tree.object_id)
    return pack([response, *parts.values()]), whole


def take_in(app: Any, side: str, request: bytes, response: bytes, parts: Sequence[bytes]) -> bytes:
    """Keep the parts that came with a push; Flower's response to it, which then asks for the others only."""
    asked, answer = (kind() for kind in PUSHED[side])
    asked.ParseFromString(request)
    answer.ParseFromString(response)
    if not asked.messages_list:
        return response
    state, missing = app.state.linkstate_factory.state(), dict.fromkeys(answer.objects_to_push)
    run = asked.messages_list[0].metadata.run_id
    for part in parts:
        number = get_object_id(part)
        if number in missing and state.store_object(run, answer.session_id, number, part):
            del missing[number]
    del answer.objects_to_push[:]
    answer.objects_to_push.extend(missing)
    return bytes(answer.SerializeToString())


def forget(app: Any, messages: Sequence[str]) -> None:
    """Drop messages that were received."""
    for number in messages:
        app.state.linkstate_factory.state().object_store.delete(number)


class ForPath:
    """A layer of the server for requests below one path; all others pass it by."""

    def __init__(self, app: Any, path: str, layer: Any) -> None:
        self._app, self._path = app, path
        self._layer = layer.cls(app, *layer.args, **layer.kwargs)

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        concerned = scope["type"] == "http" and str(scope["path"]).startswith(self._path)
        await (self._layer if concerned else self._app)(scope, receive, send)


def narrowed(layer: Any) -> Any:
    """One of the server's layers, for the requests that it looks at only.

    Each is a task and two queues for every request, nine of them more than half of what a request costs.
    """
    from starlette.middleware import Middleware

    for prefix, path in LAYERS.items():
        if layer.cls.__name__.startswith(prefix):
            return Middleware(ForPath, path=path, layer=layer)
    return layer


def run_superlink(
    middleware: Sequence[Any],
    serve: Callable[..., None],
    superexec: Callable[..., list[str]],
) -> None:
    """Run `flower-superlink` with the arguments of this process.

    `middleware` comes before all of Flower's own, outermost first; `serve` is called in place of
    `uvicorn.run`; `superexec` is given the arguments of the process that starts runs and returns its command.
    """
    app: Any = importlib.import_module("flwr.superlink.main")
    # Its package has a function of the same name, which an import would find.
    program: Any = importlib.import_module("flwr.superlink.cli.flower_superlink")
    original = program._get_superexec_command
    layers = app._get_middleware
    app._get_middleware = lambda: [*middleware, *map(narrowed, layers())]
    app.get_objectstore_linkstate_factories = in_memory
    program._get_superexec_command = lambda **options: superexec(*original(**options)[1:])
    program.uvicorn = SimpleNamespace(run=serve)
    program.flower_superlink()


def run_superexec(executor: SubprocessExecutor) -> None:
    """Run `flower-superexec` with the arguments of this process; `executor` starts what it finds."""
    from flwr.supercore.cli.flower_superexec import flower_superexec
    from flwr.supercore.superexec import run_superexec as loop

    loop.get_executor = lambda *given, **options: executor
    flower_superexec()


def run_serverapp() -> None:
    """Run `flwr-serverapp` with the arguments of this process."""
    from flwr.superlink.cli.flwr_serverapp import flwr_serverapp

    flwr_serverapp()


# Messages, at both ends -------------------------------------------------------------------------------------


class MessageLost(Exception):
    """A message that cannot be had whole, or is not taken."""


class Parcel:
    """One of Flower's requests or responses with parts of messages behind it; it is sent as those are."""

    def __init__(self, head: Any, parts: Iterable[bytes] = ()) -> None:
        self.head, self.parts = head, list(parts)

    def SerializeToString(self, deterministic: bool = True) -> bytes:  # noqa: N802
        return pack([self.head.SerializeToString(deterministic=deterministic), *self.parts])

    def ParseFromString(self, data: bytes) -> None:  # noqa: N802
        if data:
            head, *self.parts = unpack(data)
            self.head.ParseFromString(head)


class Incoming(NamedTuple):
    """A message that is there: its number, what Flower says of it, and how to get it whole."""

    number: str
    metadata: Any
    receive: Callable[[], Message]


class Post:
    """Sends messages and fetches them, with as few requests as their size allows.

    `client` makes the calls of one side, each by way of `call`; `pause` waits so many seconds.
    """

    def __init__(
        self,
        client: Any,
        side: str,
        node: NodeNumber,
        call: Callable[[Callable[[Any], Any], Any], Any] = lambda call, request: call(request),
        pause: Callable[[float], None] = time.sleep,
    ) -> None:
        self._client, self._side, self._node = client, side, node
        self._call, self._pause = call, pause

    def _whole(self, name: str, response: Callable[[], Any], request: Parcel) -> Parcel:
        """Make a call of ours."""

        def call(request: Parcel) -> Any:
            return self._client._unary_unary(
                path=self._side + name, rpc_method=name, request=request, response_type=response
            )

        answer: Parcel = self._call(call, request)
        return answer

    def pull(self, request: Any, last: str = "") -> list[Incoming]:
        """The messages that are there. `last` is the number of the one that was received before."""
        kind = PULLED[self._side]
        parcel = self._whole(PULL_WHOLE, lambda: Parcel(kind()), Parcel(request, [last.encode()]))
        parts = {get_object_id(part): part for part in parcel.parts}
        found = zip(parcel.head.messages_list, parcel.head.message_object_trees, strict=True)
        return [
            Incoming(
                tree.object_id,
                envelope.metadata,
                partial(self._receive, envelope.metadata.run_id, tree, parts),
            )
            for envelope, tree in found
        ]

    def _receive(self, run: int, tree: Any, parts: Mapping[str, bytes]) -> Message:
        """A message, of which some parts are here already."""
        number = tree.object_id
        contents, arrays = dict[str, bytes](), dict[str, tuple[Array, bytearray]]()
        self._fetch(run, tree, parts, contents, arrays)
        if any(one.object_id not in parts for one in iterate_object_tree(tree)):
            self._call(
                self._client.ConfirmMessageReceived,
                ConfirmMessageReceivedRequest(node=self._node, run_id=run, message_object_id=number),
            )
        message = inflate_object_from_contents(
            number, contents, objects={name: empty for name, (empty, _) in arrays.items()}
        )
        if not isinstance(message, Message):
            raise MessageLost(f"a {type(message).__name__} came in place of a message")
        if message.has_content():
            for record in message.content.array_records.values():
                for array in record.values():
                    array.data = arrays[array.data.decode()][1]
        message.metadata.__dict__["_message_id"] = number  # its own number is not in its content
        return message

    def _fetch(
        self,
        run: int,
        tree: Any,
        parts: Mapping[str, bytes],
        contents: dict[str, bytes],
        arrays: dict[str, tuple[Array, bytearray]],
    ) -> None:
        """Fetch a part of a message with all that is below it. The bytes of an array, which may be as many as
        a model has, are put together here, and its number is in their place until the message is made: Flower
        would hold them three times."""
        content = parts.get(tree.object_id) or self._part(run, tree.object_id)
        kind, children, _ = get_object_head_values_from_object_content(content)
        if kind != Array.__qualname__:
            contents[tree.object_id] = content
            for child in tree.children:
                self._fetch(run, child, parts, contents, arrays)
            return
        facts = json.loads(get_object_body(content, Array))
        arrays[tree.object_id] = (
            Array(facts["dtype"], tuple(facts["shape"]), facts["stype"], tree.object_id.encode()),
            self._joined(run, children, facts["arraychunk_ids"], parts),
        )

    def _joined(
        self, run: int, children: Sequence[str], order: Sequence[int], parts: Mapping[str, bytes]
    ) -> bytearray:
        """The bytes of an array, piece by piece; a piece that comes again is kept until then."""
        data, kept = bytearray(), dict[int, memoryview]()
        last = {place: turn for turn, place in enumerate(order)}
        for turn, place in enumerate(order):
            body = kept.pop(place, None)
            if body is None:
                piece = parts.get(children[place]) or self._part(run, children[place])
                length = get_object_head_values_from_object_content(piece)[2]
                body = memoryview(piece)[len(piece) - length :]
            if len(data) + len(body) > LARGEST:  # one piece may be named often
                raise MessageLost("the server sent an array that is larger than any model")
            data += body
            if last[place] > turn:
                kept[place] = body
        return data

    def _part(self, run: int, number: str) -> bytes:
        """One part of a message, which may still be on its way to the SuperLink."""
        request, seconds = PullObjectRequest(node=self._node, run_id=run, object_id=number), 0.05
        while True:
            answer = self._call(self._client.PullObject, request)
            if answer.object_available:
                return bytes(answer.object_content)
            if not answer.object_found:
                raise MessageLost("the server no longer has the whole message")
            self._pause(seconds)
            seconds = min(1.0, 2 * seconds)

    def push(self, messages: Sequence[Message], **facts: Any) -> list[str]:
        """Send messages with what Flower wants to know beside them; the numbers of those it took."""
        envelopes, trees, objects = list[Any](), list[Any](), dict[str, Any]()
        with no_object_id_recompute():
            for message in messages:
                message.metadata.__dict__["_message_id"] = message.object_id
                envelopes.append(message_to_proto(remove_content_from_message(message)))
                trees.append(get_object_tree(message))
                objects |= get_all_nested_objects(message)
        request, response = PUSHED[self._side]
        head = request(messages_list=envelopes, message_object_trees=trees, **facts)
        parcel = Parcel(head, _small(objects.values()))
        answer: Any = self._whole(PUSH_WHOLE, response, parcel)
        del parcel, head
        for number in answer.objects_to_push:
            part = PushObjectRequest(
                node=self._node,
                run_id=messages[0].metadata.run_id,
                object_id=number,
                object_content=objects.pop(number).deflate(),
                session_id=answer.session_id,
            )
            if not self._call(self._client.PushObject, part).stored:
                raise MessageLost("the server did not keep the message")
        return list(getattr(answer, "message_ids", ()))


def _small(objects: Iterable[Any]) -> Iterator[bytes]:
    """The parts that go with their message."""
    room = PARCEL
    for one in objects:
        if not isinstance(one, ArrayChunk) or len(one.data) <= room:
            content = one.deflate()
            if len(content) <= room:
                room -= len(content)
                yield content


class Lost:
    """What is read in place of an answer that could not be had whole."""

    def __init__(self, metadata: Any) -> None:
        self.metadata, self.error = metadata, SimpleNamespace(code=ErrorCode.MESSAGE_UNAVAILABLE)

    def has_error(self) -> bool:
        return True


class Grid:
    """Flower's grid, as the training loop is given it, with messages that cross in few requests."""

    def __init__(self, grid: Any) -> None:
        self._grid = grid
        self._post = Post(grid._runtime_client, RUNTIME, grid.node)

    def get_nodes(self) -> Any:
        return self._grid.get_nodes()

    def push_messages(self, messages: Sequence[Message]) -> list[str | None]:
        """Send messages; their numbers, None for one that was not taken."""
        numbers = list[str]()
        for first in range(0, len(messages), TOGETHER):
            numbers += self._post.push(messages[first : first + TOGETHER])
        return [number or None for number in numbers]

    def pull_messages(self, message_ids: Sequence[str]) -> Iterator[Message | Lost]:
        """The answers to these messages that are there. Each is fetched when it is its turn: all of them may
        be more than memory holds."""
        found = self._post.pull(PullAppMessagesRequest(message_ids=message_ids))
        return map(self._received, found)

    def _received(self, incoming: Incoming) -> Message | Lost:
        try:
            return incoming.receive()
        except MessageLost:
            return Lost(incoming.metadata)


# A site -----------------------------------------------------------------------------------------------------


class NotReached(Exception):
    """The coordinator is not reached, or has no time just now."""


class NotTrusted(Exception):
    """The server's certificate is not one that ours vouches for."""


class NotListed(Exception):
    """The coordinator does not know this key, or no longer."""


class StillOnline(Exception):
    """The SuperLink believes that this node is online already."""


class OtherVersion(Exception):
    """The SuperLink is of a version of Flower that does not speak with ours."""


class RunEnded(Exception):
    """The run a message belongs to is not running any more."""


def read_key(path: Path) -> ec.EllipticCurvePrivateKey:
    """A site's private key; a `ValueError` if it is none that Flower takes."""
    key = load_ssh_private_key(path.read_bytes(), None)
    if not isinstance(key, ec.EllipticCurvePrivateKey):
        raise ValueError("not an elliptic curve key")
    return key


class Node:
    """A site as Flower knows it: signs in, gives signs of life, fetches messages and sends the answers.

    A call that does not reach the coordinator is made again until it does, or until the node leaves. After
    each, `note` is called with whether it was reached; `pause` waits so many seconds. Signs of life are given
    by a thread, which calls `note` only.
    """

    def __init__(
        self,
        address: str,
        certificate: bytes,
        key: ec.EllipticCurvePrivateKey,
        note: Callable[[bool], None] = lambda reached: None,
        pause: Callable[[float], None] = time.sleep,
    ) -> None:
        from flwr.supercore.runtime_version_compatibility import RuntimeVersionMetadata

        signing = NodeAuthHttpInterceptor(key, key.public_key())
        version = Headers(dict(RuntimeVersionMetadata.from_local_component("SuperNode").as_metadata()))
        self._client = FleetHttpClient.from_server_address(address, False, certificate, [version, signing])
        self._key = key.public_key().public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo)
        self._note, self._pause = note, pause
        self._node = NodeNumber()
        self._post = Post(self._client, FLEET, self._node, self._call, pause)
        self._last = ""
        self._left, self._reached = threading.Event(), False
        self._beats = threading.Thread(target=self._give_signs_of_life, daemon=True)

    def activate(self) -> None:
        """Sign in."""
        request = ActivateNodeRequest(public_key=self._key, heartbeat_interval=INTERVAL)
        self._node.node_id = self._call(self._client.ActivateNode, request).node_id
        self._beats.start()

    def receive(self) -> Message | None:
        """The next message, whole; none if there is none."""
        for incoming in self._post.pull(PullMessagesRequest(node=self._node), self._last):
            self._last = incoming.number
            return incoming.receive()
        return None

    def send(self, reply: Message, seconds: float) -> None:
        """Send the answer to a message, which took so many seconds."""
        self._post.push([reply], node=self._node, clientapp_runtime_list=[seconds])

    def leave(self) -> None:
        """Sign out, if that can be done at once, and end all calls."""
        self._left.set()
        if self._beats.is_alive() and self._reached:
            with suppress(httpx.HTTPError):
                self._client.DeactivateNode(DeactivateNodeRequest(node_id=self._node.node_id))
        self._client.close()

    def _give_signs_of_life(self) -> None:
        request = SendNodeHeartbeatRequest(node=self._node, heartbeat_interval=INTERVAL)
        while not self._left.wait(BEAT):
            try:
                self._client.SendNodeHeartbeat(request)
                self._note(True)
            except httpx.HTTPStatusError:
                pass  # the next call for messages has the same answer, and says so
            except (httpx.HTTPError, RuntimeError):  # the latter: the client was closed meanwhile
                self._note(False)

    def _call(self, call: Callable[[Any], Answer], request: Any) -> Answer:
        """Make a call until the coordinator is reached."""
        seconds = FIRST_PAUSE
        while True:
            try:
                answer = call(request)
            except httpx.HTTPError as error:
                failure = failure_of(error)
                self._reached = not isinstance(failure, NotReached)
                self._note(self._reached)
                if self._reached or self._left.is_set():
                    raise failure from error
            else:
                self._reached = True
                self._note(True)
                return answer
            self._pause(seconds)
            seconds = min(LONGEST_PAUSE, 2 * seconds)


def failure_of(error: httpx.HTTPError) -> Exception:
    """What a call that failed means to a site."""
    if not isinstance(error, httpx.HTTPStatusError):
        cause: BaseException | None = error
        while cause is not None:
            if isinstance(cause, ssl.SSLCertVerificationError):
                return NotTrusted(str(cause))
            cause = cause.__cause__ or cause.__context__
        return NotReached(str(error))
    from flwr.supercore.error import ApiErrorCode, FlowerError

    status, reason = error.response.status_code, FlowerError.from_json(error.response.text)
    code = None if reason is None else reason.code
    if code == ApiErrorCode.RUNTIME_VERSION_INCOMPATIBLE:
        return OtherVersion(str(reason))
    if code == ApiErrorCode.FLEET_NODE_ACTIVATION_FAILED:
        return StillOnline(str(error))
    if status == FORBIDDEN:
        return RunEnded(str(error))
    if status in RETRIED:
        return NotReached(str(error))
    return NotListed(str(error)) if status in REFUSED else MessageLost(f"the server says {status}")
