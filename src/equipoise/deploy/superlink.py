"""Flower's SuperLink behind our own port: `python -m equipoise.deploy.superlink --limits JSON …`.

The other arguments are those of `flower-superlink`, which serves three things at one port: what sites need,
what its own processes need, and the control of runs. The last two ask for no key, and bodies are read before
any key is looked at. Here `access` decides who comes in, and `listen` how many and how fast.

What sites answer is kept in memory until the coordinator has fetched it: Flower's database holds who is
listed and which runs there were, and no tensor is ever written to disk.

Whoever asks for messages and finds none is kept waiting for some seconds, and answered the moment one has
come whole: a site that waits for a question, and the coordinator that waits for an answer. That takes most of
the waiting out of a question, and changes nothing of what is sent. And where Flower trips over itself (its
database is locked, say) the answer is "later" and not "error", at which its programs would give up.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import sys
from collections.abc import Awaitable
from functools import partial
from pathlib import Path
from typing import Any

from starlette.concurrency import run_in_threadpool

from equipoise.deploy import flower, inside, listen
from equipoise.deploy.access import LATER, Access, App, Event, Receive, Scope, Send, read_secret
from equipoise.deploy.limits import Limits
from equipoise.deploy.parcel import pack, unpack
from equipoise.memory import return_memory

SENDERS = {flower.RUNTIME: flower.FLEET, flower.FLEET: flower.RUNTIME}
"""whose messages are for whom: the coordinator's process comes in at one path, the sites at the other"""
HOLD = {flower.FLEET: 5.0, flower.RUNTIME: 1.0}
"""seconds one may wait for messages: less than the patience with which the server is stopped; the coordinator
also looks who is online"""
QUIET = 0.02
"""a message and its tensors are pushed one after the other; after this pause it is whole"""
PUSHES = (flower.PUSH, flower.PUSH_WHOLE, flower.PUSH_PART)
PULLS = (flower.PULL, flower.PULL_WHOLE)
OK, MALFORMED, TRIPPED = 200, 400, 500
SMALL = 4096
"""a site's request for messages has a few bytes; what is longer is none"""


class Pushes:
    """What is being pushed from one side; `whole` is set anew whenever all of it has arrived."""

    def __init__(self) -> None:
        self.whole = asyncio.Event()
        self._open = 0
        self._timer: asyncio.TimerHandle | None = None

    @property
    def quiet(self) -> bool:
        """Whether nothing is on its way."""
        return not self._open and self._timer is None

    async def carry(self, work: Awaitable[None]) -> None:
        """One push."""
        if self._timer:
            self._timer.cancel()
            self._timer = None
        self._open += 1
        try:
            await work
        finally:
            self._open -= 1
            if not self._open:
                self._timer = asyncio.get_running_loop().call_later(QUIET, self._done)

    def _done(self) -> None:
        self._timer = None
        self.whole.set()
        self.whole = asyncio.Event()


