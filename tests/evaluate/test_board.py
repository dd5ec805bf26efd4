"""TensorBoard events: the numbers of metrics.jsonl, round by round, also after a crash."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from equipoise.config import Config
from equipoise.errors import ConfigError
from equipoise.evaluate.board import numbers
from equipoise.running import run


def test_every_number_has_a_path() -> None:
    row = {
        "round": 3,
        "sites": ["a", "b"],
        "train.loss": 0.5,
        "test": {
            "generalisation": {"accuracy": 0.25, "tail": None, "recall": [1.0, None], "support": [4, 0]}
        },
    }
    assert dict(numbers(row, ("x", "y"))) == {
        "train.loss": 0.5,
        "test/generalisation/accuracy": 0.25,
        "test/generalisation/recall/x": 1.0,
    }


def test_an_ending_has_paths_of_its_own() -> None:
    row = {"round": 4, "ending_of": 2, "tune.loss": 0.5}
    assert list(numbers(row, (), "ending/")) == [("ending/tune.loss", 0.5)]


def test_it_changes_nothing_but_the_folder(tiny: Callable[..., Config]) -> None:
    assert tiny(evaluate={"tensorboard": True}).digest == tiny().digest
    assert tiny(evaluate={"every": 2}).digest != tiny().digest


def test_without_the_package_the_fix_is_told(
    tiny: Callable[..., Config], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "torch.utils.tensorboard", None)
    with pytest.raises(
        ConfigError, match=r"evaluate\.tensorboard needs .*pip install 'equipoise\[tensorboard\]'"
    ):
        run(tiny(evaluate={"tensorboard": True}), tmp_path)
    assert not (tmp_path / "checkpoints" / "HEAD.json").exists()


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_events_are_those_of_the_rounds(tiny: Callable[..., Config], tmp_path: Path) -> None:
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    def stop(event: str, facts: dict[str, Any]) -> None:
        if event == "round" and facts["round"] == 2:
            raise KeyboardInterrupt

    config = tiny(evaluate={"tensorboard": True}, train={"rounds": 3})
    with pytest.raises(KeyboardInterrupt):
        run(config, tmp_path, watch=stop)
    done = run(config, tmp_path)
    seen = EventAccumulator(str(tmp_path / "tensorboard"))
    seen.Reload()
    rows = [json.loads(line) for line in (tmp_path / "metrics.jsonl").read_text().splitlines()]
    assert [row["round"] for row in rows] == [1, 2, 3]
    for name in ("train.loss", "test/generalisation/balanced_accuracy"):
        found = {event.step: event.value for event in seen.Scalars(name)}
        assert len(seen.Scalars(name)) == 3  # round 2 was written twice, and its first writing is forgotten
        for row in rows:
            assert found[row["round"]] == pytest.approx(dict(numbers(row, done.classes))[name], rel=1e-6)
