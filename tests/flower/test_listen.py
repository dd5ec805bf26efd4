"""The coordinator's port against raw sockets on loopback: how many may connect, how long they may take."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import ssl
import threading
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from uvicorn.server import ServerState

from equipoise.deploy import listen
from equipoise.deploy.access import SECRET, Access
from equipoise.deploy.keys import new_keys
from equipoise.deploy.limits import Limits
from equipoise.deploy.listen import Listener, Timed

MUCH = 50 * 2**20
PATIENT = {"header_seconds": 600.0, "stall_seconds": 600.0}
HONEST = b"GET /here HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n"
STRANGER, SITE = "127.0.0.2", "127.0.0.1"


class Echo:
    """Says who comes, after it has read all of the body; `read` is how much that was."""

    def __init__(self, pause: float = 0.0) -> None:
        self.pause, self.read = pause, 0

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        if scope["type"] != "http":
            return
        more = True
        while more:
            event = await receive()
            self.read += len(event.get("body", b""))
            more = event.get("more_body", False)
        await asyncio.sleep(self.pause)
        body = f"{scope['type']} from {scope['client'][0]}".encode()
        headers = [(b"content-length", b"%d" % len(body))]
        await send({"type": "http.response.start", "status": 200, "headers": headers})
        await send({"type": "http.response.body", "body": body})


@contextmanager
def listening(app: Any, limits: Limits, **options: Any) -> Iterator[Listener]:
    """A server in a thread, on loopback, until the test is over."""
    listener = Listener(SITE, 0, limits)
    server = listen.make_server(app, limits, lifespan="off", log_config=None, **options)
    thread = threading.Thread(target=listen.serve, args=(server, listener))
    thread.start()
    while not server.started and thread.is_alive():
        time.sleep(0.01)
    try:
        yield listener
    finally:
        server.should_exit = True
        thread.join()
        listener.close()


def dial(listener: Listener, source: str = SITE) -> socket.socket:
    return socket.create_connection(listener.getsockname(), 60, source_address=(source, 0))


def answer(line: socket.socket, data: bytes = HONEST) -> bytes:
    """All that is said to this until the other end hangs up."""
    heard = b""
    with contextlib.suppress(ConnectionError), line:
        line.sendall(data)
        while more := line.recv(2**16):
            heard += more
    return heard


@pytest.mark.parametrize("secret", [b"", b"x-equipoise-secret: 00\r\n"])
def test_a_stranger_is_refused_before_its_body(secret: bytes) -> None:
    """A megabyte or two may be on its way in the buffers of the system; the rest finds nobody."""
    echo, sent = Echo(), 0
    with listening(Access(echo, "word", Limits(), lambda scope, key: False), Limits(**PATIENT)) as listener:
        for path in (b"/v1/control/start-run", b"/v1/fleet/push-object"):
            line, sent = dial(listener), 0
            head = b"POST %s HTTP/1.1\r\nhost: x\r\n%scontent-length: %d\r\n\r\n"
            line.sendall(head % (path, secret, MUCH))
            with contextlib.suppress(ConnectionError), line:
                while sent < MUCH:
                    sent += line.send(bytes(2**16))
            assert sent < MUCH // 2
        assert echo.read == 0
        owner = (
            b"POST /v1/control/start-run HTTP/1.1\r\nhost: x\r\n%s: word\r\ncontent-length: "
            b"4\r\nconnection: close\r\n\r\nbody"
        )
        assert b" 200 OK" in answer(dial(listener), owner % SECRET.encode())
        assert echo.read == 4


HALF = {
    "nothing at all": b"",
    "half a line": b"POST /x HT",
    "half the headers": b"POST /x HTTP/1.1\r\nhost: x\r\ncontent-le",
    "a request, and half of the next": HONEST.replace(b"connection: close\r\n", b"")
    + b"GET /x HTTP/1.1\r\nho",
    "half a body": b"POST /x HTTP/1.1\r\nhost: x\r\ncontent-length: 100\r\n\r\nhalf",
    "no body": b"POST /x HTTP/1.1\r\nhost: x\r\ncontent-length: 100\r\n\r\n",
    "half a chunk": b"POST /x HTTP/1.1\r\nhost: x\r\ntransfer-encoding: chunked\r\n\r\n64\r\nhalf",
}


@pytest.mark.parametrize("what", HALF)
def test_who_stops_half_way_is_hung_up_on(what: str) -> None:
    with listening(Echo(), Limits(header_seconds=0.2, stall_seconds=0.2), timeout_keep_alive=600) as listener:
        heard = answer(dial(listener), HALF[what])  # comes back only when the other end has hung up
        assert heard.count(b" 200 OK") == ("next" in what)
        assert b" 200 OK" in answer(dial(listener))


def trickle(line: socket.socket) -> None:
    for _ in range(1000):
        time.sleep(0.02)
        line.sendall(b"x")


@pytest.mark.parametrize("what", ["half the headers", "half a body"])
def test_who_sends_a_byte_now_and_then_is_hung_up_on(what: str) -> None:
    with listening(Echo(), Limits(header_seconds=0.2, stall_seconds=0.2)) as listener, dial(listener) as line:
        line.sendall(HALF[what])
        with pytest.raises(ConnectionError):
            trickle(line)


def test_a_server_that_takes_its_time_does_not_blame_the_other_end() -> None:
    with listening(Echo(pause=1.0), Limits(header_seconds=0.1, stall_seconds=0.1)) as listener:
        body = b"POST /x HTTP/1.1\r\nhost: x\r\ncontent-length: 4\r\nconnection: close\r\n\r\nbody"
        assert b" 200 OK" in answer(dial(listener), body)


class Line(asyncio.Transport):
    """A connection that only says whether it was cut."""

    cut = False

    def is_closing(self) -> bool:
        return self.cut

    def abort(self) -> None:
        self.cut = True

    def close(self) -> None:
        self.cut = True

    def pause_reading(self) -> None: ...

    def resume_reading(self) -> None: ...


@pytest.mark.parametrize(
    ("came", "paused", "cut"),
    [(0, False, True), (10_239, False, True), (10_240, False, False), (0, True, False)],
)
def test_a_body_must_advance_unless_it_is_us_who_wait(came: int, paused: bool, cut: bool) -> None:
    """At least a kilobyte per second: 10,240 bytes in ten seconds, and again in the next ten."""

    async def play() -> None:
        limits, line = Limits(stall_seconds=10), Line()
        config = listen.make_server(Echo(), limits, log_config=None).config
        timed = Timed(limits, config=config, server_state=ServerState(), app_state={})
        timed.connection_made(line)
        timed.data_received(b"POST /x HTTP/1.1\r\nhost: x\r\ncontent-length: 99999\r\n\r\n")
        for _ in range(2):
            timed.data_received(bytes(came)) if came else None
            if paused:
                timed.flow.pause_reading()
                timed.flow.resume_reading()
            timed._late()
            assert line.cut == cut
        timed.connection_lost(None)
        assert timed._timer is None

    asyncio.run(play())


# How many ----------------------------------------------------------------------------------------------


def settled(listener: Listener, count: dict[str, int]) -> None:
    """The server has seen who is there, and who has left."""
    end = time.monotonic() + 60
    while listener.count != Counter(count):
        assert time.monotonic() < end, listener.count
        time.sleep(0.01)


def test_one_address_may_have_so_many_connections_and_the_site_still_gets_through() -> None:
    with listening(Echo(), Limits(per_address=3, **PATIENT)) as listener:
        lines = [dial(listener, STRANGER) for _ in range(3)]
        settled(listener, {STRANGER: 3})
        for _ in range(5):
            assert answer(dial(listener, STRANGER)) == b""
            assert answer(dial(listener)).endswith(b"http from 127.0.0.1")
        lines.pop().close()
        settled(listener, {STRANGER: 2})
        assert b" 200 OK" in answer(dial(listener, STRANGER))
        for line in lines:
            line.close()
        settled(listener, {})


def test_all_addresses_together_may_have_so_many_connections() -> None:
    with listening(Echo(), Limits(connections=3, **PATIENT)) as listener:
        lines = [dial(listener, f"127.0.0.{n}") for n in (2, 3, 4)]
        settled(listener, {f"127.0.0.{n}": 1 for n in (2, 3, 4)})
        assert answer(dial(listener, "127.0.0.5")) == b""
        for line in lines:
            line.close()
        settled(listener, {})
        assert b" 200 OK" in answer(dial(listener))


def test_half_sent_requests_make_room_again() -> None:
    """The stranger keeps its connections open; the server does not."""
    few = Limits(connections=2, header_seconds=0.2)
    with listening(Echo(), few) as listener, contextlib.ExitStack() as lines:
        for line in [lines.enter_context(dial(listener, STRANGER)) for _ in range(2)]:
            with contextlib.suppress(ConnectionError):
                assert line.recv(1) == b""
        settled(listener, {})
        assert b" 200 OK" in answer(dial(listener))


def test_an_ipv6_network_counts_as_one_address() -> None:
    assert listen._network("2001:db8::1") == listen._network("2001:db8::ffff:2")
    assert listen._network("2001:db8::1") != listen._network("2001:db8:0:1::1")
    assert listen._network("::ffff:192.0.2.1") == listen._network("192.0.2.1") == "192.0.2.1"
    assert listen._network("fe80::1%eth0") == "fe80::/64"


# TLS, and where a request comes from --------------------------------------------------------------------


def test_a_handshake_that_never_comes_is_not_waited_for(tmp_path: Path) -> None:
    new_keys(tmp_path, [SITE], [])
    keys = {"ssl_certfile": tmp_path / "keys" / "server.crt", "ssl_keyfile": tmp_path / "keys" / "server.key"}
    trust = ssl.create_default_context(cafile=str(tmp_path / "keys" / "ca.crt"))
    with listening(Echo(), Limits(header_seconds=2.0), **keys) as listener:
        silent = dial(listener, STRANGER)
        settled(listener, {STRANGER: 1})
        site = trust.wrap_socket(dial(listener), server_hostname=SITE)
        assert b" 200 OK" in answer(site)
        assert answer(silent, b"") == b""
        settled(listener, {})


def test_a_header_never_says_where_a_request_comes_from(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FORWARDED_ALLOW_IPS", "*")
    with listening(Echo(), Limits(**PATIENT)) as listener:
        for name in (b"x-forwarded-for: 192.0.2.9", b"forwarded: for=192.0.2.9", b"x-real-ip: 192.0.2.9"):
            request = HONEST.replace(b"host: x", b"host: x\r\n" + name)
            assert answer(dial(listener), request).endswith(b"http from 127.0.0.1")


def test_headers_without_end_and_web_sockets_lead_nowhere() -> None:
    with listening(Echo(), Limits(**PATIENT)) as listener:
        assert b" 400 " in answer(dial(listener), b"GET /x HTTP/1.1\r\nhost: " + b"x" * 2**18)
        upgrade = (
            b"connection: close, upgrade\r\nupgrade: websocket\r\nsec-websocket-version: "
            b"13\r\nsec-websocket-key: eA==\r\n"
        )
        request = HONEST.replace(b"connection: close\r\n", upgrade)
        assert answer(dial(listener), request).endswith(b"http from 127.0.0.1")


def test_a_port_that_is_taken_is_said_in_a_sentence() -> None:
    with socket.create_server((SITE, 0)) as taken, pytest.raises(SystemExit, match="nothing can listen on"):
        listen.run(Echo(), host=SITE, port=taken.getsockname()[1], limits=Limits())
