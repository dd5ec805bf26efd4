"""Trackers in a federation: the coordinator's are told of its run, and no site knows of them."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tests.flower.test_hostile_coordinator import home, invite, reasons  # noqa: F401

from equipoise import trust
from equipoise.config import Config
from equipoise.errors import ConfigError

MakeConfig = Callable[..., Config]
MINE = '''
import json
from pathlib import Path

from equipoise.trackers import Tracker

Path(__file__).with_name("ran").touch()


class Mine(Tracker):
    """Writes down what it is told."""

    def __init__(self, secret: str = "") -> None:
        self.secret = secret

    def begin(self, run) -> None:
        self.folder = run.folder

    def row(self, round, numbers) -> None:
        with open(self.folder / "mine.jsonl", "a") as file:
            file.write(json.dumps([round, numbers]) + "\\n")
'''


def test_the_coordinators_are_told_and_the_sites_hear_nothing(
    tiny: MakeConfig, town: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "mine.py").write_text(MINE)
    entry = {"name": f"{tmp_path}/mine.py:Mine", "secret": "hunter2"}
    made = town(tiny(evaluate={"trackers": [entry, "tensorboard"]}))
    monkeypatch.setattr(trust, "here", set())  # the coordinator is another process than the one that planned
    done = made.go()
    lines = [json.loads(line) for line in (made.run / "mine.jsonl").read_text().splitlines()]
    assert [round for round, _ in lines] == [1, 2]
    best = done.history[-1]["test"]["generalisation"]["balanced_accuracy"]
    assert lines[-1][1]["test/generalisation/balanced_accuracy"] == best
    assert list((made.run / "tensorboard").glob("events*"))
    assert not any(b"hunter2" in raw or b"mine.py" in raw for _, sent in made.wire.down for raw in sent)
    for folder in made.sites.values():
        assert not list(folder.rglob("tensorboard")) and not list(folder.rglob("mine.jsonl"))


def test_one_that_cannot_be_had_is_refused_when_the_run_is_planned(tiny: MakeConfig, town: Any) -> None:
    with pytest.raises(ConfigError, match=r"there is no file /nowhere/mine\.py"):
        town(tiny(evaluate={"trackers": ["/nowhere/mine.py:Mine"]}))


def test_one_that_the_coordinator_names_is_not_run(
    home: Any,  # noqa: F811
    tiny: MakeConfig,
    tmp_path: Path,
) -> None:
    (tmp_path / "mine.py").write_text(MINE)
    desk = home()
    table = {"trackers": [f"{tmp_path}/mine.py:Mine", "tensorboard"]}
    said = invite(desk, tiny(), evaluate=table)
    assert "card" in said, reasons(desk)
    assert not (tmp_path / "ran").exists()
    (joined,) = desk._joined.values()
    assert joined.config.evaluate.trackers == ()
    assert not list(desk.folder.rglob("tensorboard"))
