"""Tickets that grow whatever the clock says, and journals that hold each other to what they say."""

from __future__ import annotations

import json
import shutil
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from tests import doctored

from equipoise.config import Config
from equipoise.deploy import apps
from equipoise.deploy.coordinator import coordinate
from equipoise.deploy.site import SiteClient
from equipoise.engine.flower.fleet import BLOCK, Tickets
from equipoise.engine.flower.wire import unwrap
from equipoise.errors import StorageError
from equipoise.keeping import read_json, read_lines
from equipoise.running import Result
from equipoise.server import Checkpoints
from equipoise.server.journal import line_hash
from equipoise.verify import verify

MakeConfig = Callable[..., Config]
MINUTE = 60 * 10**9


class Stop(Exception):
    """The coordinator is gone."""


def stop_in(round: int) -> Callable[[str, dict[str, Any]], None]:
    def watch(event: str, facts: dict[str, Any]) -> None:
        if event == "round" and facts["round"] == round:
            raise Stop

    return watch


# Tickets ----------------------------------------------------------------------------------------------------


def test_a_coordinator_whose_clock_was_set_back_goes_on(
    tiny: MakeConfig, town: Any, once: Callable[[Config], Result], monkeypatch: pytest.MonkeyPatch
) -> None:
    config = tiny("fca")
    there = town(config)
    expected = once(replace(config, evaluate=there.config.evaluate))
    with pytest.raises(Stop):
        coordinate(there.wire, there.run, stop_in(2))
    real = time.time_ns
    monkeypatch.setattr(time, "time_ns", lambda: real() - 10 * MINUTE)
    assert there.go().state_hash == expected.state_hash
    assert not [line for line in read_lines(there.run / "journal.jsonl")[0] if line["event"] == "refused"]


