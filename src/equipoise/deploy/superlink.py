"""Flower's SuperLink with its doors shut: `python -m equipoise.deploy.superlink …` takes the arguments of `flower-superlink`.

Flower serves three things at one port: what sites need, what its own processes need, and the control of runs. The last two ask for
no key. Here they answer the machine itself only; from elsewhere there is nothing but the door for sites, which their keys open.
"""

from __future__ import annotations

import ipaddress
from collections.abc import Awaitable, Callable, MutableMapping
from typing import Any

Scope = MutableMapping[str, Any]
Send = Callable[[MutableMapping[str, Any]], Awaitable[None]]
OPEN = "/v1/fleet/"


class SitesOnly:
    """Turns away whoever comes from another machine for anything but the sites' door."""

    def __init__(self, app: Callable[[Scope, Any, Send], Awaitable[None]]) -> None:
        self.app = app

    async def __call__(self, scope: Scope, receive: Any, send: Send) -> None:
        if scope["type"] == "http" and not scope["path"].startswith(OPEN) and not _here(scope.get("client")):
            await send({"type": "http.response.start", "status": 403, "headers": [(b"content-type", b"text/plain")]})
            await send({"type": "http.response.body", "body": b"only from the coordinator's own machine"})
            return
        await self.app(scope, receive, send)


def _here(client: Any) -> bool:
    try:
        return ipaddress.ip_address(client[0]).is_loopback
    except (TypeError, ValueError, IndexError):
        return False


def main() -> None:
    """Start the SuperLink behind `SitesOnly`."""
    from flwr.superlink import extensions
    from flwr.superlink.cli.flower_superlink import flower_superlink
    from starlette.middleware import Middleware

    extensions.get_middleware = lambda: (Middleware(SitesOnly),)  # Flower's own hook; the outermost layer
    flower_superlink()


if __name__ == "__main__":
    main()
