"""The coordinator's port: how many may connect, and how long they may take to say what they want.

Connections are counted as they come, before TLS, in all and by address. A handshake, and the headers of a
request, must be there in good time; a body must advance. Whoever does not keep to that is hung up on. The
rest is uvicorn's, over HTTP/1.1 and nothing else, and without a look at headers that say where a request was
forwarded from.
"""

from __future__ import annotations

import asyncio
import contextlib
import ipaddress
import logging
import socket
import time
from collections import Counter
from functools import partial
from typing import Any

import uvicorn
from uvicorn.protocols.http.flow_control import FlowControl
from uvicorn.protocols.http.h11_impl import H11Protocol

from equipoise.deploy.limits import Limits

SLOWEST = 1024
"""bytes per second that a body must come with"""
LINGER = 2.0
"""seconds for the other end to take its leave after a TLS connection was closed"""
QUIET = 60.0
"""seconds between two lines of the log about connections that were refused"""
log = logging.getLogger("uvicorn.error")


class Connection(socket.socket):
    """A connection that is counted until it is closed."""

    def __init__(self, fileno: int, count: Counter[str], address: str) -> None:
        super().__init__(fileno=fileno)
        self._count, self._address, self._counted = count, address, True
        count[address] += 1

    def close(self) -> None:
        super().close()
        if self._counted:
            self._counted = False
            self._count -= Counter([self._address])


class Listener(socket.socket):
    """A listening socket that takes only so many connections, and only so many from one address."""

    def __init__(self, host: str, port: int, limits: Limits) -> None:
        addresses = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
        family, kind, proto, _, address = addresses[0]
        super().__init__(family, kind, proto)
        self.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            self.bind(address)
        except OSError:
            self.close()
            raise
        self.limits, self.count = limits, Counter[str]()
        self._refused, self._told = 0, float("-inf")

    def accept(self) -> tuple[socket.socket, Any]:
        """As a socket does. One that is too many is closed at once, as if nobody had come."""
        connection, address = super().accept()
        name = _network(address[0])
        if self.count[name] >= self.limits.per_address or self.count.total() >= self.limits.connections:
            connection.close()
            self._tell(name)
            raise BlockingIOError
        return Connection(connection.detach(), self.count, name), address

    def _tell(self, address: str) -> None:
        self._refused += 1
        if time.monotonic() - self._told >= QUIET:
            what = "%d connections were refused, the last from %s: %d are open from there, %d in all"
            log.warning(what, self._refused, address, self.count[address], self.count.total())
            self._refused, self._told = 0, time.monotonic()


def _network(address: str) -> str:
    """What counts as one address: of IPv6 the network, since one machine may have all addresses of it."""
    host = ipaddress.ip_address(address.partition("%")[0])
    if isinstance(host, ipaddress.IPv4Address) or host.ipv4_mapped:
        return str(getattr(host, "ipv4_mapped", None) or host)
    return str(ipaddress.ip_network((host, 64), strict=False))


class Flow(FlowControl):
    """Remembers that we did not want to read, for which the other end is not to blame."""

    paused = False

    def pause_reading(self) -> None:
        super().pause_reading()
        self.paused = True


class Timed(H11Protocol):
    """HTTP/1.1 with a limit on how long the other end may take to say what it wants."""

    flow: Flow

    def __init__(self, limits: Limits, **options: Any) -> None:
        super().__init__(**options)
        self.limits = limits
        self._timer: asyncio.TimerHandle | None = None
        self._owed, self._received = "", 0

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self.flow = Flow(transport)
        self._await("headers")

    def data_received(self, data: bytes) -> None:
        self._received += len(data)
        super().data_received(data)
        self._look()

    def on_response_complete(self) -> None:
        super().on_response_complete()
        self._look()

    def connection_lost(self, exc: Exception | None) -> None:
        self._await("")
        super().connection_lost(exc)

    def _look(self) -> None:
        if self.cycle is None or self.cycle.response_complete:
            self._await("headers")
        else:
            self._await("body" if self.cycle.more_body else "")

    def _await(self, owed: str) -> None:
        """Set the timer for what the other end still owes us."""
        if owed == self._owed and self._timer is not None:
            return
        if self._timer is not None:
            self._timer.cancel()
        self._timer, self._owed, self._received, self.flow.paused = None, owed, 0, False
        if owed and not self.transport.is_closing():
            seconds = self.limits.header_seconds if owed == "headers" else self.limits.stall_seconds
            self._timer = self.loop.call_later(seconds, self._late)

    def _late(self) -> None:
        self._timer = None
        excused = self.flow.paused or self._received >= SLOWEST * self.limits.stall_seconds
        if self._owed == "body" and excused:
            self._await("body")
            self.flow.paused = self.flow.read_paused
        else:
            self.transport.abort()


class Loop(asyncio.SelectorEventLoop):
    """An event loop whose servers wait only so long for TLS."""

    def __init__(self, limits: Limits) -> None:
        super().__init__()
        self.limits = limits

    async def create_server(self, *given: Any, **options: Any) -> asyncio.Server:
        if options.get("ssl") is not None:
            options |= {"ssl_handshake_timeout": self.limits.header_seconds, "ssl_shutdown_timeout": LINGER}
        return await super().create_server(*given, **options)


def make_server(app: Any, limits: Limits, **options: Any) -> uvicorn.Server:
    """A server as `uvicorn.run` makes it, that keeps to the limits."""
    fixed = {"http": partial(Timed, limits), "ws": "none", "loop": "none"}
    silent = {"proxy_headers": False, "server_header": False}
    return uvicorn.Server(uvicorn.Config(app, **options | fixed | silent))


def serve(server: uvicorn.Server, listener: Listener) -> None:
    """Run a server until it is told to end."""
    loop = partial(Loop, listener.limits)
    with contextlib.suppress(KeyboardInterrupt), asyncio.Runner(loop_factory=loop) as runner:
        runner.run(server.serve(sockets=[listener]))


def run(app: Any, *, host: str, port: int, limits: Limits, **options: Any) -> None:
    """Serve an app at a port, as `uvicorn.run` does."""
    try:
        listener = Listener(host, port, limits)
    except OSError as error:
        what = f"nothing can listen on {host}:{port}: {error.strerror}; choose another --host or --port"
        raise SystemExit(what) from None
    server = make_server(app, limits, host=host, port=port, **options)
    serve(server, listener)
    if not server.started:
        raise SystemExit(1)
