"""A coordinator's and a site's day with the commands themselves: who is let in, who joined, stop, a server
that is killed."""

from __future__ import annotations

import json
import resource
import subprocess
import time
import urllib.error
import urllib.request
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import tomli_w

from equipoise.config import Config
from equipoise.deploy import processes
from equipoise.deploy.coordinator import federated
from equipoise.deploy.rehearse import CLI, allowed, stage
from equipoise.server.journal import read as read_journal

pytestmark = [pytest.mark.slow, pytest.mark.hospitals]
MakeConfig = Callable[..., Config]
LONG = 600.0
"""seconds: a busy machine is slow, and only the end of this says that something is wrong"""
SOON = 60.0


def until(there: Callable[[], Any], what: str, seconds: float = LONG) -> float:
    """Wait until something is so; how long it took."""
    start = time.monotonic()
    while time.monotonic() < start + seconds:
        if there():
            return time.monotonic() - start
        time.sleep(0.2)
    raise AssertionError(f"{what} after {seconds:g} s")


def events(folder: Path) -> list[str]:
    return [line["event"] for line in read_journal(folder / "journal.jsonl")[0]]


def health(port: int) -> int:
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/health", timeout=60) as answer:
            return int(answer.status)
    except urllib.error.HTTPError as error:
        return error.code


def test_a_day_with_the_commands(tiny: MakeConfig, tmp_path: Path) -> None:
    config = federated(tiny("fedavg", train={"rounds": 500}, evaluate={"every": 500}))
    config = config.with_engine(deadline=900.0, patience=900.0)
    file, out = tmp_path / "run.toml", tmp_path / "run"
    table = {key: value for key, value in config.table().items() if key not in ("base", "data", "partition")}
    file.write_text(tomli_w.dumps(_filled(table)))
    ports = [processes.free_port() for _ in range(2)]
    with stage(config, tmp_path / "town", {"each": allowed(config)}) as made:
        names = sorted(path.name for path in (tmp_path / "town" / "sites").iterdir())
        first, last = names[0], names[-1]
        listed = made.coordinator / "keys" / "sites" / f"{last}.pub"
        listed.rename(tmp_path / "later.pub")
        start = ["server", "start", str(made.coordinator), "--port", str(made.port), "--health-port"]
        log = tmp_path / "server.log"
        made.server = processes.start([*CLI, *start, str(ports[0])], tmp_path / "home", log)
        until(lambda: "listening on" in log.read_text(), "the server does not listen")
        for name in names:
            made.join(name, "--patience", "900", *(["--health-port", str(ports[1])] if name == first else []))

        # A key that is put there while the server runs counts.
        until(lambda: "not let in yet" in (made.site(last) / "join.log").read_text(), "nobody is turned away")
        (tmp_path / "later.pub").rename(listed)
        until(lambda: f"{last} is let in" in log.read_text(), "the new key does not count", SOON)
        for name in names:
            until(lambda name=name: "online" in events(made.site(name)), f"{name} is not online")
        assert "online at 127.0.0.1" in (made.site(last) / "join.log").read_text()
        assert health(ports[0]) == health(ports[1]) == 200

        # Submit says who joined; status answers soon, and knows the run.
        submit = [*CLI, "submit", str(file), "--to", str(made.coordinator), "--out", str(out)]
        waiting = processes.start(submit, tmp_path / "home", tmp_path / "submit.log")
        said = (tmp_path / "submit.log").read_text
        until(lambda: said().count(" joined (") == len(names), "not all have joined")
        assert "handed in as run" in said() and f"online: {', '.join(names)}; not online: nobody" in said()
        until(lambda: "committed" in events(out), "no round is done")
        before = resource.getrusage(resource.RUSAGE_CHILDREN)
        done = subprocess.run(
            [*CLI, "status", str(made.coordinator), "--json"], capture_output=True, text=True, check=True
        )
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
        assert after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime < 2.0
        (run,) = json.loads(done.stdout)["runs"]
        assert (run["name"], run["folder"], run["rounds"], run["sites"]) == ("run", str(out), 500, names)

        # Stop leaves a line, and the one who waits has a code of its own.
        subprocess.run([*CLI, "stop", str(made.coordinator)], check=True, capture_output=True)
        assert read_journal(out / "journal.jsonl")[0][-1]["reason"] == "`equipoise stop` was called"
        assert waiting.wait(timeout=LONG) == 10 and "with the same --out to continue" in said()
        done = subprocess.run(
            [*CLI, "status", str(made.coordinator)], capture_output=True, text=True, check=True
        )
        assert "ended: `equipoise stop` was called" in done.stdout

        # A server that is killed is noticed in seconds, by who waits and by the sites.
        rounds = events(out).count("committed")
        waiting = processes.start(submit, tmp_path / "home", tmp_path / "again.log")
        until(lambda: events(out).count("committed") > rounds, "the run does not continue")
        made.kill(made.server)
        killed = time.monotonic()
        assert waiting.wait(timeout=SOON) == 7
        assert "has ended: start it" in (tmp_path / "again.log").read_text()
        until(lambda: "cut off" in events(made.site(first)), "the site does not notice", SOON)
        print(f"the server's end was noticed within {time.monotonic() - killed:.1f} s")
        assert health(ports[1]) == 503
        assert "is not reached: trying again" in (made.site(first) / "join.log").read_text()


def _filled(table: Any) -> Any:
    """A table without what TOML has no word for."""
    if isinstance(table, dict):
        return {key: _filled(value) for key, value in table.items() if value is not None}
    return [_filled(value) for value in table] if isinstance(table, list | tuple) else table
