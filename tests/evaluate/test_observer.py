"""What is written beside the metrics: counts where no scores are kept, and the time each round took."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from equipoise.config import Config
from equipoise.evaluate import from_statistics
from equipoise.evaluate.scores import read_scores
from equipoise.keeping import bare, read_lines
from equipoise.running import run
from equipoise.site.measure import tallies

MakeConfig = Callable[..., Config]


def seconds(folder: Path) -> list[dict[str, Any]]:
    return [bare(line) for line in read_lines(folder / "timing.jsonl")[0]]


@pytest.mark.parametrize(("task", "decided"), [("single", "confusion"), ("multi", "binary")])
def test_counted_rounds_keep_the_counts_of_all_sites(
    tiny: MakeConfig, tmp_path: Path, task: str, decided: str
) -> None:
    exact = run(tiny("fedavg", data={"task": task}), tmp_path / "exact")
    counted = run(tiny("fedavg", data={"task": task}, evaluate={"exact": False}), tmp_path / "counted")
    assert all("counts" not in row["test"] for row in exact.history)
    assert all("counts" not in row.get("validation", {}) for row in counted.history)
    scores = read_scores(tmp_path / "exact" / "scores", exact.rounds)
    assert scores is not None
    wanted = tallies(scores.logits[0], scores.labels, task=scores.task)
    found = counted.metrics["test"]["counts"]
    assert set(found) == {decided, "calibration"}
    assert found == {name: wanted[name].tolist() for name in found}
    flat = {name: torch.tensor(table) for name, table in found.items()}
    flat["scores"] = torch.zeros(8, 2, 10)
    assert from_statistics(flat)["ece"] == counted.metrics["test"]["generalisation"]["ece"]


def test_every_round_is_timed_and_the_metrics_stay_free_of_clocks(
    tiny: MakeConfig, tmp_path: Path, monkeypatch
) -> None:
    clock = iter(range(0, 1000, 10))
    monkeypatch.setattr(
        "equipoise.evaluate.observer.time", SimpleNamespace(perf_counter=lambda: float(next(clock)))
    )
    result = run(tiny("fedavg"), tmp_path)
    # made at 0; each round is looked at once before and once after its evaluation
    assert seconds(tmp_path) == [
        {"round": 1, "train": 10.0, "evaluate": 10.0},
        {"round": 2, "train": 10.0, "evaluate": 10.0},
    ]
    assert not {"train", "evaluate", "seconds"} & set(result.history[0])


def test_rounds_after_a_break_are_timed_anew(tiny: MakeConfig, tmp_path: Path) -> None:
    class Stop(Exception):
        pass

    def watch(event: str, facts: dict[str, Any]) -> None:
        if event == "round" and facts["round"] == 2:
            raise Stop

    config = tiny("fedavg", train={"rounds": 3})
    with pytest.raises(Stop):
        run(config, tmp_path, watch=watch)
    run(config, tmp_path)
    assert [line["round"] for line in seconds(tmp_path)] == [1, 2, 2, 3]
    assert all(line["train"] > 0 and line["evaluate"] > 0 for line in seconds(tmp_path))
