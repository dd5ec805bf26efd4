"""The coordinator's one port, in a real SuperLink process: who may control runs, what a stranger can do; and
last a run over it."""

from __future__ import annotations

import contextlib
import http.client
import json
import os
import re
import signal
import socket
import ssl
import stat
import threading
import tomllib
from base64 import b64encode
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from subprocess import DEVNULL, PIPE, Popen
from typing import Any

import httpx
import pytest
import tomli_w
from cryptography.hazmat.primitives.asymmetric import ec
from flwr.proto.control_pb2 import ListRunsRequest, StartRunRequest
from flwr.proto.runtime_pb2 import AcquireTaskRequest
from flwr.supercore.control import ControlHttpClient
from flwr.supercore.primitives.asymmetric import public_key_to_bytes, sign_message
from flwr.supercore.protobuf.client import ProtobufCall, ProtobufRequestContext
from tests.flower.test_processes import OPEN, PATIENT, nothing_left

from equipoise.config import Config
from equipoise.deploy import join, link, processes
from equipoise.deploy.coordinator import federated
from equipoise.deploy.limits import Limits
from equipoise.deploy.policy import approved
from equipoise.deploy.rehearse import Stage, allowed, stage
from equipoise.deploy.standing import standing
from equipoise.run_folder import private_folder
from equipoise.running import run

pytestmark = pytest.mark.slow
MUCH = 50 * 2**20
OLD = ("superlink.db", "superlink.db-wal")
"""where answers of sites were kept once"""
PATCH = """
import json, os, sys
from equipoise.deploy import inside
fork = json.loads(os.environ["EQUIPOISE_TEST_FORK"])
inside.command = lambda *words: ["env", f"EQUIPOISE_TEST_WORDS={json.dumps(words)}", *fork]
"""
SERVER = f"""{PATCH}
import runpy
runpy.run_module("equipoise.deploy.superlink", run_name="__main__", alter_sys=True)
"""
"""in a Python of its own; what it starts are forks: who looks for runs, and the training loop of each"""
FORK = """
import os, sys
from flwr.supercore import telemetry
os.umask(0o077)
telemetry.FLWR_TELEMETRY_ENABLED = "0"  # it was imported before that was set
"""
INSIDE = f"""{FORK}{PATCH}
os.environ["FLWR_SUPEREXEC_TASK_POLL_INTERVAL"] = "0.5"  # each look for runs keeps the server busy
sys.argv[1:] = json.loads(os.environ["EQUIPOISE_TEST_WORDS"])
inside.main()
"""
SITE = f"""{FORK}
from equipoise.cli import main
print(os.getpid(), flush=True)
main(["site", "join", sys.argv[1]])
"""


@dataclass
class Server:
    made: Stage

    @property
    def folder(self) -> Path:
        return self.made.coordinator

    @property
    def port(self) -> int:
        return self.made.port

    @property
    def memory(self) -> int:
        assert self.made.server is not None
        found = re.search(r"VmRSS:\s+(\d+) kB", Path(f"/proc/{self.made.server.pid}/status").read_text())
        assert found is not None
        return int(found[1]) * 1024

    def dial(self) -> ssl.SSLSocket:
        trust = ssl.create_default_context(cafile=str(self.folder / "keys" / "ca.crt"))
        line = socket.create_connection(("127.0.0.1", self.port), 60)
        return trust.wrap_socket(line, server_hostname="127.0.0.1")


Play = Callable[[str], Config]
Forked = Callable[..., list[str]]


@pytest.fixture(scope="module")
def play(tiny: Callable[..., Config]) -> Play:
    """A tiny run of two sites, by its method."""
    small: dict[str, Any] = {
        "partition": {"sites": 2},
        "evaluate": {"every": 2},
        "exchange": {"min_sites": 2},
    }
    return lambda method: federated(tiny(method, **small)).with_engine(**PATIENT)


