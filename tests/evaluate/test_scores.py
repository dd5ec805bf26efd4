"""A run keeps the scores of exactly the rounds it reports, and they give the figure it reports."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from equipoise.config import Config
from equipoise.evaluate.scores import read_scores
from equipoise.evaluate.significance import judge
from equipoise.running import run

MakeConfig = Callable[..., Config]


class Stop(Exception):
    pass


@pytest.mark.parametrize(
    ("select", "task", "rounds"),
    [("last", "multi", 2), ("best_validation", "single", 4), ("mean_last_5", "single", 7)],
)
def test_the_reported_rounds_are_kept_also_after_a_break(
    tiny: MakeConfig, tmp_path: Path, select: str, task: str, rounds: int
) -> None:
    config = tiny(
        "fedavg", data={"task": task}, train={"rounds": rounds, "lr": 0.01}, evaluate={"select": select}
    )

    def watch(event: str, facts: dict[str, Any]) -> None:
        if event == "round" and facts["round"] == rounds - 1:
            raise Stop

    with pytest.raises(Stop):  # the scores of this round are written, and the round is not committed
        run(config, tmp_path / "broken", watch=watch)
    for name in ("broken", "straight"):
        result = run(config, tmp_path / name)
        folder = tmp_path / name / "scores"
        assert sorted(path.name for path in folder.iterdir()) == [
            f"round-{i:06d}.safetensors" for i in result.rounds
        ]
        scores = read_scores(folder, result.rounds)
        assert scores is not None and scores.task == task
        assert len(scores.logits) == len(result.rounds)
        wanted = result.metrics["test"]["generalisation"]["balanced_accuracy"]
        assert judge(scores).balanced_accuracy() == pytest.approx(wanted)


def test_counted_evaluation_keeps_no_scores(tiny: MakeConfig, tmp_path: Path) -> None:
    run(tiny("fedavg", evaluate={"exact": False}), tmp_path)
    assert not (tmp_path / "scores").exists()
