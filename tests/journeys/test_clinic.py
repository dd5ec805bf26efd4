"""A clinic: a model that was trained elsewhere, on new images; and the same model in another format."""

from __future__ import annotations

import csv
from pathlib import Path

from tests.journeys.conftest import CLASSES, Cli


def test_a_clinic_uses_a_model(cli: Cli, hospital: Path) -> None:
    assert cli("run", "mine.toml", "--out", "runs/mine").code == 0
    assert cli("predict", "runs/mine", "hospital/images", "--out", "rows.csv").code == 0
    with open(hospital / "rows.csv") as file:
        rows = list(csv.DictReader(file))
    assert len(rows) == 60 and {row["predicted"] for row in rows} <= set(CLASSES)
    assert all(abs(sum(float(row[f"p_{name}"]) for name in CLASSES) - 1) < 1e-3 for row in rows)
    (hospital / "new.toml").write_text((hospital / "mine.toml").read_text())
    refused = cli("evaluate", "runs/mine", "--data", "new.toml")
    assert refused.code != 0 and "is the data this model was trained on" in refused.err
    kept = (hospital / "hospital" / "labels.csv").read_text().splitlines()
    (hospital / "hospital" / "labels.csv").write_text("\n".join(kept[:30]) + "\n")
    found = cli("evaluate", "runs/mine", "--data", "new.toml")
    assert found.code == 0 and "balanced accuracy" in found.out
    assert cli("export", "runs/mine", "--to", "safetensors", "--out", "model.safetensors").code == 0
    assert (hospital / "model.safetensors").stat().st_size > 10_000