class Parcels:
    """Lets messages cross with their parts in one request, where that is not too large.

    A call of ours is made one of Flower's own, and the parts are fetched or kept beside it. A site that asks
    says which message it has received last. One that it was sent but has not received, as when the line
    broke, is sent again.
    """

    def __init__(self, app: App) -> None:
        self.app = app
        self._sent: dict[bytes, tuple[list[str], bytes]] = {}
        """by the key of a site: the message it was sent whole, and what Flower said of it"""

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        side, call = _parts(str(scope.get("path", "")))
        if call == flower.ACTIVATE:
            self._sent.pop(_key(scope), None)  # a new process, which is asked anew
        if side not in SENDERS or call not in flower.WHOLE:
            await self.app(scope, receive, send)
            return
        body = bytearray()
        while True:
            event = await receive()
            body += event.get("body", b"")
            if not event.get("more_body"):
                break
        try:
            head, *parts = unpack(bytes(body))
        except ValueError:
            await _respond(send, MALFORMED, b"not a parcel")
            return
        del body
        if call == flower.PUSH_WHOLE:
            await self._push(scope, receive, send, side, head, parts)
        else:
            await self._pull(scope, receive, send, side, head, b"".join(parts).decode("ascii", "replace"))

    async def _push(
        self, scope: Scope, receive: Receive, send: Send, side: str, head: bytes, parts: list[bytes]
    ) -> None:
        status, response = await self._ask(scope, receive, send, side + flower.PUSH, head)
        if status == OK:
            response = await run_in_threadpool(flower.take_in, scope["app"], side, head, response, parts)
            await _respond(send, OK, response)

    async def _pull(
        self, scope: Scope, receive: Receive, send: Send, side: str, head: bytes, last: str
    ) -> None:
        app, key = scope["app"], _key(scope)
        numbers, response = self._sent.pop(key, ([], b""))
        if numbers == [last]:
            await run_in_threadpool(flower.forget, app, numbers)
        elif numbers:
            parcel, whole = await self._parcel(app, side, response)
            if whole == numbers:
                self._sent[key] = numbers, response
                await _respond(send, OK, parcel)
                return
        status, response = await self._ask(scope, receive, send, side + flower.PULL, head)
        if status != OK:
            return
        parcel, whole = await self._parcel(app, side, response)
        if whole and side == flower.FLEET:
            self._sent[key] = whole, response
        else:
            await run_in_threadpool(flower.forget, app, whole)
        await _respond(send, OK, parcel)

    async def _parcel(self, app: Any, side: str, response: bytes) -> tuple[bytes, list[str]]:
        """What is sent in place of Flower's response to a pull, and the messages that are whole with it."""
        if not response:
            return b"", []
        try:
            return await run_in_threadpool(flower.hand_out, app, side, response)
        except Exception:  # Flower trips over its database now and then; the parts can be fetched one by one
            return pack([response]), []

    async def _ask(
        self, scope: Scope, receive: Receive, send: Send, path: str, body: bytes
    ) -> tuple[int, bytes]:
        """Flower's response to a call of its own; one that is not good is sent on as it is."""
        unread: list[Event] = [{"type": "http.request", "body": body, "more_body": False}]
        response = list[Event]()

        async def from_us() -> Event:
            return unread.pop() if unread else await receive()

        async def to_us(part: Event) -> None:
            response.append(part)

        headers = [(name, value) for name, value in scope["headers"] if name != b"content-length"]
        headers.append((b"content-length", b"%d" % len(body)))
        own = {**scope, "path": path, "raw_path": path.encode(), "headers": headers}
        await self.app(own, from_us, to_us)
        status = int(response[0]["status"])
        if status != OK:
            for part in response:
                await send(part)
        return status, b"".join(part.get("body", b"") for part in response[1:])


