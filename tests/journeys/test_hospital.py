"""A hospital with its own data: is it fit, what would leave the house, and what does a model come to here."""

from __future__ import annotations

import json
from pathlib import Path

from tests.journeys.conftest import Cli


def test_a_hospital_tries_its_own_data(cli: Cli, hospital: Path) -> None:
    table = hospital / "hospital" / "labels.csv"
    sound = table.read_text()
    table.write_text(sound.replace("1.png,nv,north", "1.png,NV ,north", 1) + "\n")
    doubted = cli("check", "mine.toml")
    assert doubted.code == 0 and "differ only in case" in doubted.out
    table.write_text(sound.replace("hospital", "hospital"))
    assert "nothing was trained; the run can start\n" in cli("check", "mine.toml").out
    seen = cli("data", "inspect", "mine.toml", "--contact-sheet", "sheet.png")
    assert seen.code == 0 and "north" in seen.out and (hospital / "sheet.png").stat().st_size > 1000
    leaves = json.loads(cli("ledger", "mine.toml", "--json").out)["leaves"]
    assert {row["leaf"] for row in leaves} >= {"delta", "loss"}
    ended = cli("run", "mine.toml", "--out", "runs/mine")
    assert ended.code == 0 and "simulated on one machine" in ended.out
    made = cli("site", "init", "site", "--name", "north", "--superlink", "fl.example.org:8000")
    assert made.code == 0 and (hospital / "site" / "policy.toml").is_file()


def test_a_hospital_labels_only_some_findings(cli: Cli, hospital: Path) -> None:
    lines = ["file,mel,nv,centre"]
    for i in range(60):
        centre = "north" if i < 36 else "south"
        cells = (int(i % 3 == 0), "" if centre == "south" else int(i % 3 == 1))
        lines.append(f"{i}.png,{cells[0]},{cells[1]},{centre}")
    (hospital / "hospital" / "labels.csv").write_text("\n".join(lines) + "\n")
    text = (hospital / "mine.toml").read_text()
    text = text.replace('label = "diagnosis"', 'labels = ["mel", "nv"]').replace('group = "patient"\n', "")
    (hospital / "mine.toml").write_text(text + '[method]\nname = "fedmlp"\nwarmup = 1\n')
    assert "train, labelled" in cli("data", "inspect", "mine.toml").out
    assert cli("run", "mine.toml", "--out", "runs/mine").code == 0
    result = json.loads((hospital / "runs" / "mine" / "result.json").read_text())
    south = result["metrics"]["test"]["sites"]["south"]
    assert south["recall"][1] is None and south["support"][1] == 0
