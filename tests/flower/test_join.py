"""A site's process beside its SuperNode: a question that never comes whole does not hold up those after
it."""

from __future__ import annotations

import contextlib
import inspect
import os
import socket
import ssl
import threading
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.request import proxy_bypass

import httpx
import pytest
from flwr.proto.message_pb2 import PullObjectRequest, PullObjectResponse
from flwr.proto.node_pb2 import Node
from flwr.supercore.inflatable.inflatable_protobuf_utils import make_pull_object_fn_protobuf
from flwr.supercore.inflatable.inflatable_utils import pull_objects
from flwr.supercore.retry import http_retry
from flwr.supernode import start_client_internal
from tests.flower.outdated import DATED, redate

from equipoise.deploy.join import Task, distrusted
from equipoise.deploy.keys import new_keys
from equipoise.deploy.node_log import DROPPED, LOST, REACHED, Log
from equipoise.deploy.processes import free_port, no_proxy

LINES = (
    b"INFO :      Run ID 12 is not in `RUNNING` status. Ignoring message f1cc55d9.\n",
    b"ERROR :     Failed to receive message f1cc55d9: cut off\n",
    b"ERROR :     Server error '500 Internal Server Error' for url "
    b"'https://127.0.0.1:8000/v1/fleet/pull-messages'\n",
)
FINE = (
    b"INFO :      Run ID 12 is not in `RUNNING` status. Ignoring reply message f1cc55d9.\nINFO :      "
    b"Received successfully\n"
)


@dataclass
class SuperNode:
    """Has an object after so many looks; after `drops` looks it says that it never will."""

    log: Path
    looks: int = 10**9
    drops: int = 10**9
    closed: bool = False
    pulled: list[str] = field(default_factory=list)

    def PullObject(self, request: PullObjectRequest) -> PullObjectResponse:  # noqa: N802
        self.pulled.append(request.object_id)
        there = len(self.pulled) > self.looks
        if len(self.pulled) == self.drops:
            write(self.log, LINES[0])
        return PullObjectResponse(
            object_found=True, object_available=there, object_content=b"whole" if there else b""
        )

    def close(self) -> None:
        self.closed = True


def write(path: Path, data: bytes) -> None:
    with open(path, "ab") as file:
        file.write(data)


def pull(task: Any) -> dict[str, bytes]:
    """As Flower pulls a message, with less patience between two looks."""
    fetch = make_pull_object_fn_protobuf(task.PullObject, Node(node_id=1), 1)
    return pull_objects(["a"], fetch, initial_backoff=0.001, backoff_cap=0.001, max_tries_per_object=200)


@pytest.mark.parametrize("line", LINES)
def test_a_supernode_that_drops_a_message_is_noticed(line: bytes, tmp_path: Path) -> None:
    path = tmp_path / "node.log"
    write(path, line)  # an earlier one's
    log = Log(path)
    write(path, FINE)
    assert not log.astray() and log.text() == FINE.decode()
    for i in range(0, len(line), 7):  # however it comes out
        assert not log.astray() or any(word in line[:i] for word in DROPPED)
        write(path, line[i : i + 7])
    assert log.astray()
    write(path, FINE)
    assert log.astray()


def test_flower_says_it_in_these_words() -> None:
    source = inspect.getsource(start_client_internal)
    assert all(word.decode() in source for word in DROPPED if word.endswith(b"message "))
    for code in (500, 404):
        with pytest.raises(httpx.HTTPStatusError) as caught:
            httpx.Response(code, request=httpx.Request("POST", "https://a/b")).raise_for_status()
        assert str(caught.value).encode().startswith(DROPPED)


def test_a_question_on_its_way_is_waited_for(tmp_path: Path) -> None:
    write(tmp_path / "node.log", FINE)
    node: Any = SuperNode(tmp_path / "node.log", looks=5)
    task = Task(node, Log(tmp_path / "node.log"))
    assert pull(task) == {"a": b"whole"} and len(node.pulled) == 6
    task.close()
    assert node.closed


def test_a_question_that_never_comes_whole_is_given_up(tmp_path: Path) -> None:
    write(tmp_path / "node.log", FINE)
    node: Any = SuperNode(tmp_path / "node.log", drops=3)
    with pytest.raises(RuntimeError, match="the run was stopped before the whole question was here"):
        pull(Task(node, Log(tmp_path / "node.log")))
    assert len(node.pulled) == 3


@pytest.mark.parametrize("when", [*DATED, "soon"])
def test_why_a_server_is_not_trusted(when: str, tmp_path: Path) -> None:
    """Its dates, if it is them; another authority otherwise. The server is asked: Flower's log has no
    date."""
    new_keys(tmp_path, [], [])
    said = redate(tmp_path / "keys", "server", when)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(tmp_path / "keys" / "server.crt", tmp_path / "keys" / "server.key")
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def show() -> None:
            visitor, _ = listener.accept()
            with contextlib.suppress(OSError), context.wrap_socket(visitor, server_side=True) as line:
                line.recv(1)

        thread = threading.Thread(target=show)
        thread.start()
        found = distrusted(f"127.0.0.1:{listener.getsockname()[1]}", "ca.crt")
        thread.join()
    if when in DATED:
        assert found.startswith(f"the server's certificate {said}") and "`equipoise keys renew`" in found
    else:
        assert found == "the server is not one that ca.crt vouches for"


def test_a_server_that_is_gone_is_not_judged_by_its_dates() -> None:
    assert distrusted(f"127.0.0.1:{free_port()}", "ca.crt") == "the server is not one that ca.crt vouches for"


def test_the_log_says_when_the_coordinator_is_reached(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path, told = tmp_path / "node.log", list[bool]()
    write(path, b"INFO :      SuperNode ID: 1\n")  # of the last time
    log = Log(path, told.append)
    log.report()
    assert not log.online() and told == []
    write(path, b"INFO :      Super")
    log.report()
    write(path, b"Node ID: 12\n")
    log.report()
    log.report()
    assert log.online() and told == [True]
    write(path, b"WARNING :   Connection attempt failed, retrying in 1.00 seconds\n")
    log.report()
    assert not log.online() and told == [True]  # it may be back in a moment
    monkeypatch.setattr("equipoise.deploy.node_log.DOUBT", 0.0)
    log.report()
    assert told == [True, False]
    write(path, b"INFO :      Connection successful after 4.00 seconds and 3 tries.\n")
    log.report()
    assert told == [True, False, True]
    log.begin()
    log.report()
    assert told == [True, False, True, False]


def test_flower_still_says_it_in_these_words() -> None:
    said = inspect.getsource(start_client_internal) + inspect.getsource(http_retry)
    for word in (*REACHED, *LOST):
        assert word.decode() in said, word


def test_our_own_machine_is_never_reached_through_a_proxy(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HTTP_PROXY", "http://proxy.example.org:3128")
    monkeypatch.setenv("HTTPS_PROXY", "http://proxy.example.org:3128")
    monkeypatch.setenv("NO_PROXY", "intranet.example.org")
    monkeypatch.delenv("no_proxy", raising=False)
    no_proxy("10.0.0.7")
    assert all(proxy_bypass(host) for host in ("127.0.0.1", "localhost", "10.0.0.7", "intranet.example.org"))
    assert not proxy_bypass("fl.example.org")
    before = os.environ["NO_PROXY"]
    no_proxy("10.0.0.7")
    assert os.environ["NO_PROXY"] == os.environ["no_proxy"] == before
