"""What we need of Flower beyond its public interface, thing by thing, and that it is there.

Each line of `NEEDS` is one private thing that `equipoise.deploy.flower` uses, with what it must be like. With
another version of Flower the test names whatever is not so any more. docs/flower.md says what to do then.
"""

from __future__ import annotations

import ast
import importlib
import inspect
import re
import tomllib
from collections.abc import Callable, Iterator
from functools import cache
from importlib.metadata import version
from pathlib import Path
from typing import Any

import flwr
import pytest

import equipoise
from equipoise.cli.failure import FLOWER
from equipoise.deploy import flower, superlink
from equipoise.deploy.limits import Limits

SOURCE = Path(equipoise.__file__).parent
ADAPTER = SOURCE / "deploy" / "flower.py"
PUBLIC = {"flwr.app", "flwr.clientapp", "flwr.serverapp"}
Check = Callable[[str, str], Iterator[str]]


# Kinds of needs ---------------------------------------------------------------------------------------------


def thing(module: str, name: str) -> Any:
    """What a module has under a name, with dots for what a class has."""
    value: Any = importlib.import_module(module)
    for part in name.split("."):
        value = getattr(value, part)
    return value


def takes(*names: str) -> Check:
    """A function, method or class that can be called with these arguments (a star: only by name)."""

    def check(module: str, name: str) -> Iterator[str]:
        known = inspect.signature(thing(module, name)).parameters
        open_ended = any(one.kind is inspect.Parameter.VAR_KEYWORD for one in known.values())
        for wanted in names:
            if wanted.lstrip("*") not in known and not open_ended:
                yield f"no longer takes '{wanted.lstrip('*')}' (it takes {', '.join(known)})"
        order = [one for one in known if one != "self"]
        for place, wanted in enumerate(one for one in names if not one.startswith("*")):
            if wanted in known and order[place : place + 1] != [wanted]:
                yield f"has '{wanted}' in another place (it takes {', '.join(order)})"
        given = {one.lstrip("*") for one in names} | {"self"}
        for one in known.values():
            needed = one.default is one.empty and one.kind not in (one.VAR_KEYWORD, one.VAR_POSITIONAL)
            if needed and one.name not in given:
                yield f"needs '{one.name}' now, which we do not give"

    return check


def fields(*names: str) -> Check:
    """A protobuf message, or a class with annotated fields, that has these."""

    def check(module: str, name: str) -> Iterator[str]:
        value = thing(module, name)
        descriptor = getattr(value, "DESCRIPTOR", None)
        known = descriptor.fields_by_name if descriptor is not None else inspect.get_annotations(value)
        for wanted in names:
            if wanted not in known:
                yield f"has no field '{wanted}' any more (it has {', '.join(known)})"

    return check


def has(*names: str) -> Check:
    """A class, enumeration or module that has these."""

    def check(module: str, name: str) -> Iterator[str]:
        for wanted in names:
            if not hasattr(thing(module, name), wanted):
                yield f"has no '{wanted}' any more"

    return check


def equals(value: Any) -> Check:
    """A constant."""

    def check(module: str, name: str) -> Iterator[str]:
        if (now := thing(module, name)) != value:
            yield f"is {now!r} now, and was {value!r}"

    return check


def calls(**methods: str) -> Check:
    """A client with these methods, each of one argument, that post to these paths."""

    def check(module: str, name: str) -> Iterator[str]:
        for method, path in methods.items():
            try:
                source = inspect.getsource(thing(module, f"{name}.{method}"))
            except AttributeError:
                yield f"has no '{method}' any more"
                continue
            if f'"{path}"' not in source:
                yield f"{method} no longer posts to {path}"

    return check


def says(*pieces: str) -> Check:
    """A part of a module that is not imported here as that takes seconds: its source has these pieces."""

    def check(module: str, name: str) -> Iterator[str]:
        source = definition(module, name)
        if source is None:
            yield "is not there any more"
            return
        for piece in pieces:
            if piece not in source:
                yield f"no longer has `{piece}`"

    return check


def at_most(value: float) -> Check:
    """A constant that ours must not fall short of."""

    def check(module: str, name: str) -> Iterator[str]:
        if (now := thing(module, name)) > value:
            yield f"is {now!r} now, which is more than our {value!r}"

    return check


