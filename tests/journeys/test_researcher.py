"""A researcher: from the list of methods to a table for a paper."""

from __future__ import annotations

import csv
from pathlib import Path

import pytest
from tests.journeys.conftest import Cli, narrow


@pytest.mark.sweep
@pytest.mark.parametrize("width", [80, 120])
def test_a_researcher_compares_methods(
    cli: Cli, hospital: Path, monkeypatch: pytest.MonkeyPatch, width: int
) -> None:
    monkeypatch.setenv("COLUMNS", str(width))
    assert "fca" in cli("methods").out
    assert cli("check", "mine.toml").code == 0
    words = ("compare", "mine.toml", "--methods", "fedavg,fedprox", "--seeds", "0..1", "--jobs", 1)
    found = cli(*words, "--out", "runs/table", "train.rounds=1")
    assert found.code == 0 and "±" in found.out and narrow(found.out, width)
    with open(hospital / "runs" / "table" / "table.csv") as file:
        rows = list(csv.DictReader(file))
    assert [row["method"] for row in rows] == ["fedavg", "fedprox"]
    assert all(0 <= float(row["G bACC mean"]) <= 1 for row in rows)
    assert r"\toprule" in (hospital / "runs" / "table" / "table.tex").read_text()
    page = (hospital / "runs" / "table" / "report.html").read_text()
    assert "<script src" not in page and "http://" not in page.replace("http://www.w3.org", "")
    again = cli(*words, "--out", "runs/table", "train.rounds=1")
    assert "2 of them finished before" in again.err.replace("4 of them", "2 of them")
