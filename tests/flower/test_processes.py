"""Real processes: a server, sites, TLS, keys. Few and tiny, since each process takes seconds to start; the
one run of every `make test` is in `test_server_port.py`.

Each ends with no process left behind. `benchmarks/flower.py` has more of the same: all methods, ten kills,
twenty sites.
"""

from __future__ import annotations

import contextlib
import json
import os
import secrets
import shutil
import signal
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
import tomli_w
from tests import doctored
from tests.flower.actor import PARTS, named
from tests.flower.sentinels import at_home, write_hospitals
from tests.spoiled import Spoil

from equipoise.config import Config, resolve
from equipoise.deploy import link, processes
from equipoise.deploy.coordinator import federated
from equipoise.deploy.keys import new_keys, new_pair
from equipoise.deploy.policy import approved
from equipoise.deploy.rehearse import Stage, allowed, rehearse, stage
from equipoise.deploy.standing import standing
from equipoise.report import write_report
from equipoise.running import run
from equipoise.server import Checkpoints
from equipoise.server.journal import read as read_journal
from equipoise.testing import raw

pytestmark = pytest.mark.slow
MakeConfig = Callable[..., Config]
Rows = Callable[[Path], list[dict[str, Any]]]
MARK = "EQUIPOISE_TEST_OF"
OPEN: dict[str, Any] = {"small_cell": 0, "batch_size": 1}
"""rules of a site that tells all, as a simulation does"""
PATIENT: dict[str, Any] = {"deadline": 900.0, "patience": 900.0}
"""on a busy machine Flower may take minutes for what takes seconds: nothing here shall depend on it but what
is about deadlines"""
OFTEN = {"every": 1}
"""so that a round takes long enough to be broken off"""
NAMES = ("site-00", "site-01", "site-02")
ROOT = Path(__file__).resolve().parents[2]


def ours(mark: str) -> set[int]:
    """Processes whose environment has the mark, which is handed down to all that a test starts, and to nobody
    else."""
    found = set()
    for path in Path("/proc").glob("[0-9]*/environ"):
        with contextlib.suppress(OSError):
            if f"{MARK}={mark}".encode() in path.read_bytes().split(b"\0"):
                found.add(int(path.parent.name))
    return found


@contextmanager
def nothing_left() -> Iterator[None]:
    """What is started within has ended at the end."""
    mark = secrets.token_hex(8)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv(MARK, mark)
        yield
    for _ in range(600):  # what was told to end may take a moment
        if not ours(mark):
            return
        time.sleep(0.1)
    raise AssertionError(f"processes left behind: {ours(mark)}")


@pytest.fixture(autouse=True)
def _nothing_left() -> Iterator[None]:
    with nothing_left():
        yield


def events(folder: Path, event: str) -> list[dict[str, Any]]:
    return [line for line in read_journal(folder / "journal.jsonl")[0] if line["event"] == event]


@pytest.mark.hospitals
def test_a_rehearsal_gives_the_bits_of_the_simulation(tiny: MakeConfig, tmp_path: Path) -> None:
    config = tiny("fca").with_engine(**PATIENT)
    found = rehearse(config, tmp_path / "run")
    assert found["same"] and found["state_hash"] == found["simulation_hash"]
    assert found["state_hash"] == run(federated(config), tmp_path / "here").state_hash
    assert "each site a process of its own" in write_report(tmp_path / "run").read_text()
    told = [
        line for line in read_journal(tmp_path / "run" / "journal.jsonl")[0] if line["event"] == "withheld"
    ]
    assert {line["site"] for line in told} == set(NAMES)  # the policy of a new site, as few images as here


@contextmanager
def playing(config: Config, folder: Path, out: Path) -> Iterator[tuple[Stage, int]]:
    """A federation that has begun."""
    with stage(config, folder, {"each": allowed(config), **OPEN}) as made:
        made.open()
        for name in NAMES:
            made.join(name)
        yield made, link.submit(made.coordinator, config, out)


def until(out: Path, rounds: int) -> None:
    """Wait for a round to be done."""
    path, end = out / "metrics.jsonl", time.monotonic() + 1800
    while time.monotonic() < end:
        if path.exists() and len(path.read_text().splitlines()) >= rounds:
            return
        time.sleep(0.1)
    raise AssertionError(f"round {rounds} is not done after half an hour")


