"""How a federation stands, read from Flower's books and the folders of its runs; and how fast."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from equipoise.deploy import link, standing
from equipoise.deploy.control import AllowList
from equipoise.deploy.coordinator import read_plan
from equipoise.deploy.keys import new_keys, new_pair
from equipoise.deploy.late import Late
from equipoise.errors import RunStopped
from equipoise.keeping import append_line, write_json, write_text
from equipoise.run_folder import CONFIG, METRICS, PLAN, ROSTER, RunFolder
from equipoise.server import Journal
from equipoise.server.journal import read as read_journal

NUMBER = 17


@pytest.fixture
def out(tmp_path: Path) -> RunFolder:
    """The folder of a run of five rounds that two sites have joined."""
    folder = RunFolder(tmp_path / "fca")
    folder.make()
    write_text(folder / CONFIG, "[train]\nrounds = 5\n")
    book = Journal(folder / "journal.jsonl")
    book.write("invited", sites=["north", "south", "west"], seconds=60)
    for site in ("north", "south"):
        book.write("joined", site=site)
    book.close()
    return folder


def flower(monkeypatch: pytest.MonkeyPatch, status: str, outcome: str = "", details: str = "") -> None:
    """What Flower says of one run."""
    said = SimpleNamespace(status=status, sub_status=outcome, details=details)
    run = SimpleNamespace(status=said, pending_at="1", running_at="2", finished_at="3")
    monkeypatch.setattr(standing, "nodes_and_runs", lambda folder: ([], {NUMBER: run}))


def shown(folder: Path) -> dict[str, Any]:
    (run,) = standing.standing(folder)["runs"]
    found: dict[str, Any] = run
    return found


def test_a_run_has_a_name_a_folder_a_round_and_its_sites(
    out: RunFolder, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    coordinator = tmp_path / "federation"
    new_keys(coordinator, [], ["north"])
    flower(monkeypatch, "running")
    assert shown(coordinator)["name"] == ""  # of an earlier version: nobody noted its folder
    standing.enter(coordinator, NUMBER, out.path)
    found = shown(coordinator)
    assert found["name"] == "fca" and found["folder"] == str(out) and found["since"] == "2"
    assert (found["round"], found["rounds"], found["sites"]) == (0, 5, ["north", "south"])
    for round in (1, 2):
        append_line(out / METRICS, {"round": round})
    write_json(out / ROSTER, {"sites": {"south": {}, "north": {}, "west": {}}})
    found = shown(coordinator)
    assert (found["round"], found["sites"], found["why"]) == (2, ["north", "south", "west"], "")
    (out / CONFIG).write_text("spoiled")
    assert shown(coordinator)["why"] == ""  # it is going on
    flower(monkeypatch, "finished", "failed")
    assert "config.toml is damaged or was changed" in shown(coordinator)["why"]


def test_why_a_run_ended(out: RunFolder, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    coordinator = tmp_path / "federation"
    new_keys(coordinator, [], ["north"])
    standing.enter(coordinator, NUMBER, out.path)
    flower(monkeypatch, "finished", "failed", "it broke")
    assert shown(coordinator)["why"] == "it broke"
    book = Journal(out / "journal.jsonl")
    book.write("stopped", reason="only 1 of 3 sites joined")
    assert shown(coordinator)["why"] == "only 1 of 3 sites joined"
    flower(monkeypatch, "finished", "completed")
    assert shown(coordinator)["why"] == ""
    flower(monkeypatch, "finished", "failed", "it broke")
    book.write("resumed")  # the reason of an earlier stop is not that of this end
    book.close()
    assert shown(coordinator)["why"] == "it broke"


def test_stop_leaves_a_line_in_the_journal(
    out: RunFolder, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    standing.enter(tmp_path, NUMBER, out.path)
    monkeypatch.setattr(link, "end_runs", lambda folder, number: [NUMBER, 18])
    assert link.stop(tmp_path) == [NUMBER, 18]
    last = read_journal(out / "journal.jsonl")[0][-1]
    assert (last["event"], last["reason"]) == ("stopped", "`equipoise stop` was called")


def test_a_stopped_run_has_an_exit_code_of_its_own() -> None:
    assert RunStopped.exit_code == 10


def test_status_needs_no_network_and_no_method(tmp_path: Path) -> None:
    """Importing PyTorch takes longer than the two seconds that `equipoise status` has."""
    program = (
        "import sys, equipoise.deploy.standing, equipoise.cli.verbs.coordinator\n"
        "print([name for name in ('torch', 'monai', 'equipoise.methods') if name in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout == "[]\n"


# The allow-list ---------------------------------------------------------------------------------------------


def test_a_new_public_key_counts_while_the_server_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    new_keys(tmp_path, [], ["north"])
    given: list[list[str]] = []
    monkeypatch.setattr("equipoise.deploy.control.allow", lambda folder, keys: given.append(sorted(keys)))
    watched = AllowList(tmp_path)
    assert watched.look() == [] and given == []
    new_pair(tmp_path / "south")
    (tmp_path / "south.pub").rename(tmp_path / "keys" / "sites" / "south.pub")
    assert watched.look() == ["south is let in from now on"] and given == [["north", "south"]]
    assert watched.look() == []
    (tmp_path / "keys" / "sites" / "north.pub").unlink()
    assert watched.look() == ["north is no longer let in"] and given[-1] == ["south"]


def test_a_run_that_waits_for_sites_hears_of_new_ones(tmp_path: Path) -> None:
    home, out = tmp_path / "federation", RunFolder(tmp_path / "run")
    new_keys(home, [], ["north"])
    out.make()
    out.write(PLAN, {"run": "ab", "keys": {"north": "eA=="}})
    late = Late(out, ["north"])
    new_keys(home, [], ["south"])
    assert late() == {} and late.keep() == []  # where its coordinator is was not written down yet
    write_json(out / "flower.json", {"run": 1, "coordinator": str(home)})
    (home / "keys" / "sites" / "west.pub").write_text("half a ke")
    assert late() == {}
    new_pair(tmp_path / "west")
    (tmp_path / "west.pub").rename(home / "keys" / "sites" / "west.pub")
    assert sorted(late()) == ["south", "west"] and late() == {}
    assert late.keep() == ["south", "west"]
    assert sorted(read_plan(out)[1]) == ["north", "south", "west"]
    assert Late(out, read_plan(out)[1])() == {}