def exports(module: str, name: str) -> Iterator[str]:
    """A package that passes a name on, looked up without importing it."""
    imports = (
        node for node in ast.walk(ast.parse(module_source(module))) if isinstance(node, ast.ImportFrom)
    )
    if name not in {alias.asname or alias.name for node in imports for alias in node.names}:
        yield "is not there any more"


def both(*checks: Check) -> Check:
    def check(module: str, name: str) -> Iterator[str]:
        for one in checks:
            yield from one(module, name)

    return check


@cache
def module_source(module: str) -> str:
    path = Path(flwr.__file__).parent.joinpath(*module.split(".")[1:])
    path = path / "__init__.py" if path.is_dir() else path.with_suffix(".py")
    return path.read_text() if path.exists() else ""


def definition(module: str, name: str) -> str | None:
    """The source of a function or class; of a whole module where the name is a star."""
    tree = ast.parse(module_source(module))
    if name == "*":
        return ast.unparse(tree) or None
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef | ast.ClassDef) and node.name == name:
            return ast.unparse(node)
    return None


# What we need -----------------------------------------------------------------------------------------------

CLIENT = takes("server_address", "insecure", "root_certificates", "interceptors")
MEMBER = "flwr.supercore.inflatable.inflatable_object"
NEEDS: dict[str, Check] = {
    # What sites and our own processes send with every request
    "flwr.common.constant:TIMESTAMP_HEADER": equals("flwr-timestamp"),
    "flwr.common.constant:TIMESTAMP_TOLERANCE": equals(300),
    "flwr.common.constant:SYSTEM_TIME_TOLERANCE": equals(5),
    "flwr.supercore.constant:FLEET_HTTP_PUBLIC_KEY_HEADER": equals("flwr-public-key"),
    "flwr.supercore.constant:FLEET_HTTP_SIGNATURE_HEADER": equals("flwr-signature"),
    "flwr.supercore.primitives.asymmetric:bytes_to_public_key": takes("public_key_bytes"),
    "flwr.supercore.primitives.asymmetric:verify_signature": takes("public_key", "message", "signature"),
    "flwr.supercore.protobuf.client:ProtobufClient": takes("base_url", "*interceptors"),
    "flwr.supercore.protobuf.client:ProtobufCall": lambda module, name: iter(()),
    "flwr.supercore.protobuf.client:ProtobufRequestContext": fields("request"),
    "flwr.supercore.runtime_version_compatibility:RuntimeVersionMetadata": says(
        "def from_local_component(cls, component_name: str", "def as_metadata(self)"
    ),
    # The control of runs and nodes
    "flwr.supercore.control:ControlHttpClient": both(
        calls(
            ListNodes="/v1/control/list-nodes",
            RegisterNode="/v1/control/register-node",
            UnregisterNode="/v1/control/unregister-node",
            ListRuns="/v1/control/list-runs",
            StartRun="/v1/control/start-run",
            StopRun="/v1/control/stop-run",
        ),
        has("close"),
    ),
    "flwr.supercore.control:ControlHttpClient.from_server_address": CLIENT,
    "flwr.proto.control_pb2:ListNodesRequest": fields(),
    "flwr.proto.control_pb2:ListNodesResponse": fields("nodes_info"),
    "flwr.proto.node_pb2:NodeInfo": fields(
        "node_id", "public_key", "status", "last_activated_at", "last_deactivated_at", "unregistered_at"
    ),
    "flwr.proto.control_pb2:RegisterNodeRequest": fields("public_key", "name"),
    "flwr.proto.control_pb2:UnregisterNodeRequest": fields("node_id"),
    "flwr.proto.control_pb2:ListRunsRequest": fields("run_id"),
    "flwr.proto.control_pb2:ListRunsResponse": fields("run_dict"),
    "flwr.proto.run_pb2:Run": fields("status", "pending_at", "running_at", "finished_at"),
    "flwr.proto.run_pb2:RunStatus": fields("status", "sub_status", "details"),
    "flwr.proto.control_pb2:StartRunRequest": fields("fab"),
    "flwr.proto.control_pb2:StartRunResponse": fields("run_id"),
    "flwr.proto.control_pb2:StopRunRequest": fields("run_id"),
    "flwr.supercore.fab:Fab": takes("hash_str", "content", "verifications"),
    "flwr.common.serde:fab_to_proto": takes("fab"),
    "flwr.cli.build:build_fab_from_files": says("def build_fab_from_files(files: "),
    # A node's calls
    "flwr.supernode.fleet_http_client:FleetHttpClient": both(
        calls(
            ActivateNode="/v1/fleet/activate-node",
            DeactivateNode="/v1/fleet/deactivate-node",
            SendNodeHeartbeat="/v1/fleet/send-node-heartbeat",
            PullMessages="/v1/fleet/pull-messages",
            PushMessages="/v1/fleet/push-messages",
            PullObject="/v1/fleet/pull-object",
            PushObject="/v1/fleet/push-object",
            ConfirmMessageReceived="/v1/fleet/confirm-message-received",
        ),
        has("close"),
    ),
    "flwr.supernode.fleet_http_client:FleetHttpClient.from_server_address": CLIENT,
    "flwr.supernode.node_auth_http_interceptor:NodeAuthHttpInterceptor": takes("private_key", "public_key"),
    "flwr.proto.node_pb2:Node": fields("node_id"),
    "flwr.proto.fleet_pb2:ActivateNodeRequest": fields("public_key", "heartbeat_interval"),
    "flwr.proto.fleet_pb2:ActivateNodeResponse": fields("node_id"),
    "flwr.proto.fleet_pb2:DeactivateNodeRequest": fields("node_id"),
    "flwr.proto.heartbeat_pb2:SendNodeHeartbeatRequest": fields("node", "heartbeat_interval"),
    "flwr.proto.fleet_pb2:PullMessagesRequest": fields("node"),
    "flwr.proto.fleet_pb2:PullMessagesResponse": fields("messages_list", "message_object_trees"),
    "flwr.proto.message_pb2:ObjectTree": fields("object_id", "children"),
    "flwr.proto.message_pb2:Message": fields("metadata"),
    "flwr.proto.message_pb2:Metadata": fields("run_id"),
    "flwr.proto.message_pb2:PullObjectRequest": fields("node", "run_id", "object_id"),
    "flwr.proto.message_pb2:PullObjectResponse": fields("object_found", "object_available", "object_content"),
    "flwr.proto.message_pb2:ConfirmMessageReceivedRequest": fields("node", "run_id", "message_object_id"),
    "flwr.proto.fleet_pb2:PushMessagesRequest": fields(
        "node", "messages_list", "message_object_trees", "clientapp_runtime_list"
    ),
    "flwr.proto.fleet_pb2:PushMessagesResponse": fields("objects_to_push", "session_id"),
    "flwr.proto.message_pb2:PushObjectRequest": fields(
        "node", "run_id", "object_id", "object_content", "session_id"
    ),
    "flwr.proto.message_pb2:PushObjectResponse": fields("stored"),
    "flwr.proto.runtime_pb2:PullAppMessagesRequest": fields("message_ids"),
    "flwr.proto.runtime_pb2:PullAppMessagesResponse": fields("messages_list", "message_object_trees"),
    "flwr.proto.runtime_pb2:PushAppMessagesRequest": fields("messages_list", "message_object_trees"),
    "flwr.proto.runtime_pb2:PushAppMessagesResponse": fields("message_ids", "objects_to_push", "session_id"),
    "flwr.supercore.protobuf.client:ProtobufClient._unary_unary": takes(
        "*path", "*rpc_method", "*request", "*response_type"
    ),
    "flwr.supercore.protobuf.client:_unary_unary": says(
        "request.SerializeToString(deterministic=True)", "result.ParseFromString(response.content)"
    ),
    "flwr.superlink.grid.http_grid:HttpGrid": says(
        "def _runtime_client(self) -> RuntimeHttpClient", "self.node = Node(", "def get_nodes(self)"
    ),
    "flwr.supercore.runtime.runtime_http_client:RuntimeHttpClient": says(
        "'/v1/runtime/pull-object'", "'/v1/runtime/push-object'", "'/v1/runtime/confirm-message-received'"
    ),
    "flwr.common.constant:ErrorCode": has("MESSAGE_UNAVAILABLE"),
    "flwr.app.message.arraychunk:ArrayChunk": fields("data"),
    "flwr.app.message:remove_content_from_message": takes("message"),
    "flwr.common.serde:message_to_proto": takes("message"),
    f"{MEMBER}:get_all_nested_objects": takes("obj"),
    f"{MEMBER}:get_object_tree": takes("obj"),
    f"{MEMBER}:get_object_id": takes("object_content"),
    f"{MEMBER}:iterate_object_tree": takes("tree"),
    f"{MEMBER}:get_object_body": takes("object_content", "cls"),
    f"{MEMBER}:get_object_head_values_from_object_content": takes("object_content"),
    "flwr.app.message.array:Array": says(
        "'dtype': self.dtype, 'shape': self.shape, 'stype': self.stype, 'arraychunk_ids': arraychunk_ids"
    ),
    f"{MEMBER}:no_object_id_recompute": takes(),
    "flwr.supercore.inflatable.inflatable_utils:inflate_object_from_contents": takes(
        "object_id", "object_contents", "*objects"
    ),
    "flwr.supercore.error:FlowerError": exports,
    "flwr.supercore.error:ApiErrorCode": exports,
    "flwr.supercore.error.base:FlowerError": says("def from_json(value: ", "code"),
    "flwr.supercore.error.catalog:*": says(
        "FLEET_RUN_STATUS_NOT_ALLOWED: ApiErrorSpec(status_code=StatusCode.PERMISSION_DENIED, "
        "http_status_code=status.HTTP_403_FORBIDDEN",
        "FLEET_NODE_ACTIVATION_FAILED: ApiErrorSpec(status_code=StatusCode.FAILED_PRECONDITION, "
        "http_status_code=status.HTTP_412_PRECONDITION_FAILED",
        "RUNTIME_VERSION_INCOMPATIBLE: ApiErrorSpec(",
    ),
    "flwr.superlink.servicer.fleet.fleet_handlers:activate_node": says(
        "FLEET_NODE_ACTIVATION_FAILED", "not state.activate_node("
    ),
    "flwr.superlink.servicer.fleet.fleet_handlers:pull_messages": says("node_id=node_id, limit=1"),
    "flwr.common.constant:HEARTBEAT_MIN_INTERVAL": at_most(flower.INTERVAL),
    "flwr.common.constant:FLWR_PRIVATE_MAX_ARRAY_CHUNK_SIZE": at_most(Limits().body_mb * 2**20),
    # The server and the processes beside it
    "flwr.supercore.constant:TaskType": has("SERVER_APP"),
    "flwr.supercore.superexec.executor:ExecutionSpec": fields(
        "task_type", "runtime_api_address", "token", "root_certificates_path", "parent_pid", "task_id"
    ),
    "flwr.supercore.superexec.executor:LaunchResult": has("accepted", "failed"),
    "flwr.supercore.superexec.executor.subprocess_executor:SubprocessExecutor": has(
        "get_eligible_capacity", "wait_for_capacity", "launch", "close", "reconcile"
    ),
    "flwr.supercore.superexec.run_superexec:*": says("get_executor(", "'FLWR_SUPEREXEC_TASK_POLL_INTERVAL'"),
    "flwr.supercore.cli.flower_superexec:flower_superexec": says("def flower_superexec()"),
    "flwr.superlink.cli.flwr_serverapp:flwr_serverapp": says("def flwr_serverapp()"),
    "flwr.superlink.main:_get_middleware": says(
        *("list[Middleware]", "BaseHTTPMiddleware, dispatch=http_error_translator"),
        *("ControlAuthenticationMiddleware", "ProtobufTranslationMiddleware", "NodeAuthMiddleware"),
    ),
    "flwr.superlink.main:*": says("get_objectstore_linkstate_factories(", "=_get_middleware()"),
    "flwr.superlink.routers.control.middlewares:_is_control_path": says("path.startswith('/v1/control/')"),
    "flwr.superlink.routers.control.middlewares:ControlAuthenticationMiddleware": says(
        "not _is_control_path(request.url.path)"
    ),
    "flwr.superlink.routers.fleet.node_auth:NodeAuthMiddleware": says(
        "request.url.path.startswith('/v1/fleet/')"
    ),
    "flwr.superlink.routers.fleet.middlewares:FleetEventLogMiddleware": says(
        "not request.url.path.startswith('/v1/fleet/')"
    ),
    "flwr.superlink.cli.flower_superlink:_get_superexec_command": says("def _get_superexec_command("),
    "flwr.superlink.cli.flower_superlink:_run_superlink_http_api": says(
        "uvicorn.run(app=", "host=", "port=", "ssl_keyfile=", "ssl_certfile="
    ),
    "flwr.superlink.cli.flower_superlink:flower_superlink": says("def flower_superlink()"),
    "flwr.superlink.cli.flower_superlink:*": says(
        *("'--ssl-ca-certfile'", "'--ssl-certfile'", "'--ssl-keyfile'", "'--enable-supernode-auth'"),
        *("'--database'", "'--host'", "'--port'", "add_args_runtime_dependency_install("),
        *("FLWR_INTERNAL_GRPC_CONTROL_API", "FLWR_INTERNAL_GRPC_FLEET_API"),
    ),
    "flwr.common.args:*": says("'--disable-runtime-dependency-installation'"),
    "flwr.common.constant:FLWR_HOME": equals(flower.HOME),
    "flwr.common.constant:FLWR_INTERNAL_GRPC_CONTROL_API": equals("FLWR_INTERNAL_GRPC_CONTROL_API"),
    "flwr.common.constant:FLWR_INTERNAL_GRPC_FLEET_API": equals("FLWR_INTERNAL_GRPC_FLEET_API"),
    "flwr.supercore.constant:FLWR_DISABLE_UPDATE_CHECK": equals("FLWR_DISABLE_UPDATE_CHECK"),
    "flwr.supercore.telemetry:*": says("'FLWR_TELEMETRY_ENABLED'"),
    # Of the public interface, what the training loop uses
    "flwr.serverapp:Grid": has("get_nodes", "push_messages", "pull_messages"),
    "flwr.serverapp:Grid.push_messages": takes("messages"),
    "flwr.serverapp:Grid.pull_messages": takes("message_ids"),
    "flwr.app:Message": both(
        takes("*dst_node_id", "*message_type", "*ttl", "*group_id", "*reply_to"),
        has("metadata", "content", "has_error", "error"),
    ),
    "flwr.app:Array": fields("dtype", "shape", "stype", "data"),
    "flwr.server.superlink.linkstate:LinkStateFactory": exports,
    "flwr.server.superlink.linkstate.linkstate_factory:LinkStateFactory": says(
        "def __init__(self, database: str, federation_manager: FederationManager, objectstore_factory:"
    ),
    "flwr.supercore.object_store:ObjectStoreFactory": exports,
    "flwr.supercore.object_store.object_store_factory:ObjectStoreFactory": says("def store(self)"),
    "flwr.server.superlink.linkstate.linkstate:LinkState": says("def get_node_id_by_public_key(self"),
    "flwr.supercore.corestate.corestate:CoreState": says(
        "def get_object(self, run_id: int, object_id: str) -> bytes | None",
        "def store_object(self, run_id: int, session_id: str, object_id: str, object_content: bytes) -> bool",
        "def object_store(self)",
    ),
    "flwr.supercore.object_store.object_store:ObjectStore": says("def delete(self, object_id: str)"),
}


