"""Flower's SuperLink behind our own port: `python -m equipoise.deploy.superlink --limits JSON …`.

The other arguments are those of `flower-superlink`, which serves three things at one port: what sites need,
what its own processes need, and the control of runs. The last two ask for no key, and bodies are read before
any key is looked at. Here `access` decides who comes in, and `listen` how many and how fast.

What sites answer is kept in memory until the coordinator has fetched it: Flower's database holds who is
listed and which runs there were, and no tensor is ever written to disk.

A SuperNode that finds no work comes back three seconds later. Here it is kept waiting for some seconds
instead, and answered the moment a question has come whole; and the coordinator is not handed an answer whose
tensors are still on their way, for which it would have to come back as well. That takes most of the waiting
out of a question, and changes nothing of what is said. And where Flower trips over itself (its database is
locked, say) the answer is "later" and not "error", at which its programs would give up.
"""

from __future__ import annotations

import argparse
import asyncio
import importlib
import os
import sys
from collections.abc import Awaitable
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from equipoise.deploy import inside, listen
from equipoise.deploy.access import LATER, Access, App, Receive, Scope, Send, read_secret
from equipoise.deploy.access import Event as Said
from equipoise.deploy.limits import Limits

ENDS = {"runtime": "fleet", "fleet": "runtime"}
"""who pushes for whom: the coordinator's process comes in at /v1/runtime, the sites at /v1/fleet"""
PUSHES, PULL = ("push-messages", "push-object"), "pull-messages"
HOLD = 5.0
"""how long a site may wait for work: less than the patience with which the server is stopped"""
GRACE = 1.0
"""how long the coordinator may wait for an answer that is on its way"""
QUIET = 0.05
"""a message and its tensors are pushed one after the other; after this pause it is whole"""
TRIPPED = 500
SMALL = 4096
"""a question for work has a few bytes; what is longer is none"""


class Post:
    """What is being pushed from one end, and the bell that rings when it is whole."""

    def __init__(self) -> None:
        self.coming = 0
        self.bell = asyncio.Event()
        self._soon: asyncio.TimerHandle | None = None

    @property
    def whole(self) -> bool:
        return not self.coming and self._soon is None

    async def carry(self, work: Awaitable[None]) -> None:
        """One push."""
        if self._soon:
            self._soon.cancel()
            self._soon = None
        self.coming += 1
        try:
            await work
        finally:
            self.coming -= 1
            if not self.coming:
                self._soon = asyncio.get_running_loop().call_later(QUIET, self._ring)

    def _ring(self) -> None:
        self._soon = None
        self.bell.set()
        self.bell = asyncio.Event()


