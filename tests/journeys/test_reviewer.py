"""A reviewer: is the folder what it says, what left the sites, and what does the page claim."""

from __future__ import annotations

import json
from pathlib import Path

from tests.journeys.conftest import Cli


def test_a_reviewer_looks_through_a_run(cli: Cli, hospital: Path) -> None:
    assert cli("run", "mine.toml", "--out", "runs/mine").code == 0
    folder = hospital / "runs" / "mine"
    assert cli("verify", folder).code == 0
    assert cli("report", folder).code == 0
    page = (folder / "report.html").read_text()
    assert "Not a medical device" in page[: page.find("<figure")] and "simulated on one machine" in page
    ledger = json.loads(cli("ledger", "mine.toml", "--json").out)
    assert all(row["read_by"] for row in ledger["leaves"])
    path = folder / "metrics.jsonl"
    text = path.read_text()
    path.write_text(text.replace('"round": 1', '"round": 9', 1).replace('"round":1', '"round":9', 1))
    assert path.read_text() != text
    spoilt = cli("verify", folder)
    assert spoilt.code != 0 and "metrics.jsonl" in spoilt.out + spoilt.err