def changes(needs: dict[str, Check]) -> list[str]:
    """A sentence for everything that is not as we need it."""
    sentences = []
    for key, check in needs.items():
        module, _, name = key.partition(":")
        try:
            sentences += [f"{key} {what}" for what in check(module, name)]
        except (ImportError, AttributeError) as error:
            sentences.append(f"{key} is not there any more ({error})")
    return sentences


def test_flower_has_what_the_adapter_needs() -> None:
    wrong = changes(NEEDS)
    assert not wrong, f"Flower {version('flwr')} is not what deploy/flower.py expects:\n" + "\n".join(wrong)


# The rules themselves ---------------------------------------------------------------------------------------


def imports(path: Path) -> set[tuple[str, str]]:
    """What a file imports of Flower's, anywhere in it, as (module, name); a star for a whole module."""
    text, names = path.read_text(), set[tuple[str, str]]()
    if "flwr" not in text:
        return names
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.ImportFrom):
            names |= {(node.module or "", alias.name) for alias in node.names}
        elif isinstance(node, ast.Import):
            names |= {(alias.name, "*") for alias in node.names}
        elif isinstance(node, ast.Constant) and re.fullmatch(r"flwr(\.\w+)+", str(node.value)):
            names.add((str(node.value), "*"))
    return {(module, name) for module, name in names if module.partition(".")[0] == "flwr"}


