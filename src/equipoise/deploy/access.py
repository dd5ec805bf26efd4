"""Who may speak to the coordinator's server: decided by a request's headers, before a byte of its body is
read.

Sites show a signature by a listed key, sent with every request as Flower has it. Everything else
(the control of runs, and what Flower's own processes need) is for whoever can read the secret: a file for its
owner alone, in the coordinator's folder. It counts on the coordinator's own machine only; where a request
comes from is what the connection says, and never what a header says.
"""

from __future__ import annotations

import binascii
import hmac
import ipaddress
import os
import secrets
import stat
from base64 import b64decode
from collections.abc import Awaitable, Callable, MutableMapping
from pathlib import Path
from typing import Any

from cryptography.exceptions import UnsupportedAlgorithm
from starlette.concurrency import run_in_threadpool

from equipoise.deploy import flower
from equipoise.deploy.limits import Limits

Scope = MutableMapping[str, Any]
Event = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Event]]
Send = Callable[[Event], Awaitable[None]]
App = Callable[[Scope, Receive, Send], Awaitable[None]]
Known = Callable[[Scope, bytes], bool]
"""whether a public key is that of a listed site"""
SECRET, FILE = "x-equipoise-secret", "secret"
UNLISTED = 412
"""what Flower itself answers to a key it does not know"""
FORBIDDEN, NO_LENGTH, TOO_LARGE, LATER = 403, 411, 413, 503


def make_secret(home: Path) -> None:
    """Make the secret of a server, unless there is one that nobody else can read."""
    path = home / FILE
    if path.is_file() and not stat.S_IMODE(path.stat().st_mode) & 0o077 and path.stat().st_size:
        return
    path.unlink(missing_ok=True)
    with os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w") as file:
        file.write(secrets.token_hex(32))


def read_secret(home: Path) -> str:
    """The secret of a server; an `OSError` for whoever may not know it."""
    return (home / FILE).read_text()


def registered(scope: Scope, key: bytes) -> bool:
    """Whether Flower's SuperLink knows a key."""
    return flower.is_registered(scope["app"], key)


class Access:
    """Refuses, and hangs up on, whoever may not come in or brings too much; only the headers are read for
    that."""

    def __init__(self, app: App, secret: str, limits: Limits, known: Known = registered) -> None:
        self.app, self.known = app, known
        self._secret, self._most = secret.encode(), int(limits.body_mb * 2**20)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "lifespan":
            await self.app(scope, receive, send)
            return
        refusal = await self._refusal(scope)
        if refusal is None:
            await self.app(scope, receive, send)
            return
        status, sentence = refusal
        length = b"%d" % len(sentence)
        headers = [(b"content-type", b"text/plain"), (b"content-length", length), (b"connection", b"close")]
        await send({"type": "http.response.start", "status": status, "headers": headers})
        await send({"type": "http.response.body", "body": sentence})

    async def _refusal(self, scope: Scope) -> tuple[int, bytes] | None:
        if str(scope["path"]).startswith(flower.FLEET):
            try:
                listed = await run_in_threadpool(self._of_a_site, scope)
            except Exception:  # Flower trips over its database now and then; nobody is let in for that
                return LATER, b"come again"
            if not listed:
                return UNLISTED, b"this key is not listed here, or the clocks differ"
        elif not _here(scope):
            return FORBIDDEN, b"only from the coordinator's own machine"
        elif not hmac.compare_digest(_header(scope, SECRET), self._secret):
            return FORBIDDEN, b"only with the secret of the coordinator's folder"
        if _header(scope, "transfer-encoding"):
            return NO_LENGTH, b"say the length of the body first"
        if int(_header(scope, "content-length") or b"0") > self._most:
            return TOO_LARGE, b"the body is too large"
        return None

    def _of_a_site(self, scope: Scope) -> bool:
        """Whether a listed site has signed this request's time of day, and not long ago."""
        try:
            key = b64decode(_header(scope, flower.KEY_HEADER), validate=True)
            signature = b64decode(_header(scope, flower.SIGNATURE_HEADER), validate=True)
            moment = _header(scope, flower.TIME_HEADER)
            return (
                flower.is_recent(moment) and self.known(scope, key) and flower.signed(key, moment, signature)
            )
        except (ValueError, TypeError, OverflowError, binascii.Error, UnsupportedAlgorithm):
            return False


def _header(scope: Scope, name: str) -> bytes:
    """The value of a header; none where it is missing, or there more than once."""
    values = [value for key, value in scope["headers"] if key == name.encode()]
    return values[0] if len(values) == 1 else b""


def _here(scope: Scope) -> bool:
    """Whether the connection comes from this machine."""
    try:
        client = ipaddress.ip_address(scope["client"][0])
        if (getattr(client, "ipv4_mapped", None) or client).is_loopback:
            return True
        return client == ipaddress.ip_address(scope["server"][0])
    except (TypeError, ValueError, IndexError, KeyError):
        return False
