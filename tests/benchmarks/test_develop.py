"""The record of how the method was developed: figures of validation images, and no others."""

from __future__ import annotations

import json
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "benchmarks"))

import develop
import pytest


def figures(value: float) -> dict[str, object]:
    found = {"balanced_accuracy": value, "macro_auc": value}
    return {"generalisation": found, "specialisation": found, "roles": {"global.both": found}}


def test_test_images_are_not_looked_at(tmp_path: Path) -> None:
    rows = [{"validation": figures(0.25), "test": figures(0.9)}, {"validation": figures(0.5), "test": {}}]
    (tmp_path / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    expected = {"G": 0.5, "AUC": 0.5, "S": 0.5, "roles": {"global.both": 0.5}}
    assert develop.kept(tmp_path) == expected


def test_every_preset_is_a_row_and_every_run_keeps_test_images_apart() -> None:
    assert {f"Equipoise: {name}" for name in develop.METHODS["equipoise"].presets} <= set(develop.SINGLE)
    for setting in develop.SETTINGS.values():
        assert "data.split.seed=0" in setting.overrides("Equipoise", 3)


@pytest.mark.sweep
def test_the_page_is_that_of_the_records() -> None:
    kept = [json.loads(line) for line in develop.RECORDS.read_text().splitlines()]
    made = develop.page({record["mark"]: record for record in kept})
    assert develop.PAGE.read_text() == made, "python benchmarks/develop.py --page"
