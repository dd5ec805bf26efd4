"""The server's doors (from another machine there is only the one for sites) and its bell; processes that end with all they started."""

from __future__ import annotations

import asyncio
import sys
import time
from pathlib import Path
from typing import Any

import httpx
import pytest
from flwr.supercore.retry.http_retry import _RETRYABLE_STATUS_CODES

from equipoise.deploy import processes, superlink
from equipoise.deploy.superlink import SitesOnly


def status(path: str, client: Any, kind: str = "http") -> int:
    """What an app that always says 200 says behind the doors."""
    said: list[dict[str, Any]] = []

    async def app(scope: Any, receive: Any, send: Any) -> None:
        await send({"type": "http.response.start", "status": 200})

    async def send(message: Any) -> None:
        said.append(message)

    asyncio.run(SitesOnly(app)({"type": kind, "path": path, "client": client}, None, send))
    return int(said[0]["status"])


@pytest.mark.parametrize(
    "path", ["/v1/control/start-run", "/v1/control/register-node", "/v1/runtime/acquire-task", "/docs", "/v1/fleet"]
)
@pytest.mark.parametrize("client", [("192.0.2.7", 5), ("2001:db8::1", 5), None, ("unix", 0)])
def test_from_elsewhere_nothing_but_the_fleet(path: str, client: Any) -> None:
    assert status(path, client) == 403


@pytest.mark.parametrize("client", [("127.0.0.1", 5), ("::1", 5)])
def test_from_here_everything(client: Any) -> None:
    assert status("/v1/control/start-run", client) == 200
    assert status("/v1/runtime/acquire-task", client) == 200


def test_sites_come_in_from_anywhere() -> None:
    assert status("/v1/fleet/activate-node", ("192.0.2.7", 5)) == 200
    assert status("", ("192.0.2.7", 5), kind="lifespan") == 200


# The bell ------------------------------------------------------------------------------------------------------------


class Server:
    """An app behind the bell: pulls are answered with what was pushed. `log` has what reached it."""

    def __init__(self, status: int = 200) -> None:
        self.status, self.work, self.log = status, b"", list[str]()
        self.bell = superlink.Bell(self.answer)

    async def answer(self, scope: Any, receive: Any, send: Any) -> None:
        heard = await receive()
        self.log.append(scope["path"].rpartition("/")[2])
        body = b""
        if scope["path"].endswith("push-messages"):
            self.work = heard["body"]
        elif scope["path"].startswith("/v1/fleet/pull"):
            assert heard == {"type": "http.request", "body": b"me", "more_body": False}
            body, self.work = self.work, b""
        await send({"type": "http.response.start", "status": self.status})
        await send({"type": "http.response.body", "body": body})

    async def call(self, path: str, body: bytes = b"me", gone: asyncio.Event | None = None) -> tuple[int, bytes] | None:
        said, given = list[dict[str, Any]](), [{"type": "http.request", "body": body, "more_body": False}]

        async def receive() -> dict[str, Any]:
            if given:
                return given.pop()
            await (gone or asyncio.Event()).wait()
            return {"type": "http.disconnect"}

        async def send(message: Any) -> None:
            said.append(message)

        headers = [(b"content-length", str(len(body)).encode())]
        await self.bell({"type": "http", "path": path, "headers": headers, "state": {}}, receive, send)
        return (said[0]["status"], said[1]["body"]) if said else None


def scene(play: Any) -> Any:
    """Play a scene with an event loop; one that hangs is no answer."""

    async def timed() -> Any:
        return await asyncio.wait_for(play, 30)

    return asyncio.run(timed())


def test_a_site_waits_at_the_door_until_a_question_has_come_whole(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(superlink, "HOLD", 20.0)
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
    monkeypatch.setattr(superlink, "HOLD", 1000.0)
    server = Server()
    server.work = b"there"
    assert scene(server.call("/v1/fleet/pull-messages")) == (200, b"there")
    assert scene(Server(401).call("/v1/fleet/pull-messages")) == (401, b"")


def test_a_site_waits_no_longer_than_it_may(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(superlink, "HOLD", 0.1)
    server = Server()
    assert scene(server.call("/v1/fleet/pull-messages")) == (200, b"")
    assert server.log == ["pull-messages"] * 2


def test_work_is_not_taken_for_a_site_that_has_left(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(superlink, "HOLD", 20.0)
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
    monkeypatch.setattr(superlink, "HOLD", 0.3)
    server, answer = Server(), Server.answer

    async def slow(scope: Any, receive: Any, send: Any) -> None:
        await asyncio.sleep(0.2)
        await answer(server, scope, receive, send)

    server.bell.app = slow

    async def play() -> Any:
        return await asyncio.gather(*(server.call("/v1/fleet/pull-messages") for _ in range(6)))

    found = scene(play())
    assert {status for status, _ in found} == {200, 503} and len(server.log) < 6


def test_the_coordinator_is_not_handed_half_an_answer() -> None:
    server = Server()

    async def play() -> list[str]:
        await server.call("/v1/fleet/push-messages", b"answer")
        pull = asyncio.ensure_future(server.call("/v1/runtime/pull-messages"))
        await asyncio.sleep(superlink.QUIET / 2)
        await server.call("/v1/fleet/push-object")
        await pull
        await server.call("/v1/runtime/pull-messages")  # and does not wait where nothing is on its way
        return server.log

    assert scene(play()) == ["push-messages", "push-object", "pull-messages", "pull-messages"]


@pytest.mark.parametrize("call", ["fleet/pull-messages", "fleet/push-object", "runtime/pull-messages", "runtime/get-nodes"])
def test_flower_that_trips_says_come_again(call: str) -> None:
    """Its programs give up at a 500 and come again after a 503."""
    assert scene(Server(500).call(f"/v1/{call}")) == (503, b"")
    assert httpx.codes.SERVICE_UNAVAILABLE in _RETRYABLE_STATUS_CODES


def test_only_a_short_question_for_work_may_wait(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(superlink, "HOLD", 1000.0)
    monkeypatch.setattr(superlink, "SMALL", 1)
    assert scene(Server().call("/v1/fleet/pull-messages")) == (200, b"")


def test_flower_has_the_doors_where_they_are_hung() -> None:
    """What the launcher leans on: a hook for middleware, and these paths."""
    from flwr.proto import fleet_pb2
    from flwr.supercore.protobuf.translation import PROTOBUF_REQUEST_TYPES
    from flwr.superlink import extensions
    from flwr.superlink.main import _get_middleware
    from flwr.superlink.routers.control.router import router as control
    from flwr.superlink.routers.fleet.router import router as fleet

    assert extensions.get_middleware() == ()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(extensions, "get_middleware", lambda: ("first",))
        assert _get_middleware()[0] == "first"
    assert fleet.prefix + "/" == "/v1/fleet/" and control.prefix == "/v1/control"
    for end in superlink.ENDS:
        for call in (*superlink.PUSHES, superlink.PULL):
            assert ("POST", f"/v1/{end}/{call}") in PROTOBUF_REQUEST_TYPES
    assert fleet_pb2.PullMessagesResponse().SerializeToString() == b""  # no work has no bytes
    assert superlink.HOLD < 30  # the SuperNode's patience with an answer


def test_a_process_is_ended_with_all_that_it_started(tmp_path: Path) -> None:
    """A child that ignores SIGTERM in a session of its own, as Flower's apps are."""
    grandchild = "import os, signal, sys, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); print(os.getpid(), flush=True); time.sleep(60)"
    child = f"import subprocess, sys; subprocess.run([sys.executable, '-c', {grandchild!r}], start_new_session=True)"
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
