"""The server's doors (from another machine there is only the one for sites), and processes that end with all they started."""

from __future__ import annotations

import asyncio
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from equipoise.deploy import processes
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


def test_flower_has_the_doors_where_they_are_hung() -> None:
    """What the launcher leans on: a hook for middleware, and these paths."""
    from flwr.superlink import extensions
    from flwr.superlink.main import _get_middleware
    from flwr.superlink.routers.control.router import router as control
    from flwr.superlink.routers.fleet.router import router as fleet

    assert extensions.get_middleware() == ()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(extensions, "get_middleware", lambda: ("first",))
        assert _get_middleware()[0] == "first"
    assert fleet.prefix + "/" == "/v1/fleet/" and control.prefix == "/v1/control"


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
