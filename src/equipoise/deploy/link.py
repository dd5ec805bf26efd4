"""The coordinator's day: Flower's SuperLink with an allow-list of sites, and runs handed to it.

keys/           see `keys`
flower/         Flower's own files: the secret of its processes and us, and its database (no tensor is in it)
server.json     where the SuperLink of this folder listens
server.log      what it says
"""

from __future__ import annotations

import hashlib
import json
import subprocess
import sys
import time
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
from flwr.cli.build import build_fab_from_files
from flwr.common.serde import fab_to_proto
from flwr.proto.control_pb2 import (
    ListNodesRequest,
    ListRunsRequest,
    RegisterNodeRequest,
    StartRunRequest,
    StopRunRequest,
    UnregisterNodeRequest,
)
from flwr.supercore.control import ControlHttpClient
from flwr.supercore.fab import Fab

from equipoise.config import Config
from equipoise.deploy import processes
from equipoise.deploy.access import Bearer, make_secret, read_secret
from equipoise.deploy.coordinator import plan
from equipoise.deploy.keys import check_dates, listed, read_public
from equipoise.deploy.limits import Limits
from equipoise.errors import ConfigError, SiteError, StorageError
from equipoise.keeping import read_json, write_json
from equipoise.run_folder import JOURNAL, RESULT, RunFolder, private_folder
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
HOME = "flower"
UP = 300.0
"""seconds a server may take to listen: on a busy machine Flower is slow to start, and one that has ended is
noticed at once"""
MUTE = 120.0
"""seconds a server may miss calls before it is taken for gone"""


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
        write_json(folder / "server.json", {"address": f"{inside}:{port}", "process": process.pid})
        allow(folder, {site: read_public(path) for site, path in sites.items()})
        stop(
            folder
        )  # runs that the last server left behind: they would all begin at once, and get in each other's way
    except BaseException:
        processes.stop(process)
        raise
    return process


def check_certificates(folder: Path) -> None:
    """Refuse to begin with a certificate that nobody would accept."""
    for name in ("ca.crt", "server.crt"):
        fix = f"renew it with `equipoise keys renew {folder}`, then start the server again"
        check_dates(folder / "keys" / name, fix)


@contextmanager
def control(folder: Path) -> Iterator[ControlHttpClient]:
    """A conversation with the SuperLink of this folder."""
    try:
        address = str(read_json(folder / "server.json", "start the server again")["address"])
        certificate, secret = (folder / "keys" / "ca.crt").read_bytes(), read_secret(folder / HOME)
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise ConfigError(
            f"no server runs in {folder}: start it with `equipoise server start {folder}`"
        ) from error
    check_certificates(folder)
    client = ControlHttpClient.from_server_address(address, False, certificate, [Bearer(secret)])
    try:
        yield client
    except (httpx.HTTPError, httpx.InvalidURL) as error:
        raise SiteError(
            f"the server of {folder} does not answer at {address} ({type(error).__name__}): "
            f"start it with `equipoise server start {folder}`; {folder / 'server.log'} says more"
        ) from error
    finally:
        client.close()


def allow(folder: Path, keys: dict[str, bytes]) -> None:
    """Make Flower's list of nodes the allow-list: let in who is on it, put out who no longer is."""
    with control(folder) as client:
        known = {
            node.public_key: node
            for node in client.ListNodes(ListNodesRequest()).nodes_info
            if not node.unregistered_at
        }
        for site, key in keys.items():
            if key not in known:
                client.RegisterNode(RegisterNodeRequest(public_key=key, name=site))
        for key, node in known.items():
            if key not in keys.values():
                client.UnregisterNode(UnregisterNodeRequest(node_id=node.node_id))


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
    with warnings.catch_warnings():
        warnings.simplefilter(
            "ignore", DeprecationWarning
        )  # Flower names a pattern style that its own dependency has renamed
        bundle, _ = build_fab_from_files(files)
    with control(folder) as client:
        found = client.StartRun(
            StartRunRequest(fab=fab_to_proto(Fab(hashlib.sha256(bundle).hexdigest(), bundle, {})))
        )
    if not found.HasField("run_id"):
        raise SiteError(f"the server did not take the run: {folder / 'server.log'} says why")
    write_json(out / "flower.json", {"run": found.run_id, "coordinator": str(folder.resolve())})
    return int(found.run_id)


def wait(
    folder: Path, out: Path, number: int, look: Callable[[], None], pause: float = 0.5
) -> dict[str, Any]:
    """Wait for a run's end, calling `look` on the way; what it came to, or a `SiteError` that says why it
    stopped."""
    heard = time.monotonic()
    while True:
        try:
            with control(folder) as client:
                run = client.ListRuns(ListRunsRequest(run_id=number)).run_dict[number]
            heard = time.monotonic()
        except SiteError:
            if time.monotonic() - heard > MUTE:  # one that is busy may miss a call; the run goes on meanwhile
                raise
        else:
            look()
            if run.status.status == "finished":
                break
        time.sleep(pause)
    lines, _ = read_journal(out / JOURNAL)
    if run.status.sub_status == "completed" and (out / RESULT).exists():
        return RunFolder(out).read(RESULT)
    stopped = [line["reason"] for line in lines if line["event"] == "stopped"]
    reason = stopped[-1] if stopped else run.status.details or run.status.sub_status
    raise SiteError(f"the run stopped: {reason}; submit it again with the same --out to go on")


def standing(folder: Path) -> dict[str, Any]:
    """Who is there and what runs."""
    names = {read_public(path): site for site, path in listed(folder).items()}
    with control(folder) as client:
        nodes = client.ListNodes(ListNodesRequest()).nodes_info
        runs = client.ListRuns(ListRunsRequest()).run_dict
    here = {
        names[node.public_key]: node
        for node in nodes
        if node.public_key in names and not node.unregistered_at
    }
    return {
        "sites": {
            site: {
                "status": here[site].status if site in here else "not let in",
                "since": _since(here.get(site)),
            }
            for site in names.values()
        },
        "runs": [
            {
                "run": number,
                "status": run.status.status,
                "outcome": run.status.sub_status,
                "since": run.running_at,
            }
            for number, run in sorted(runs.items(), key=lambda item: item[1].pending_at)
        ],
    }


def _since(node: Any) -> str:
    if node is None:
        return ""
    result: str = node.last_activated_at if node.status == "online" else node.last_deactivated_at
    return result


def stop(folder: Path, number: int | None = None) -> list[int]:
    """Stop a run, or all that have not ended; their numbers."""
    with control(folder) as client:
        runs = client.ListRuns(ListRunsRequest()).run_dict
        going = [
            one for one, run in runs.items() if run.status.status != "finished" and number in (None, one)
        ]
        if number is not None and not going:
            raise ConfigError(
                f"no run {number} is going on at {folder}: `equipoise status {folder}` lists them"
            )
        for one in going:
            client.StopRun(StopRunRequest(run_id=one))
    return going


def run_number(out: Path) -> int:
    """The number a run folder has at the SuperLink."""
    try:
        return int(read_json(out / "flower.json", "submit the run again")["run"])
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise StorageError(f"{out} is not the folder of a submitted run") from error