def test_tickets_grow_over_restarts_and_with_any_clock(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path, last = tmp_path / "tickets.json", 0
    for clock in (5000 * MINUTE, 4990 * MINUTE, 0, 4999 * MINUTE, 6000 * MINUTE):
        monkeypatch.setattr(time, "time_ns", lambda now=clock: now)
        tickets = Tickets(path)
        for _ in range(3):
            ticket = tickets.next()
            assert ticket > last
            last = ticket
    assert last > 6000 * MINUTE


def test_tickets_are_written_down_before_they_are_used(tmp_path: Path) -> None:
    path = tmp_path / "tickets.json"
    tickets = Tickets(path)
    used = [tickets.next() for _ in range(2 * BLOCK + 10)]
    assert used == sorted(set(used)) and used[-1] < read_json(path, "")["ticket"] + 1


def test_a_damaged_file_of_tickets_is_told(tmp_path: Path) -> None:
    path = tmp_path / "tickets.json"
    Tickets(path).next()
    path.write_text(path.read_text().replace("1", "2", 1))
    with pytest.raises(StorageError, match=r"tickets\.json is damaged or was changed: delete it"):
        Tickets(path)


# Journals ---------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def played(tiny: MakeConfig, town: Any) -> Any:
    """A federation that is done, and at home again."""
    there = town(tiny("fca", train={"rounds": 1}))
    there.go()
    for folder in there.sites.values():
        apps.desk(str(folder)).close()
    return there


def test_each_side_writes_down_the_heads_of_the_other(played: Any) -> None:
    ours = read_lines(played.run / "journal.jsonl")[0]
    heads = [line["hash"] for line in ours]
    for name, folder in played.sites.items():
        theirs = read_lines(folder / "journal.jsonl")[0]
        received = [line["journal"] for line in ours if line["event"] == "received" and line["site"] == name]
        answered = [line for line in theirs if line["event"] in ("joined", "answered")]
        assert (
            received == [line["hash"] for line in answered] and len(received) == 3
        )  # joined, trained, evaluated
        places = [heads.index(line["coordinator"]) for line in answered]
        assert places == sorted(places)
        assert ours[places[0]]["event"] == "invited"  # the line that was written before anything was sent


def test_a_head_tells_nothing_of_the_line(played: Any) -> None:
    salts = [line["salt"] for line in read_lines(played.sites["site-00"] / "journal.jsonl")[0]]
    assert len(set(salts)) == len(salts) and all(len(salt) == 32 for salt in salts)


@pytest.fixture
def copies(played: Any, tmp_path: Path) -> tuple[Path, Path]:
    """Copies of the coordinator's folder and of one site's."""
    site = tmp_path / "site"
    shutil.copytree(played.sites["site-01"], site)
    return Path(shutil.copytree(played.run, tmp_path / "run")), site


def test_whole_journals_fit_together(copies: tuple[Path, Path], played: Any) -> None:
    run, site = copies
    for one, other in (
        (run, site),
        (site, run),
        (run, site / "journal.jsonl"),
        (site, run / "journal.jsonl"),
    ):
        assert verify(one, other).problems == []
    assert "not the journals of a coordinator and a site" in verify(run, run).problems[0]
    assert "there is no journal" in verify(run, run / "none").problems[0]
    (site / "journal.jsonl").unlink()
    SiteClient(site).close()  # begun anew
    assert any("know nothing of each other" in problem for problem in verify(run, site).problems)


def rewritten(lines: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Every line with another time, and every hash in order."""
    found, last = list[dict[str, Any]](), "0" * 64
    for line in lines:
        line = line | {"prev": last, "time": "1970-01-01T00:00:00+00:00"}
        line["hash"] = last = line_hash(line)
        found.append(line)
    return found


CHANGES = {"written anew": rewritten, "cut at its end": lambda lines: lines[:-2]}


def put(path: Path, lines: list[dict[str, Any]]) -> None:
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))


@pytest.mark.parametrize("how", CHANGES)
def test_a_coordinator_cannot_change_its_journal_alone(how: str, copies: tuple[Path, Path]) -> None:
    run, site = copies
    lines = read_lines(run / "journal.jsonl")[0]
    if how == "cut at its end":  # what came after its last message no site can know
        known = [
            line["coordinator"] for line in read_lines(site / "journal.jsonl")[0] if line.get("coordinator")
        ]
        lines = lines[: [line["hash"] for line in lines].index(known[-1]) + 2]
    lines = CHANGES[how](lines)
    put(run / "journal.jsonl", lines)
    assert any("has lost lines or was written anew" in problem for problem in verify(run).problems)
    # It may also change whatever of its own holds the head …
    head = lines[-1]["hash"]
    doctored.change(run / "result.json", journal_hash=head)
    checkpoints = Checkpoints(run / "checkpoints")
    for round in checkpoints.rounds():
        server, header = checkpoints.load(round)
        checkpoints.save(server, replace(header, journal=head), frozenset(checkpoints.rounds()))
    assert verify(run).problems == []
    found = verify(run, site).problems  # … but not what the sites have of it
    assert len(found) == 1 and "the journal of the coordinator was cut or written anew" in found[0]


@pytest.mark.parametrize("how", CHANGES)
def test_a_site_cannot_change_its_journal_alone(how: str, copies: tuple[Path, Path]) -> None:
    run, site = copies
    lines = CHANGES[how](read_lines(site / "journal.jsonl")[0])
    put(site / "journal.jsonl", lines)
    (path,) = site.glob("runs/*/ticket.json")
    if how == "written anew":
        assert any("has lost lines or was written anew" in problem for problem in verify(site).problems)
    doctored.change(path, journal=lines[-1]["hash"])
    assert verify(site).problems == []
    found = verify(site, run).problems
    assert len(found) == 1 and "the journal of the site 'site-01' was cut or written anew" in found[0]


# What a site keeps ------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def answered(tiny: MakeConfig, town: Any) -> tuple[Path, dict[str, Any], bytes]:
    """A site's folder that has answered once, and the question."""
    there, kept = town(tiny("fca", train={"rounds": 1})), list[Any]()

    def tap(message: Any, reply: Any) -> Any:
        if message.metadata.message_type == "train.train":
            kept.append(unwrap(message.content))
        return reply

    there.wire.change = tap
    there.go()
    folder = there.sites["site-00"]
    apps.desk(str(folder)).close()
    return folder, *next((table, data) for table, data in kept if table["site"] == "site-00")


@pytest.fixture
def asked(
    answered: tuple[Path, dict[str, Any], bytes], tmp_path: Path
) -> tuple[Path, Callable[[], dict[str, Any]]]:
    """A copy of that folder, and the question to a desk that is opened anew."""
    there, table, data = answered
    folder = Path(shutil.copytree(there, tmp_path / "site"))
    tickets = iter(range(table["ticket"] + 10**12, 2**63))

    def ask(**changes: Any) -> dict[str, Any]:
        desk = SiteClient(folder)
        try:
            return desk.reply("train.train", table | {"ticket": next(tickets)} | changes, data)[0]
        finally:
            desk.close()

    return folder, ask


def last(folder: Path) -> dict[str, Any]:
    return read_lines(folder / "journal.jsonl")[0][-1]


def test_a_site_whose_data_changed_does_not_go_on_with_the_run(asked: Any) -> None:
    folder, ask = asked
    assert "refused" not in ask() and "failed" not in ask()
    site = (folder / "site.toml").read_text()
    (folder / "site.toml").write_text(
        site.replace("[data]\n", "[data]\nseed = 5\n").replace("\nseed = 0\n", "\n", 1)
    )
    assert "this site's data are not those it joined the run with" in ask()["refused"]
    (folder / "site.toml").write_text(site)
    assert "refused" not in ask()
    changes = [
        line["files"]["site.toml"]
        for line in read_lines(folder / "journal.jsonl")[0]
        if line["event"] == "settings"
    ]
    assert len(changes) == 3 and changes[0] == changes[2] != changes[1]


@pytest.mark.parametrize(
    ("pattern", "reason"),
    [
        ("runs/*/config.json", "config.json is damaged or was changed"),
        ("runs/*/ticket.json", "ticket.json is damaged or was changed"),
        ("runs/*/data.json", "data.json is damaged or was changed"),
        ("runs/*/private/site-00/0.0.safetensors", "private state '0.0' of site 'site-00' cannot be read"),
    ],
)
def test_a_flipped_bit_of_a_sites_file_is_named_in_its_journal(pattern: str, reason: str, asked: Any) -> None:
    folder, ask = asked
    (path,) = folder.glob(pattern)
    data = bytearray(path.read_bytes())
    data[len(data) * 3 // 4] ^= 1
    path.write_bytes(data)
    told = ask(round=1, read="0.0", write="1.0")
    assert told["failed"].startswith("StorageError") and "damaged" not in str(told)
    assert reason in last(folder)["reason"]


def test_a_site_that_lost_lines_of_its_journal_does_not_answer(asked: Any) -> None:
    folder, ask = asked
    put(folder / "journal.jsonl", read_lines(folder / "journal.jsonl")[0][:2])
    assert ask()["failed"].startswith("StorageError")
    assert "journal.jsonl has lost lines or was written anew" in last(folder)["reason"]


def test_a_changed_policy_is_recorded(asked: Any) -> None:
    folder, ask = asked
    policy = folder / "policy.toml"
    policy.write_text(policy.read_text().replace("small_cell = 0", "small_cell = 1"))
    found = verify(folder).problems
    assert len(found) == 1 and "policy.toml is not what it was" in found[0]
    ask()
    assert verify(folder).problems == []


def test_a_damaged_plan_of_the_coordinator_is_told(played: Any, tmp_path: Path) -> None:
    for name in ("federation.json", "roster.json", "config.toml"):
        copy = Path(shutil.copytree(played.run, tmp_path / name))
        data = bytearray((copy / name).read_bytes())
        data[len(data) // 2] ^= 1
        (copy / name).write_bytes(data)
        with pytest.raises(StorageError, match=f"{name} is damaged or was changed"):
            coordinate(played.wire, copy)