@pytest.mark.hospitals
def test_a_site_that_is_killed_and_comes_back_and_a_coordinator_that_is(
    tiny: MakeConfig, tmp_path: Path
) -> None:
    config = federated(tiny("fca", train={"rounds": 4}, evaluate=OFTEN)).with_engine(**PATIENT, retries=2)
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
        found = link.wait(made.coordinator, out, number, lambda: None)["state_hash"]
        # Flower may notice that the site is gone before it is back; it is asked again then.
        assert not events(out, "missing")
        assert found == expected
        assert [site["status"] for site in standing(made.coordinator)["sites"].values()] == ["online"] * 3
    assert len(events(out, "resumed")) == 1
    assert [row["sites"] for row in map(json.loads, (out / "metrics.jsonl").read_text().splitlines())] == [
        list(NAMES)
    ] * 4


@pytest.mark.hospitals
def test_two_runs_at_once(tiny: MakeConfig, tmp_path: Path) -> None:
    """One of them masked, and the other not approved by all sites."""
    masked = federated(tiny("fedavg", exchange={"secure": True}, evaluate=OFTEN)).with_engine(**PATIENT)
    other = federated(
        tiny("fca", exchange={"min_sites": 2}, train={"rounds": 4}, evaluate=OFTEN)
    ).with_engine(**PATIENT)
    each = sorted({*allowed(masked), *allowed(other)})
    rules = {"each": each, "methods": approved(), "min_sites": 2, **OPEN}
    configs = {tmp_path / "masked": masked, tmp_path / "other": other}
    with stage(masked, tmp_path / "town", rules) as made:
        (made.site("site-02") / "policy.toml").write_text(
            tomli_w.dumps(rules | {"methods": approved(["fedavg"])})
        )
        made.open()
        made.join_all()
        numbers = {out: link.submit(made.coordinator, config, out) for out, config in configs.items()}
        found = {
            out: link.wait(made.coordinator, out, number, lambda: None) for out, number in numbers.items()
        }
        order = [line["run"] for line in events(made.site("site-00"), "answered")]
        assert {run["outcome"] for run in standing(made.coordinator)["runs"]} == {"completed"}
    assert sum(a != b for a, b in pairwise(order)) > 1, "one run was over before the other began"
    plain = replace(masked, exchange=masked.exchange.model_copy(update={"secure": False}))
    assert found[tmp_path / "masked"]["state_hash"] == run(plain, tmp_path / "here").state_hash
    assert {line["site"] for line in events(tmp_path / "other", "refused")} == {"site-02"}
    assert list(doctored.table(tmp_path / "other" / "roster.json")["sites"]) == ["site-00", "site-01"]
    for out in configs:
        assert not events(out, "silent") and not events(out, "failed") and not events(out, "asked again")


@pytest.mark.hospitals
def test_a_server_begins_no_run_by_itself(tiny: MakeConfig, tmp_path: Path) -> None:
    """A run that a killed server had taken is not begun by the next: it waits to be handed in again."""
    config = federated(tiny("fca")).with_engine(**PATIENT)
    with stage(config, tmp_path / "town", OPEN) as made:
        made.open()
        number = link.submit(made.coordinator, config, tmp_path / "run")
        assert made.server is not None
        made.kill(made.server)
        made.open()
        (run,) = standing(made.coordinator)["runs"]
        assert (run["run"], run["status"], run["outcome"]) == (number, "finished", "stopped")


@pytest.mark.hospitals
def test_a_site_that_hangs_is_left_out_and_named(tiny: MakeConfig, tmp_path: Path) -> None:
    config = federated(tiny("fca", train={"rounds": 6}, evaluate={"every": 6}, exchange={"min_sites": 2}))
    config = config.with_engine(**PATIENT | {"deadline": 90.0}, retries=0)
    out = tmp_path / "run"
    with playing(config, tmp_path / "town", out) as (made, number):
        until(out, 1)
        os.kill(made.sites["site-01"].pid, signal.SIGSTOP)
        while not events(out, "silent"):  # it may have answered a question or two before it was stopped
            assert not any(line["finished"] for line in events(out, "committed")), "it was stopped too late"
            time.sleep(0.1)
        os.kill(made.sites["site-01"].pid, signal.SIGCONT)
        link.wait(made.coordinator, out, number, lambda: None)
    assert {line["site"] for line in events(out, "silent")} == {"site-01"}
    sites = [row["sites"] for row in map(json.loads, (out / "metrics.jsonl").read_text().splitlines())]
    assert sites[0] == sites[-1] == list(NAMES) and ["site-00", "site-02"] in sites


