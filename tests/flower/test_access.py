"""Who may speak to the coordinator's server: listed sites by a fresh signature, and whoever has the secret
file."""

from __future__ import annotations

import asyncio
import stat
from base64 import b64encode
from datetime import UTC, datetime, timedelta
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import httpx
import pytest
from cryptography.hazmat.primitives.asymmetric import ec
from flwr.supercore.control import ControlHttpClient
from flwr.supercore.primitives.asymmetric import public_key_to_bytes, sign_message
from flwr.supercore.protobuf.client import ProtobufClient

from equipoise.deploy import access, flower
from equipoise.deploy.access import Access, Known
from equipoise.deploy.limits import Limits

WORD = "0123abcd" * 8
LOCAL, ELSEWHERE = ("127.0.0.1", 5), ("192.0.2.7", 5)
CONTROL = [
    *("/v1/control/start-run", "/v1/control/register-node", "/v1/runtime/acquire-task"),
    *("/docs", "/health", "/v1/fleet"),
]
FROM = [ELSEWHERE, ("2001:db8::1", 5), None, ("unix", 0), ("::ffff:192.0.2.7", 5)]
PRIVATE = ec.generate_private_key(ec.SECP384R1())
KEY = public_key_to_bytes(PRIVATE.public_key())


def listed(scope: Any, key: bytes) -> bool:
    return key == KEY


def said(
    path: str,
    client: Any,
    headers: dict[str, str] | None = None,
    times: int = 1,
    known: Known = listed,
    **more: Any,
) -> tuple[int, bool]:
    """What is said to a request, and whether its body was read; behind it is an app that reads and says
    200."""
    events, read = list[dict[str, Any]](), []

    async def app(scope: Any, receive: Any, send: Any) -> None:
        await receive()
        await send({"type": "http.response.start", "status": 200})

    async def receive() -> dict[str, Any]:
        read.append(1)
        return {"type": "http.request"}

    async def send(event: Any) -> None:
        events.append(event)

    lines = [(name.encode(), value.encode()) for name, value in (headers or {}).items()] * times
    scope = {"type": "http", "path": path, "client": client, "server": ("10.0.0.1", 1)} | more
    scope["headers"] = lines
    asyncio.run(Access(app, WORD, Limits(body_mb=1), known)(scope, receive, send))
    assert events[0]["status"] == 200 or (b"connection", b"close") in events[0]["headers"]
    return int(events[0]["status"]), bool(read)


@pytest.mark.parametrize("path", CONTROL)
@pytest.mark.parametrize("client", FROM)
def test_from_elsewhere_nothing_is_controlled_even_with_the_secret(path: str, client: Any) -> None:
    forwarded = {"x-forwarded-for": "127.0.0.1", "forwarded": "for=127.0.0.1", "x-real-ip": "127.0.0.1"}
    assert said(path, client, {access.SECRET: WORD} | forwarded) == (403, False)


@pytest.mark.parametrize("path", CONTROL)
@pytest.mark.parametrize("word", [None, "", WORD[:-1], WORD + "0", "0" * 64])
def test_from_here_nothing_is_controlled_without_the_secret(path: str, word: str | None) -> None:
    assert said(path, LOCAL, {} if word is None else {access.SECRET: word}) == (403, False)


@pytest.mark.parametrize("client", [LOCAL, ("::1", 5), ("::ffff:127.0.0.1", 5), ("10.0.0.1", 5)])
def test_from_here_with_the_secret_everything_is(client: Any) -> None:
    """From here is also who comes from the very address that the server listens on."""
    for path in CONTROL[:3]:
        assert said(path, client, {access.SECRET: WORD}) == (200, True)


def test_a_secret_that_is_said_twice_is_none() -> None:
    assert said("/v1/control/start-run", LOCAL, {access.SECRET: WORD}, times=2) == (403, False)