class Bell:
    """Lets whoever comes for messages wait until there are some that are whole."""

    def __init__(self, app: App) -> None:
        self.app = app
        self.posts = {end: Post() for end in ENDS}
        self._turn = asyncio.Lock()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        end, _, call = str(scope.get("path", "")).removeprefix("/v1/").partition("/")
        if scope["type"] != "http" or end not in ENDS:
            await self.app(scope, receive, send)
            return
        send = _later(send)
        if call in PUSHES:
            await self.posts[end].carry(self.app(scope, receive, send))
        elif call == PULL and end == "runtime":
            post = self.posts[ENDS[end]]
            if not post.whole:
                await _either(GRACE, post.bell.wait())
            await self.app(scope, receive, send)
        elif call == PULL and _length(scope) <= SMALL:
            await self._hold(scope, receive, send, self.posts[ENDS[end]])
        else:
            await self.app(scope, receive, send)

    async def _hold(self, scope: Scope, receive: Receive, send: Send, post: Post) -> None:
        """Ask the app for this site's work until there is some, or time is up. The app looks at the site's
        key each time."""
        asked, more = list[Said](), True
        while more:
            asked.append(await receive())
            more = bool(asked[-1].get("more_body"))
        clock = asyncio.get_running_loop().time
        gone, end = asyncio.ensure_future(receive()), clock() + HOLD
        said: list[Said] = [
            {"type": "http.response.start", "status": LATER},
            {"type": "http.response.body", "body": b""},
        ]
        try:
            while True:
                bell = post.bell
                if post.whole or clock() >= end:
                    try:
                        # The bell wakes all at once, and the database serves one at a time. Who is in the
                        # queue for too long must not be served: it may leave meanwhile, and work that is
                        # handed to nobody is lost.
                        await asyncio.wait_for(self._turn.acquire(), max(QUIET, end - clock()))
                    except TimeoutError:
                        break
                    try:
                        if gone.done():
                            return
                        said = await self._ask(scope, asked, gone)
                    finally:
                        self._turn.release()
                    if clock() >= end or said[0].get("status") != 200 or any(one.get("body") for one in said):
                        break
                await _either(max(QUIET, end - clock()), bell.wait(), gone)
                if gone.done():
                    return
            for one in said:
                await send(one)
        finally:
            gone.cancel()

    async def _ask(self, scope: Scope, asked: list[Said], gone: asyncio.Future[Said]) -> list[Said]:
        """What the app says to a request that was read already."""
        given, said = list(asked), list[Said]()

        async def receive() -> Said:
            return given.pop(0) if given else await asyncio.shield(gone)

        async def send(one: Said) -> None:
            said.append(one)

        await self.app({**scope, "state": dict(scope.get("state", {}))}, receive, send)
        return said


def _later(send: Send) -> Send:
    """The same, with "come again" in place of "something broke"."""

    async def say(one: Said) -> None:
        await send({**one, "status": LATER} if one.get("status") == TRIPPED else one)

    return say


async def _either(seconds: float, *things: Any) -> None:
    """Wait until one of these is there, at most so long; those that are not ours to end go on."""
    tasks = [asyncio.ensure_future(thing) for thing in things]
    await asyncio.wait(tasks, timeout=seconds, return_when=asyncio.FIRST_COMPLETED)
    for task, thing in zip(tasks, things, strict=True):
        if task is not thing:
            task.cancel()


def _length(scope: Scope) -> int:
    """The bytes a request says it has; without a word, more than any."""
    found = dict(scope.get("headers", ())).get(b"content-length", b"")
    return int(found) if found.isdigit() else SMALL + 1


def main() -> None:
    """Start the SuperLink behind `Access` and `Bell`."""
    from flwr.superlink import extensions
    from starlette.middleware import Middleware

    flower: Any = importlib.import_module("flwr.superlink.main")
    # Its package has a function of the same name, which an import would find.
    program: Any = importlib.import_module("flwr.superlink.cli.flower_superlink")

    parser = argparse.ArgumentParser(add_help=False, allow_abbrev=False)
    parser.add_argument("--limits", default="{}")
    ours, others = parser.parse_known_args()
    limits, sys.argv[1:] = Limits.model_validate_json(ours.limits), others
    secret = read_secret(Path(os.environ[inside.HOME]))
    # Flower's own hook, outermost first.
    extensions.get_middleware = lambda: (Middleware(Access, secret=secret, limits=limits), Middleware(Bell))
    flower.get_objectstore_linkstate_factories = in_memory
    program._get_superexec_command = partial(_superexec, program._get_superexec_command)
    program.uvicorn = SimpleNamespace(run=partial(listen.run, limits=limits))
    program.flower_superlink()


def in_memory(database: str, manager: Any) -> tuple[Any, Any]:
    """Flower's state with its books in a database, and the tensors of messages in memory only."""
    from flwr.server.superlink.linkstate import LinkStateFactory
    from flwr.supercore.object_store import ObjectStoreFactory

    store = ObjectStoreFactory()
    return store, LinkStateFactory(database, manager, store)


def _superexec(original: Any, **options: Any) -> list[str]:
    """Flower's command for its process that starts runs, with our program in front."""
    return inside.command("superexec", *original(**options)[1:])


if __name__ == "__main__":
    main()