@pytest.fixture(scope="module")
def server(play: Play, forked: Forked, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """A server that was started by somebody whose umask hides nothing."""
    folder, before, start = tmp_path_factory.mktemp("port") / "federation", os.umask(0), processes.start
    inside = json.dumps(forked(INSIDE))

    def begun(command: Sequence[str], *given: Any) -> Popen[bytes]:
        python, *program = command[:3]
        assert program == ["-m", "equipoise.deploy.superlink"]
        return start([python, "-c", SERVER, *command[3:]], *given)

    with nothing_left(), stage(play("fca"), folder, {"methods": approved(), **OPEN}) as made:
        try:
            for name in OLD:
                (private_folder(made.coordinator / "flower") / name).write_text("answers of sites")
            limits = Limits(header_seconds=5.0)
            with pytest.MonkeyPatch.context() as patch:
                patch.setattr(processes, "start", begun)
                patch.setenv("EQUIPOISE_TEST_FORK", inside)
                made.server = link.start(made.coordinator, "127.0.0.1", made.port, limits)
        finally:
            os.umask(before)
        yield Server(made)


class Claims:
    """What a local stranger may try: to have been forwarded from here, and to know a secret."""

    def intercept(self, context: ProtobufRequestContext, call_next: ProtobufCall) -> httpx.Response:
        context.request.headers.update({"x-forwarded-for": "127.0.0.1", "forwarded": "for=127.0.0.1"})
        context.request.headers["x-equipoise-secret"] = "0" * 64
        return call_next(context)


@pytest.mark.parametrize("claims", [[], [Claims()]])
def test_a_local_stranger_controls_nothing(server: Server, claims: list[Claims]) -> None:
    certificate = (server.folder / "keys" / "ca.crt").read_bytes()
    client = ControlHttpClient.from_server_address(f"127.0.0.1:{server.port}", False, certificate, claims)
    for call, request in ((client.ListRuns, ListRunsRequest()), (client.StartRun, StartRunRequest())):
        with pytest.raises(httpx.HTTPStatusError, match="403"):
            call(request)  # type: ignore[operator]
    client.close()


def test_a_local_stranger_is_given_no_task_of_the_server(server: Server) -> None:
    body = AcquireTaskRequest(supported_task_types=["flwr-serverapp"]).SerializeToString()
    answer = httpx.post(
        f"https://127.0.0.1:{server.port}/v1/runtime/acquire-task",
        content=body,
        headers={"content-type": "application/protobuf"},
        verify=ssl.create_default_context(cafile=str(server.folder / "keys" / "ca.crt")),
    )
    assert answer.status_code == 403


def test_who_has_the_secret_file_does(server: Server) -> None:
    new = {"status": "registered", "since": ""}
    assert standing(server.folder) == {"sites": {"site-00": new, "site-01": new}, "runs": []}


def signed() -> str:
    """The headers of a site that has a key, but none that is listed."""
    private, now = ec.generate_private_key(ec.SECP384R1()), datetime.now(UTC).isoformat()
    key, signature = public_key_to_bytes(private.public_key()), sign_message(private, now.encode())
    lines = {"flwr-public-key": b64encode(key).decode(), "flwr-signature": b64encode(signature).decode()}
    return "".join(f"{name}: {value}\r\n" for name, value in {"flwr-timestamp": now, **lines}.items())


@pytest.mark.parametrize("who", ["without a key", "with a key that is not listed"])
def test_a_stranger_is_refused_before_its_body(server: Server, who: str) -> None:
    before, sent, line = server.memory, 0, server.dial()
    head = "POST /v1/fleet/push-object HTTP/1.1\r\nhost: x\r\ncontent-type: application/protobuf\r\n"
    line.sendall(f"{head}{signed() if 'listed' in who else ''}content-length: {MUCH}\r\n\r\n".encode())
    try:
        while sent < MUCH:
            sent += line.send(bytes(2**16))
    except OSError:
        pass
    line.close()
    assert sent < MUCH // 2
    assert server.memory - before < MUCH // 5


def test_nobody_else_can_read_what_the_server_writes(server: Server) -> None:
    found = [server.folder, *server.folder.rglob("*")]
    flower = server.folder / "flower"
    inner = [path for path in found if path.is_dir() or path.suffix == ".log" or flower in path.parents]
    names = {path.name for path in inner}
    assert {"coordinator", "keys", "sites", "flower", "server.log", "secret", "books.db"} <= names
    for path in inner:
        assert not stat.S_IMODE(path.stat().st_mode) & 0o077, path


def test_answers_that_were_kept_once_are_gone(server: Server) -> None:
    assert not {path.name for path in (server.folder / "flower").iterdir()} & set(OLD)


def test_half_a_request_is_not_waited_for(server: Server) -> None:
    """The limits that the server was started with count in its process."""
    with server.dial() as line:
        line.sendall(b"POST /v1/fleet/push-object HTTP/1.1\r\nho")
        with contextlib.suppress(ConnectionError):
            assert line.recv(1) == b""


def test_nothing_is_said_in_plain_text(server: Server) -> None:
    """On loopback or elsewhere."""
    plain = http.client.HTTPConnection("127.0.0.1", server.port, timeout=300)
    plain.request("GET", "/v1/fleet/")
    with pytest.raises((http.client.HTTPException, OSError)):
        plain.getresponse()


@contextmanager
def joined(made: Stage, forked: Forked, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Two sites: one is a process of its own, one a thread of ours; both have imported all they need."""
    done, answer = threading.Event(), join.answer

    def until_done(*given: Any) -> bool:
        if done.is_set():
            raise KeyboardInterrupt
        return answer(*given)

    monkeypatch.setattr(join, "answer", until_done)
    monkeypatch.setattr("equipoise.deploy.join.signal.signal", lambda *given: None)  # not for a thread to set
    folder = made.site("site-00")
    environment = processes.environment(private_folder(folder / "flower"))
    there = Popen(forked(SITE, folder), env=environment, stdin=DEVNULL, stdout=PIPE)
    assert there.stdout is not None
    number = int(there.stdout.readline())
    with there.stdout, ThreadPoolExecutor(1) as pool:
        here = pool.submit(join.join, made.site("site-01"))
        try:
            yield
        finally:
            done.set()
            os.kill(number, signal.SIGTERM)
            here.result()
            assert there.wait(60) == 0


@pytest.mark.parametrize(
    "methods", [("fca",), pytest.param(("fedsdc", "fediic"), marks=pytest.mark.sweep)], ids="-".join
)
def test_methods_give_the_bits_of_the_simulation(
    methods: tuple[str, ...],
    server: Server,
    play: Play,
    forked: Forked,
    rows: Callable[[Path], list[dict[str, Any]]],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Private state; in the sweep leaves that are read site by site, and several questions a round."""
    plays = {method: play(method) for method in methods}
    each = sorted({leaf for config in plays.values() for leaf in allowed(config)})
    for folder in (server.made.folder / "sites").iterdir():
        rules = tomllib.loads((folder / "policy.toml").read_text())
        (folder / "policy.toml").write_text(tomli_w.dumps(rules | {"each": each}))
    before = len(standing(server.folder)["runs"])
    with nothing_left(), joined(server.made, forked, monkeypatch):
        for method, config in plays.items():
            found = server.made.perform(config, tmp_path / method)
            assert found["state_hash"] == run(config, tmp_path / f"{method}-here").state_hash
            assert rows(tmp_path / method) == rows(tmp_path / f"{method}-here")
    assert len(standing(server.folder)["runs"]) == before + len(plays)
