"""What joining closes of the gap between training alone and pooled images, against figures worked out by
hand."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from equipoise.compare import compare, make_plan
from equipoise.compare.gap import gaps, sheets
from equipoise.report import write_report
from equipoise.report.table import markdown

Table = dict[str, dict[str, Any]]


def result(g: float, sites: tuple[float, float | None], recall: list[float | None]) -> dict[str, Any]:
    s = sum(x for x in sites if x is not None) / sum(x is not None for x in sites)
    test = {
        "generalisation": {"balanced_accuracy": g, "recall": recall},
        "specialisation": {"balanced_accuracy": s},
        "average": {"balanced_accuracy": (g + s) / 2},
        "sites": {name: {"balanced_accuracy": x} for name, x in zip("ab", sites, strict=True)},
    }
    return {"metrics": {"test": test}}


def test_shares_by_view_site_and_class(table: Table) -> None:
    plan = make_plan(table, ["local", "fedavg", "centralised"], seeds=(0, 1))
    results = {
        "local/0": result(0.40, (0.50, 0.60), [0.9, 0.1]),
        "local/1": result(0.50, (0.50, None), [0.9, 0.1]),
        "centralised/0": result(0.80, (0.70, 0.60), [0.905, 0.5]),
        "centralised/1": result(0.60, (0.80, 0.60), [0.905, 0.7]),
        "fedavg/0": result(0.60, (0.65, 0.70), [0.95, 0.2]),
        "fedavg/1": result(0.60, (0.60, 0.70), [0.95, 0.1]),
    }
    found = gaps(plan, results)
    assert list(found) == ["fedavg"]
    one = found["fedavg"]
    assert (one["alone"], one["pooled"]) == ("local", "centralised")
    assert one["views"]["generalisation"]["closed"] == pytest.approx((0.2 + 0.1) / (0.4 + 0.1))
    assert one["sites"]["a"]["closed"] == pytest.approx((0.15 + 0.10) / (0.2 + 0.3))
    assert one["sites"]["b"] == {"gap": 0.0, "joined": pytest.approx(0.1), "closed": None}  # seed 0 only
    assert one["classes"]["0"]["closed"] is None  # half a point between the ends
    assert one["classes"]["1"]["closed"] == pytest.approx(0.1 / (0.4 + 0.6))
    text = "".join(markdown(sheet.table) for sheet in sheets({"gaps": found, "classes": ["x", "y"]}))
    assert "G (+25.0)" in text and "60.0" in text and "y (+50.0)" in text
    del results["centralised/0"], results["centralised/1"]
    assert gaps(plan, results) == {}
    assert sheets({"gaps": {}, "classes": []}) == []


def test_ends_have_the_same_objective_where_they_can(table: Table) -> None:
    names = ["local", "bsm-fl", "fedavg", "centralised"]
    grid = ["train.objective=cross_entropy,balanced_softmax"]
    plan = make_plan(table, names, grid=grid)
    results = {job.name: result(0.1 * i, (0.1 * i, 0.1), [0.1]) for i, job in enumerate(plan.jobs)}
    found = gaps(plan, results)
    for label, one in found.items():
        objective = label.rpartition("=")[2]
        assert one["alone"] == f"local train.objective={objective}"
        assert one["pooled"] == f"centralised train.objective={objective}"


@pytest.mark.slow
@pytest.mark.real_workers
def test_a_comparison_with_both_ends_shows_the_gap(table: Table, tmp_path: Path) -> None:
    """In a process that is started as a user's comparison starts it."""
    plan = make_plan(table, ["local", "fedavg", "centralised"])
    facts = compare(plan, tmp_path, processes=1)
    assert not facts["failures"]
    text = (tmp_path / "table.md").read_text()
    assert "Gap closed, by class" in text
    ranked = [line for line in text.splitlines() if line.startswith("| centralised")]
    assert len(ranked) == 1 and "**" not in ranked[0] and "<u>" not in ranked[0]
    page = (tmp_path / "report.html").read_text()
    assert "How much is left to gain" in page and "Gap closed, by view and site" in page
    own = write_report(tmp_path / "centralised" / "0").read_text()
    assert "on the images of 3 sites in one place" in own and "Share of each site in the aggregate" not in own