@pytest.mark.hospitals
def test_strangers_stay_outside_and_the_coordinator_has_nothing_of_the_data(tmp_path: Path) -> None:
    """A site that trusts another authority, one whose key is not listed; the third goes on alone, and keeps
    to itself what it must."""
    # Personal heads of their own from the start: as copies of the federated head they stay close to it in one
    # round.
    wanted = {"method": {"name": "fca", "own_init": "draw"}, "train": {"rounds": 1, "batch_size": 4}}
    wanted |= {"engine": {"device": "cpu", **PATIENT, "patience": 90.0}, "exchange": {"min_sites": 1}}
    config, out = federated(resolve(write_hospitals(tmp_path, NAMES) | wanted)), tmp_path / "run"
    with stage(config, tmp_path / "town", {"each": allowed(config), **OPEN}) as made:
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
            assert made.sites[name].wait(timeout=600) == 7
            assert reason in (made.site(name) / "join.log").read_text()
            assert reason in events(made.site(name), "turned away")[0]["reason"]
        made.perform(resolve(wanted), out)
        # Among them Flower's log and its database, as they are while the server runs.
        files = [path for folder in (made.coordinator, out) for path in folder.rglob("*") if path.is_file()]
        there = b"".join(path.read_bytes() for path in files)
        servers = b"".join(path.read_bytes() for path in files if made.coordinator in path.parents)
        secrets = at_home(made.site("site-02"))
    assert sorted({line["site"] for line in events(out, "silent")}) == ["site-00", "site-01"]
    assert list(doctored.table(out / "roster.json")["sites"]) == ["site-02"]
    assert {"server.log", "books.db", "journal.jsonl", "ledger.json"} <= {path.name for path in files}
    newest = Checkpoints(out / "checkpoints").newest()
    assert newest is not None
    # What went through the server is in the run's checkpoint, and in no file of the server's own.
    head = [raw(row) for row in newest[0]["model"]["head.fed.weight"]]
    assert all(row in there for row in head) and not any(row in servers for row in head)
    assert any("head.own" in what for what in secrets) and any("optimizer/" in what for what in secrets)
    for what, secret in secrets.items():
        assert secret not in there, what


# Sites that do not behave -----------------------------------------------------------------------------------


def act(made: Stage, name: str, part: str) -> None:
    """Start a site that plays a part (see `actor`)."""
    folder = made.site(name)
    command = [sys.executable, "-m", "tests.flower.actor", str(folder), part]
    made.sites[name] = processes.start(command, folder / "flower", folder / "join.log")


@pytest.mark.hospitals
def test_a_rogue_site_is_turned_away_whatever_it_sends(
    tiny: MakeConfig, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The parts of test_wire, by a site with a key of its own: the bits of a run that lost those answers."""
    monkeypatch.chdir(ROOT)
    rounds = len(PARTS) + 1
    config = federated(
        tiny("fedavg", train={"rounds": rounds}, evaluate={"every": rounds}, exchange={"min_sites": 2})
    )
    config, out = config.with_engine(**PATIENT, retries=0), tmp_path / "run"
    lost = run(
        config,
        tmp_path / "here",
        wrap=lambda engine: Spoil(engine, "site-01", lambda data: None, range(len(PARTS))),
    )
    with stage(config, tmp_path / "town", {"each": allowed(config), **OPEN}) as made:
        made.open()
        made.join("site-00")
        act(made, "site-01", "rogue")
        made.join("site-02")
        found = made.perform(config, out)
    named(out, "site-01")
    assert not events(out, "silent")
    assert found["state_hash"] == lost.state_hash


@pytest.mark.hospitals
def test_sites_that_are_cut_off_before_during_and_after_their_answer(
    tiny: MakeConfig, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """All three in one round; each comes back, is asked again and gives the answer it would have given."""
    monkeypatch.chdir(ROOT)
    config, out = (
        federated(tiny("fca", train={"rounds": 3}, evaluate=OFTEN)).with_engine(**PATIENT, retries=2),
        tmp_path / "run",
    )
    expected = run(config, tmp_path / "here").state_hash
    with stage(config, tmp_path / "town", {"each": allowed(config), **OPEN}) as made:
        made.open()
        for name, part in zip(NAMES, ("before", "during", "after"), strict=True):
            act(made, name, part)
        number = link.submit(made.coordinator, config, out)
        for name in NAMES:
            assert made.sites[name].wait(timeout=1800) == -signal.SIGKILL
            assert list(made.site(name).glob("died-*"))
            made.join(name)
        found = link.wait(made.coordinator, out, number, lambda: None)
    assert found["state_hash"] == expected
    assert {(line["site"], line["round"]) for line in events(out, "asked again")} >= {
        ("site-00", 2),
        ("site-01", 2),
    }
    assert [row["sites"] for row in map(json.loads, (out / "metrics.jsonl").read_text().splitlines())] == [
        list(NAMES)
    ] * 3
