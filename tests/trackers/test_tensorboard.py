"""TensorBoard events: the numbers of metrics.jsonl, round by round, also after a crash."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
from tests.trackers.reading import interrupted, twice

from equipoise.config import Config
from equipoise.running import run
from equipoise.trackers.base import numbers

pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning")


def events(folder: Path) -> object:
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    seen = EventAccumulator(str(folder / "tensorboard"))
    seen.Reload()
    return seen


def test_events_are_those_of_the_rounds(tiny: Callable[..., Config], tmp_path: Path) -> None:
    done, rows = twice(tiny(evaluate={"trackers": ["tensorboard"]}, train={"rounds": 3}), tmp_path)
    seen = events(tmp_path)
    for name in ("train.loss", "test/generalisation/balanced_accuracy"):
        found = {event.step: event.value for event in seen.Scalars(name)}
        assert len(seen.Scalars(name)) == 3  # round 2 was written twice, and its first writing is forgotten
        for row in rows:
            assert found[row["round"]] == pytest.approx(numbers(row, done.classes)[name], rel=1e-6)


def test_config_tags_and_result_are_texts(tiny: Callable[..., Config], tmp_path: Path) -> None:
    done = run(tiny(evaluate={"trackers": ["tensorboard"]}), tmp_path)
    seen = events(tmp_path)
    texts = {
        name: seen.Tensors(f"{name}/text_summary")[0].tensor_proto.string_val[0].decode()
        for name in ("config", "tags", "result")
    }
    assert '"batch_size": 64' in texts["config"]
    assert '"method": "fedavg"' in texts["tags"]
    assert done.state_hash in texts["result"]


def test_one_that_comes_later_has_the_rounds_before(tiny: Callable[..., Config], tmp_path: Path) -> None:
    interrupted(tiny(train={"rounds": 3}), tmp_path, 3)
    assert not (tmp_path / "tensorboard").exists()
    run(tiny(evaluate={"trackers": ["tensorboard"]}, train={"rounds": 3}), tmp_path)
    assert [event.step for event in events(tmp_path).Scalars("train.loss")] == [1, 2, 3]


def test_a_finished_run_is_left_alone(tiny: Callable[..., Config], tmp_path: Path) -> None:
    config = tiny(evaluate={"trackers": ["tensorboard"]})
    run(config, tmp_path)
    shutil.rmtree(tmp_path / "tensorboard")
    run(config, tmp_path)
    assert not (tmp_path / "tensorboard").exists()
