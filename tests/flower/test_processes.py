"""Real processes: SuperLink, SuperNodes, TLS, keys. Few and tiny, since Flower takes seconds for every question.

Each ends with no process left behind. `benchmarks/flower.py` has more of the same: all methods, ten kills, twenty sites.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from safetensors.torch import load_file

from equipoise.config import Config
from equipoise.deploy import link
from equipoise.deploy.coordinator import federated
from equipoise.deploy.keys import new_keys, new_pair
from equipoise.deploy.rehearse import Stage, allowed, rehearse, stage
from equipoise.running import run
from equipoise.server import Checkpoints
from equipoise.server.journal import read as read_journal
from equipoise.testing import raw

pytestmark = [pytest.mark.slow, pytest.mark.hospitals]
MakeConfig = Callable[..., Config]
Rows = Callable[[Path], list[dict[str, Any]]]
PATIENT: dict[str, Any] = {"deadline": 120.0, "patience": 240.0}
NAMES = ("site-00", "site-01", "site-02")


def ours() -> set[int]:
    """Processes of this machine whose command line speaks of Flower or of a site."""
    found = set()
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            words = path.read_bytes()
        except OSError:
            continue
        if any(word in words for word in (b"flower-super", b"flwr-", b"equipoise.deploy", b"site\0join")):
            found.add(int(path.parent.name))
    return found


@pytest.fixture(autouse=True)
def _nothing_left() -> Iterator[None]:
    before = ours()
    yield
    for _ in range(100):  # what was told to end may take a moment
        if not ours() - before:
            return
        time.sleep(0.1)
    raise AssertionError(f"processes left behind: {ours() - before}")


def events(folder: Path, event: str) -> list[dict[str, Any]]:
    return [line for line in read_journal(folder / "journal.jsonl")[0] if line["event"] == event]


@pytest.mark.parametrize("method", ["fca", "fediic", "fedsdc"])
def test_a_rehearsal_gives_the_bits_of_the_simulation(method: str, tiny: MakeConfig, rows: Rows, tmp_path: Path) -> None:
    """Private state, two questions, leaves that are read site by site."""
    config = tiny(method).with_engine(**PATIENT)
    found = rehearse(config, tmp_path / "run")
    assert found["same"] and found["state_hash"] == found["simulation_hash"]
    run(federated(config), tmp_path / "here")
    assert rows(tmp_path / "run") == rows(tmp_path / "here")


@contextmanager
def playing(config: Config, folder: Path, out: Path) -> Iterator[tuple[Stage, int]]:
    """A federation that has begun."""
    with stage(config, folder, {"each": allowed(config)}) as made:
        made.open()
        for name in NAMES:
            made.join(name)
        yield made, link.submit(made.coordinator, config, out)


def until(out: Path, rounds: int) -> None:
    """Wait for a round to be done."""
    path, end = out / "metrics.jsonl", time.monotonic() + 300
    while time.monotonic() < end:
        if path.exists() and len(path.read_text().splitlines()) >= rounds:
            return
        time.sleep(0.1)
    raise AssertionError(f"round {rounds} is not done after 300 s")


def test_a_site_that_is_killed_and_comes_back_and_a_coordinator_that_is(tiny: MakeConfig, tmp_path: Path) -> None:
    config = federated(tiny("fca", train={"rounds": 4})).with_engine(**PATIENT, retries=2)
    expected, out = run(config, tmp_path / "here").state_hash, tmp_path / "run"
    with playing(config, tmp_path / "town", out) as (made, number):
        until(out, 1)
        made.kill(made.sites["site-01"])
        made.join("site-01")
        until(out, 2)
        assert made.server is not None
        made.kill(made.server)
        made.open()
        number = link.submit(made.coordinator, config, out)
        assert link.wait(made.coordinator, out, number, lambda: None)["state_hash"] == expected
        assert [site["status"] for site in link.standing(made.coordinator)["sites"].values()] == ["online"] * 3
    assert len(events(out, "resumed")) == 1
    assert [row["sites"] for row in map(json.loads, (out / "metrics.jsonl").read_text().splitlines())] == [list(NAMES)] * 4


def test_a_site_that_hangs_is_left_out_and_named(tiny: MakeConfig, tmp_path: Path) -> None:
    config = federated(tiny("fca", train={"rounds": 3}, evaluate={"every": 3}))
    config = config.with_engine(**PATIENT | {"deadline": 30.0}, retries=0)
    out = tmp_path / "run"
    with playing(config, tmp_path / "town", out) as (made, number):
        until(out, 1)
        os.kill(made.sites["site-01"].pid, signal.SIGSTOP)
        until(out, 2)
        os.kill(made.sites["site-01"].pid, signal.SIGCONT)
        link.wait(made.coordinator, out, number, lambda: None)
    assert {line["site"] for line in events(out, "silent")} == {"site-01"}
    sites = [row["sites"] for row in map(json.loads, (out / "metrics.jsonl").read_text().splitlines())]
    assert sites[0] == sites[2] == list(NAMES) and sites[1] == ["site-00", "site-02"]


def test_strangers_stay_outside_and_logs_say_nothing_of_the_data(tiny: MakeConfig, tmp_path: Path) -> None:
    """A site that trusts another authority, one whose key is not listed; the third goes on alone."""
    # Personal heads of their own from the start: as copies of the federated head they stay close to it in one round.
    config = federated(tiny("fca", train={"rounds": 1})).with_engine(**PATIENT | {"patience": 30.0})
    config = replace(config, method=config.method.model_copy(update={"own_init": "draw"}))
    secret = tmp_path / "Zq7sentinelXw"
    with stage(replace(config, base=tmp_path), secret, {"each": allowed(config)}) as made:
        new_keys(tmp_path / "other", [], [])
        shutil.copy(tmp_path / "other" / "keys" / "ca.crt", made.site("site-00") / "keys" / "ca.crt")
        for name in ("site", "site.pub"):
            (made.site("site-01") / "keys" / name).unlink()
        new_pair(made.site("site-01") / "keys" / "site")
        made.open()
        for name in NAMES:
            made.join(name, "--patience", "0")
        for name, reason in {
            "site-00": "is not one that ca.crt vouches for",
            "site-01": "does not list this site's key",
        }.items():
            assert made.sites[name].wait(timeout=120) == 7
            assert reason in (made.site(name) / "join.log").read_text()
            assert reason in events(made.site(name), "turned away")[0]["reason"]
        number = link.submit(made.coordinator, config, tmp_path / "run")
        link.wait(made.coordinator, tmp_path / "run", number, lambda: None)
        database = sorted((made.coordinator / "flower").glob("superlink.db*"))  # what Flower wrote and has not yet tidied up
        crossed = b"".join(path.read_bytes() for path in (made.coordinator / "server.log", *database))
        (kept,) = made.site("site-02").glob("runs/*/private/site-02/*.safetensors")
        private = load_file(kept)
    assert sorted({line["site"] for line in events(tmp_path / "run", "silent")}) == ["site-00", "site-01"]
    assert list(json.loads((tmp_path / "run" / "roster.json").read_text())) == ["site-02"]
    # Row by row, since a database breaks what is longer over its pages. The federated head must be there, the personal one not.
    newest = Checkpoints(tmp_path / "run" / "checkpoints").newest()
    assert newest is not None
    assert any(raw(row) in crossed for row in newest[0]["model"]["head.fed.weight"])
    assert not any(raw(row) in crossed for row in private["net/head.own.weight"])
    assert not any(raw(x) in crossed for name, x in private.items() if name.startswith("optimizer/") and x.numel() >= 8)
    assert b"sentinelXw/sites" not in crossed
