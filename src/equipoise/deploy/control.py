"""Speaking with the server of a coordinator's folder, on its own machine: who is let in, what runs.

No network and no method is needed for that, so none is imported: `equipoise status` answers at once.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx

from equipoise.deploy import processes
from equipoise.deploy.access import SECRET, read_secret
from equipoise.deploy.flower import Control
from equipoise.deploy.keys import check_dates, listed, read_public
from equipoise.errors import ConfigError, SiteError
from equipoise.keeping import read_json

HOME, SERVER = "flower", "server.json"


def check_certificates(folder: Path) -> None:
    """Refuse to begin with a certificate that nobody would accept."""
    for name in ("ca.crt", "server.crt"):
        fix = f"renew it with `equipoise keys renew {folder}`, then start the server again"
        check_dates(folder / "keys" / name, fix)


@contextmanager
def control(folder: Path) -> Iterator[Control]:
    """A conversation with the SuperLink of this folder."""
    try:
        address = str(read_json(folder / SERVER, "start the server again")["address"])
        certificate, secret = (folder / "keys" / "ca.crt").read_bytes(), read_secret(folder / HOME)
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise ConfigError(
            f"no server runs in {folder}: start it with `equipoise server start {folder}`"
        ) from error
    check_certificates(folder)
    processes.no_proxy(address.rpartition(":")[0].strip("[]"))
    client = Control(address, certificate, {SECRET: secret})
    try:
        yield client
    except (httpx.HTTPError, httpx.InvalidURL) as error:
        raise SiteError(
            f"the server of {folder} does not answer at {address} ({type(error).__name__}): "
            f"start it with `equipoise server start {folder}`; {folder / 'server.log'} says more"
        ) from error
    finally:
        client.close()


def has_ended(folder: Path) -> bool:
    """Whether the server's process is gone, so that waiting for it is of no use."""
    try:
        number = read_json(folder / SERVER, "start the server again").get("process")
    except (OSError, ValueError):
        return False
    return isinstance(number, int) and processes.gone(number)


# Who is let in ----------------------------------------------------------------------------------------------


def allow(folder: Path, keys: Mapping[str, bytes]) -> None:
    """Make Flower's list of nodes the allow-list: register who is on it, remove who no longer is."""
    with control(folder) as client:
        known = {node.public_key: node for node in client.nodes()}
        for site, key in keys.items():
            if key not in known:
                client.register(site, key)
        for key, node in known.items():
            if key not in keys.values():
                client.unregister(node.node_id)


class AllowList:
    """Notices a `.pub` file that is new, was changed or is gone while the server runs."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._seen = self._files()

    def _files(self) -> dict[str, tuple[int, int]]:
        files = {}
        for path in (self.folder / "keys" / "sites").glob("*.pub"):
            try:
                files[path.stem] = (path.stat().st_mtime_ns, path.stat().st_size)
            except FileNotFoundError:
                continue  # deleted between the two looks
        return files

    def look(self) -> list[str]:
        """Make the list count as it is now; a sentence for every change."""
        before, now = self._seen, self._files()
        if now == before:
            return []
        allow(self.folder, {site: read_public(path) for site, path in listed(self.folder).items()})
        self._seen = now
        return [
            *(f"{site} is let in from now on" for site in sorted(now) if now[site] != before.get(site)),
            *(f"{site} is no longer let in" for site in sorted(before) if site not in now),
        ]


# What runs --------------------------------------------------------------------------------------------------


def nodes_and_runs(folder: Path) -> tuple[list[Any], dict[int, Any]]:
    """What Flower knows of the registered sites, and of the runs that were handed in, by number."""
    with control(folder) as client:
        return client.nodes(), client.runs()


def end_runs(folder: Path, number: int | None = None) -> list[int]:
    """Have the server end a run, or all that have not ended; their numbers."""
    with control(folder) as client:
        going = [
            one
            for one, run in client.runs().items()
            if run.status.status != "finished" and number in (None, one)
        ]
        if number is not None and not going:
            raise ConfigError(
                f"no run {number} is going on at {folder}: `equipoise status {folder}` lists them"
            )
        for one in going:
            client.stop_run(one)
    return going
