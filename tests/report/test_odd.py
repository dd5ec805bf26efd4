"""Which sites look different: one that calls a class by another's name is named with it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from equipoise.config import resolve
from equipoise.report.figures import run_figures
from equipoise.report.folder import Run, read_run
from equipoise.report.odd import gaps
from equipoise.running import run
from equipoise.testing import write_federation

LABELS = (0, 1, 2) * 5
SITES = ("north", "south", "west", "east")


def trained(folder: Path, own: str = "received", mislabelled: str = "") -> Run:
    tables: dict[str, Any] = write_federation(folder / "data", dict.fromkeys(SITES, LABELS))
    rows = Path(tables["data"]["path"])
    lines = [
        line.replace(",c0", ",c1", 1) if f",{mislabelled}," in line else line
        for line in rows.read_text().splitlines()
    ]
    rows.write_text("\n".join(lines) + "\n")
    config = resolve(
        tables
        | {
            "train": {"rounds": 2, "epochs": 4, "batch_size": 6, "lr": 0.02, "views": ["eval"]},
            "evaluate": {"every": 2, "own": own},
            "engine": {"device": "cpu"},
        }
    )
    run(config, folder / "run")
    return read_run(folder / "run")


def test_a_site_that_mislabels_a_class_is_named(tmp_path: Path) -> None:
    found = trained(tmp_path, mislabelled="west")
    first, *others = gaps(found)
    assert (first.site, first.name, first.images) == ("west", "c1", 10)
    assert first.elsewhere > 0.7 and first.here < 0.6 and all(gap.size < 0.3 for gap in others)
    (figure,) = [one for one in run_figures(found) if one.key == "different"]
    assert [row[:2] for row in figure.rows] == [("west", "c1")]


@pytest.mark.parametrize("own", ["received", "tuned"])
def test_nobody_is_named_for_nothing(own: str, tmp_path: Path) -> None:
    """Own predictors that were trained on wrong labels agree with them: of those nothing is said."""
    found = trained(tmp_path, own, mislabelled="west" if own == "tuned" else "")
    assert not [one for one in run_figures(found) if one.key == "different"]