def test_only_the_adapter_imports_what_is_private() -> None:
    files = [path for path in SOURCE.rglob("*.py") if path != ADAPTER]
    strays = {(path.name, *one) for path in files for one in imports(path) if one[0] not in PUBLIC}
    assert not strays, f"import it in deploy/flower.py and list it in NEEDS: {sorted(strays)}"


def test_all_that_the_adapter_imports_is_listed() -> None:
    """A module is listed by anything that is in it."""
    listed = {tuple(key.split(":")) for key in NEEDS}
    modules = {module for module, _ in listed}
    for module, name in imports(ADAPTER):
        submodule = f"{module}.{name}" in modules
        assert module in PUBLIC or submodule or (module, name) in listed, f"{module}:{name} is not in NEEDS"


def test_the_scan_sees_every_kind_of_import(tmp_path: Path) -> None:
    path = tmp_path / "file.py"
    path.write_text(
        "import flwr.proto\nimport flowers\ndef f():\n    from flwr.supercore.fab import Fab\n"
        "    return importlib.import_module('flwr.superlink.main'), 'flwr>=1.41'\n"
    )
    assert imports(path) == {
        ("flwr.proto", "*"),
        ("flwr.supercore.fab", "Fab"),
        ("flwr.superlink.main", "*"),
    }