class LongPoll:
    """Lets whoever asks for messages wait until there are some that are whole."""

    def __init__(self, app: App) -> None:
        self.app = app
        self.pushes = {side: Pushes() for side in SENDERS}
        self._turn = asyncio.Lock()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        side, call = _parts(str(scope.get("path", "")))
        if scope["type"] != "http" or side not in SENDERS:
            await self.app(scope, receive, send)
            return
        send = _later(send)
        if call in PUSHES:
            await self.pushes[side].carry(self.app(scope, receive, send))
        elif call in PULLS and (side == flower.RUNTIME or _length(scope) <= SMALL):
            await self._hold(scope, receive, send, side)
        else:
            await self.app(scope, receive, send)

    async def _hold(self, scope: Scope, receive: Receive, send: Send, side: str) -> None:
        """Ask the app for messages until there are some, or time is up. The app checks the key each time."""
        body, more = list[Event](), True
        while more:
            body.append(await receive())
            more = bool(body[-1].get("more_body"))
        clock = asyncio.get_running_loop().time
        pushes = self.pushes[SENDERS[side]]
        gone, end = asyncio.ensure_future(receive()), clock() + HOLD[side]
        response: list[Event] = [
            {"type": "http.response.start", "status": LATER},
            {"type": "http.response.body", "body": b""},
        ]
        try:
            while True:
                whole = pushes.whole
                if pushes.quiet or clock() >= end:
                    try:
                        # All sites wake at once, and the database serves one at a time. Who is in the
                        # queue for too long must not be served: it may leave meanwhile, and a message that
                        # is handed to nobody is lost.
                        await asyncio.wait_for(self._turn.acquire(), max(QUIET, end - clock()))
                    except TimeoutError:
                        break
                    try:
                        if gone.done():
                            return
                        response = await self._ask(scope, body, gone)
                    finally:
                        self._turn.release()
                    empty = not any(part.get("body") for part in response)
                    if clock() >= end or response[0].get("status") != 200 or not empty:
                        break
                await _either(max(QUIET, end - clock()), whole.wait(), gone)
                if gone.done():
                    return
            for part in response:
                await send(part)
        finally:
            gone.cancel()

    async def _ask(self, scope: Scope, body: list[Event], gone: asyncio.Future[Event]) -> list[Event]:
        """The app's response to a request that was read already."""
        unread, response = list(body), list[Event]()

        async def receive() -> Event:
            return unread.pop(0) if unread else await asyncio.shield(gone)

        async def send(part: Event) -> None:
            response.append(part)

        await self.app({**scope, "state": dict(scope.get("state", {}))}, receive, send)
        return response


def _parts(path: str) -> tuple[str, str]:
    """The side a request comes in at, and what it calls there."""
    side, slash, call = path.rpartition("/")
    return side + slash, call


def _key(scope: Scope) -> bytes:
    """The key of the site that a request is of; it was checked before."""
    key: bytes = dict(scope["headers"]).get(flower.KEY_HEADER.encode(), b"")
    return key


async def _respond(send: Send, status: int, body: bytes) -> None:
    """Send a response."""
    headers = [(b"content-type", b"application/octet-stream"), (b"content-length", b"%d" % len(body))]
    await send({"type": "http.response.start", "status": status, "headers": headers})
    await send({"type": "http.response.body", "body": body})


def _later(send: Send) -> Send:
    """The same, with "come again" in place of "something broke"."""

    async def mended(part: Event) -> None:
        await send({**part, "status": LATER} if part.get("status") == TRIPPED else part)

    return mended


async def _either(seconds: float, *things: Any) -> None:
    """Wait until one of these is there, at most so long; those that are not ours to end go on."""
    tasks = [asyncio.ensure_future(thing) for thing in things]
    await asyncio.wait(tasks, timeout=seconds, return_when=asyncio.FIRST_COMPLETED)
    for task, thing in zip(tasks, things, strict=True):
        if task is not thing:
            task.cancel()


def _length(scope: Scope) -> int:
    """The bytes a request says it has; more than any if it does not say."""
    length = dict(scope.get("headers", ())).get(b"content-length", b"")
    return int(length) if length.isdigit() else SMALL + 1


def main() -> None:
    """Start the SuperLink behind `Access`, `LongPoll` and `Parcels`."""
    from starlette.middleware import Middleware

    return_memory()
    parser = argparse.ArgumentParser(add_help=False, allow_abbrev=False)
    parser.add_argument("--limits", default="{}")
    ours, others = parser.parse_known_args()
    limits, sys.argv[1:] = Limits.model_validate_json(ours.limits), others
    secret = read_secret(Path(os.environ[flower.HOME]))
    flower.run_superlink(
        middleware=(
            Middleware(Access, secret=secret, limits=limits),
            Middleware(LongPoll),
            Middleware(Parcels),
        ),
        serve=partial(listen.run, limits=limits),
        superexec=partial(inside.command, "superexec"),
    )


if __name__ == "__main__":
    main()
