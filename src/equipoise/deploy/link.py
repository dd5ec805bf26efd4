"""The coordinator's day: Flower's SuperLink with an allow-list of sites, and runs handed to it.

keys/           see `keys`
flower/         Flower's own files: the secret of its processes and us, and its database (no tensor is in it)
server.json     where the SuperLink of this folder listens
runs/           where the folders of the runs are that were handed in, by their numbers
server.log      what it says
"""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import closing, suppress
from pathlib import Path
from typing import Any

from equipoise.config import Config
from equipoise.deploy import processes
from equipoise.deploy.access import make_secret
from equipoise.deploy.control import (
    HOME,
    SERVER,
    allow,
    check_certificates,
    control,
    end_runs,
    has_ended,
)
from equipoise.deploy.coordinator import plan
from equipoise.deploy.keys import listed, read_public
from equipoise.deploy.late import FLOWER
from equipoise.deploy.limits import Limits
from equipoise.deploy.standing import enter, place
from equipoise.errors import ConfigError, EquipoiseError, RunStopped, SiteError
from equipoise.keeping import write_json
from equipoise.run_folder import JOURNAL, RESULT, RunFolder, private_folder
from equipoise.server import Journal
from equipoise.server.journal import read as read_journal

APP = """
[build-system]
requires = ["hatchling"]
build-backend = "hatchling.build"

[project]
name = "equipoise-run"
version = "1.0.0"
license = "Apache-2.0"
dependencies = []

[tool.hatch.build.targets.wheel]
packages = ["."]

[tool.flwr.app]
publisher = "equipoise"

[tool.flwr.app.components]
serverapp = "equipoise_run.apps:server"
clientapp = "equipoise_run.apps:client"

[tool.flwr.app.config]
folder = {folder}
"""
CODE = (
    '"""The apps of an Equipoise run."""\n\nfrom equipoise.deploy.apps import client, server\n\n__all__ '
    '= ["client", "server"]\n'
)
CONTINUE = "submit it again with the same --out to continue"
STOPPED = "`equipoise stop` was called"
ABANDONED = "the server ended while the run was going on"
UP = 300.0
"""seconds a server may take to listen: on a busy machine Flower is slow to start, and one that has ended is
noticed at once"""
LOOKS = 5
"""looks at a run's folder for each call to the server, which has better things to do"""
MUTE = 120.0
"""seconds a server that runs may miss calls before it is given up; one whose process is gone is noticed at
once"""


def start(folder: Path, host: str, port: int, limits: Limits | None = None) -> subprocess.Popen[bytes]:
    """Start the SuperLink (TLS, sites by key, control by the secret) and let in the listed sites; no run
    begins by itself."""
    keys = folder / "keys"
    for name in ("ca.crt", "server.crt", "server.key"):
        if not (keys / name).is_file():
            raise ConfigError(f"there is no {keys / name}: make it with `equipoise keys new {folder}`")
    check_certificates(folder)
    sites = listed(folder)
    home = private_folder(folder / HOME)
    make_secret(home)
    processes.no_proxy(host)
    for old in home.glob("superlink.db*"):
        old.unlink()  # of an earlier version, which kept answers of sites in it
    process = processes.start(
        [
            *(sys.executable, "-m", "equipoise.deploy.superlink"),
            *("--limits", (limits or Limits()).model_dump_json(), "--host", host, "--port", str(port)),
            *("--ssl-ca-certfile", str(keys / "ca.crt"), "--ssl-certfile", str(keys / "server.crt")),
            *("--ssl-keyfile", str(keys / "server.key"), "--enable-supernode-auth"),
            *("--database", str(home / "books.db"), "--disable-runtime-dependency-installation"),
        ],
        home,
        folder / "server.log",
    )
    try:
        inside = "127.0.0.1" if host in ("0.0.0.0", "::", "127.0.0.1") else host
        processes.wait_for_port(inside, port, process, UP, "Flower's SuperLink")
        write_json(folder / SERVER, {"address": f"{inside}:{port}", "process": process.pid})
        allow(folder, {site: read_public(path) for site, path in sites.items()})
        # Runs that the last server left behind would all begin by themselves.
        for number in end_runs(folder):
            with suppress(EquipoiseError, OSError):  # a folder that is damaged does not keep others waiting
                _note_stop(folder, number, ABANDONED)
    except BaseException:
        processes.stop(process)
        raise
    return process


def submit(folder: Path, config: Config, out: Path) -> int:
    """Hand a run to the SuperLink; its number there. A run that was begun is resumed."""
    keys = {site: read_public(path) for site, path in listed(folder).items()}
    check_certificates(folder)
    plan(config, out, keys)
    allow(folder, keys)
    files = {
        "pyproject.toml": APP.format(folder=json.dumps(str(out.resolve()))).encode(),
        "equipoise_run/__init__.py": b"",
        "equipoise_run/apps.py": CODE.encode(),
    }
    with control(folder) as client:
        number = client.start_run(files)
    if number is None:
        raise SiteError(f"the server did not take the run: {folder / 'server.log'} says why")
    enter(folder, number, out)
    write_json(out / FLOWER, {"run": number, "coordinator": str(folder.resolve())})
    return number


def wait(
    folder: Path, out: Path, number: int, look: Callable[[], None], pause: float = 0.5
) -> dict[str, Any]:
    """Wait for a run's end, calling `look` on the way; what it came to, or a `SiteError` that says why it
    stopped."""
    heard = time.monotonic()
    while True:
        try:
            with control(folder) as client:
                run = client.runs(number)[number]
            heard = time.monotonic()
        except SiteError:
            if has_ended(folder):
                raise SiteError(
                    f"the server of {folder} has ended: start it with `equipoise server start {folder}`, "
                    f"then submit again with the same --out to continue"
                ) from None
            if time.monotonic() - heard > MUTE:  # one that is busy may miss a call; the run goes on meanwhile
                raise
        else:
            look()
            if run.status.status == "finished":
                break
        for _ in range(LOOKS):
            time.sleep(pause)
            look()
            if (out / RESULT).exists() or has_ended(folder):
                break
    lines, _ = read_journal(out / JOURNAL)
    if run.status.sub_status == "completed" and (out / RESULT).exists():
        return RunFolder(out).read(RESULT)
    if run.status.sub_status == "stopped":
        raise RunStopped(f"the run was stopped by `equipoise stop`: {CONTINUE}")
    stopped = [line["reason"] for line in lines if line["event"] == "stopped"]
    reason = stopped[-1] if stopped else run.status.details or run.status.sub_status
    raise SiteError(f"the run stopped: {reason}; {CONTINUE}")


def stop(folder: Path, number: int | None = None) -> list[int]:
    """Stop a run, or all that have not ended; their numbers. Each has a line in its journal that says so."""
    going = end_runs(folder, number)
    for one in going:
        _note_stop(folder, one, STOPPED)
    return going


def _note_stop(folder: Path, number: int, reason: str) -> None:
    """Write down why a run ended, as soon as its process has."""
    out = place(folder, number)
    if out is not None and out.is_dir():
        with RunFolder(out).alone(), closing(Journal(out / JOURNAL)) as journal:
            journal.write("stopped", reason=reason)