@pytest.mark.parametrize(
    ("key", "check", "sentence"),
    [
        ("flwr.common.serde:gone", takes(), "is not there any more"),
        ("flwr.common.no_such:gone", equals(1), "is not there any more"),
        ("flwr.common.serde:fab_to_proto", takes("bundle"), "no longer takes 'bundle'"),
        ("flwr.common.serde:fab_to_proto", takes(), "needs 'fab' now"),
        ("flwr.supercore.fab:Fab", takes("content", "hash_str", "verifications"), "in another place"),
        ("flwr.proto.node_pb2:Node", fields("name"), "has no field 'name' any more (it has node_id)"),
        ("flwr.supercore.constant:TaskType", has("BAKE"), "has no 'BAKE' any more"),
        ("flwr.common.constant:FLWR_HOME", equals("HOME"), "is 'FLWR_HOME' now, and was 'HOME'"),
        ("flwr.common.constant:HEARTBEAT_MIN_INTERVAL", at_most(1), "is 10 now, which is more than our 1"),
        ("flwr.superlink.main:create_app", says("no such piece"), "no longer has `no such piece`"),
        ("flwr.superlink.main:no_such_function", says(), "is not there any more"),
        ("flwr.supercore.error:NoSuchError", exports, "is not there any more"),
        (
            "flwr.supernode.fleet_http_client:FleetHttpClient",
            calls(PullObject="/v2/pull", Bake="/v1/bake"),
            "PullObject no longer posts to /v2/pull",
        ),
    ],
)
def test_a_change_is_named(key: str, check: Check, sentence: str) -> None:
    sentences = changes({key: check})
    assert sentences and sentences[0].startswith(key) and sentence in sentences[0], sentences