def signed(key: bytes = KEY, age: float = 0.0, private: Any = PRIVATE, **more: str) -> dict[str, str]:
    moment = (datetime.now(UTC) - timedelta(seconds=age)).isoformat()
    signature = b64encode(sign_message(private, moment.encode())).decode()
    shown = b64encode(key).decode()
    return {"flwr-timestamp": moment, "flwr-public-key": shown, "flwr-signature": signature} | more


def test_a_listed_site_comes_in_from_anywhere() -> None:
    assert said("/v1/fleet/push-object", ELSEWHERE, signed()) == (200, True)
    assert said("/v1/fleet/push-object", LOCAL, signed()) == (200, True)


OTHER = ec.generate_private_key(ec.SECP384R1())
STRANGERS = {
    "no key": {},
    "the secret of the server": {access.SECRET: WORD},
    "a key that is not listed": signed(public_key_to_bytes(OTHER.public_key()), private=OTHER),
    "a listed key, signed by another": signed(private=OTHER),
    "a signature that is old": signed(age=400),
    "a signature of the future": signed(age=-86400),
    "no time": signed() | {"flwr-timestamp": ""},
    "no time zone": signed() | {"flwr-timestamp": "2026-01-01T00:00:00"},
    "not base64": signed() | {"flwr-signature": "ä"},
    "no signature": signed() | {"flwr-signature": ""},
}


@pytest.mark.parametrize("who", STRANGERS)
def test_a_stranger_is_turned_away_before_its_body_is_read(who: str) -> None:
    assert said("/v1/fleet/push-object", LOCAL, STRANGERS[who]) == (412, False)


def test_while_the_list_cannot_be_read_a_site_is_to_come_again() -> None:
    """A 412 would make a site believe that it is not listed; after a 503 it comes again."""

    def broken(scope: Any, key: bytes) -> bool:
        raise OSError("the database is locked")

    assert said("/v1/fleet/push-object", ELSEWHERE, signed(), known=broken) == (503, False)


@pytest.mark.parametrize(("length", "status"), [("1048576", 200), ("1048577", 413), ("9" * 20, 413)])
def test_a_body_has_a_size(length: str, status: int) -> None:
    assert said("/v1/fleet/push-object", ELSEWHERE, signed() | {"content-length": length})[0] == status
    assert said("/v1/control/start-run", LOCAL, {access.SECRET: WORD, "content-length": length})[0] == status


def test_a_body_without_a_length_is_not_read() -> None:
    headers = signed() | {"transfer-encoding": "chunked"}
    assert said("/v1/fleet/push-object", ELSEWHERE, headers) == (411, False)


def test_other_scopes() -> None:
    assert said("", None, type="lifespan") == (200, True)
    assert said("/v1/fleet/push-object", ELSEWHERE, type="websocket") == (412, False)


def test_the_secret_is_for_its_owner_alone(tmp_path: Path) -> None:
    access.make_secret(tmp_path)
    first = access.read_secret(tmp_path)
    assert len(first) == 64 and stat.S_IMODE((tmp_path / access.FILE).stat().st_mode) == 0o600
    access.make_secret(tmp_path)
    assert access.read_secret(tmp_path) == first  # a server that runs already knows it
    (tmp_path / access.FILE).chmod(0o640)
    access.make_secret(tmp_path)
    assert access.read_secret(tmp_path) != first


def test_processes_of_ours_show_the_secret(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ProtobufClient, "__init__", ProtobufClient.__init__)
    flower.add_to_every_client({access.SECRET: WORD})
    client = ControlHttpClient.from_server_address("127.0.0.1:1", True, None, [])
    (interceptor,) = client._interceptors
    request = httpx.Request("POST", "http://127.0.0.1:1/")
    interceptor.intercept(SimpleNamespace(request=request), lambda context: httpx.Response(200))  # type: ignore[arg-type]
    assert request.headers[access.SECRET] == WORD
    client.close()
