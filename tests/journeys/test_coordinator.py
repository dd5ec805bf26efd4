"""A coordinator: a rehearsal of the whole federation, with real Flower processes on this machine."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from tests.journeys.conftest import Cli


@pytest.mark.hospitals
@pytest.mark.real_workers
def test_a_coordinator_rehearses(cli: Cli, hospital: Path) -> None:
    ended = cli("rehearse", "mine.toml", "--out", "runs/rehearsal", "train.rounds=1")
    assert ended.code == 0, ended.err
    folder = hospital / "runs" / "rehearsal"
    assert json.loads((folder / "result.json").read_text())["metrics"]["test"]
    assert cli("verify", folder).code == 0
    page = (folder / "report.html").read_text()
    assert "north" in page and "south" in page