def test_what_is_admitted_is_said_alike_everywhere() -> None:
    """The range of the extra is what users are told to install, and what the table of versions admits."""
    root = Path(__file__).resolve().parents[2]
    (needed,) = tomllib.loads((root / "pyproject.toml").read_text())["project"]["optional-dependencies"][
        "flower"
    ]
    assert needed == FLOWER
    assert f'`pip install "{FLOWER}"`' in (root / "docs" / "install.md").read_text()
    first, after = re.fullmatch(r"flwr>=1\.(\d+),<1\.(\d+)", FLOWER).groups()  # type: ignore[union-attr]
    admitted = re.findall(
        r"^\| 1\.(\d+) \| admitted", (root / "docs" / "flower.md").read_text(), re.MULTILINE
    )
    assert list(map(int, admitted)) == list(range(int(first), int(after)))
    pinned = re.search(r"^flwr==1\.(\d+)\.", (root / "constraints.txt").read_text(), re.MULTILINE)
    assert pinned and pinned[1] in admitted


def test_what_the_server_builds_on() -> None:
    """Paths of both sides; no message has no bytes; nobody is kept waiting until its call has timed out."""
    fleet, runtime = (
        importlib.import_module(f"flwr.{name}") for name in ("proto.fleet_pb2", "proto.runtime_pb2")
    )
    translation = definition("flwr.supercore.protobuf.translation", "*") or ""
    for side in superlink.SENDERS:
        for call in (flower.PUSH, flower.PULL, flower.PUSH_PART):
            assert f"{side}{call}" in translation, f"{side}{call} is not a path of Flower's any more"
    assert fleet.PullMessagesResponse().SerializeToString() == b""
    assert runtime.PullAppMessagesResponse().SerializeToString() == b""
    client = inspect.signature(thing("flwr.supercore.protobuf.client", "ProtobufClient")).parameters
    assert max(superlink.HOLD.values()) < client["timeout"].default
