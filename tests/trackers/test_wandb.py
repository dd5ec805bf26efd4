"""Weights & Biases: the real package, offline, read back from the file it wrote."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path

import pytest
from tests.trackers.reading import twice, wandb_records, wandb_rows

from equipoise.config import Config
from equipoise.running import run
from equipoise.trackers.base import numbers

pytestmark = [pytest.mark.slow, pytest.mark.filterwarnings("ignore")]


def the_file(folder: Path) -> Path:
    """The one offline run of a run folder."""
    (found,) = (folder / "wandb").glob("offline-run-*/run-*.wandb")
    return found


def test_an_interrupted_run_is_one_run_with_every_round_once(
    tiny: Callable[..., Config], tmp_path: Path
) -> None:
    done, rows = twice(tiny(evaluate={"trackers": ["wandb"]}, train={"rounds": 3}), tmp_path)
    path = the_file(tmp_path)
    name = json.loads((tmp_path / "wandb" / "run.json").read_text())["run"]
    assert path.name == f"run-{name}.wandb"
    found = wandb_rows(path)
    assert [step for step, _ in found] == [1, 2, 3]
    for (_, seen), row in zip(found, rows, strict=True):
        assert seen == pytest.approx(numbers(row, done.classes))


def test_config_tags_and_result_are_there(tiny: Callable[..., Config], tmp_path: Path) -> None:
    done = run(tiny(evaluate={"trackers": [{"name": "wandb", "project": "skin"}]}), tmp_path)
    records = list(wandb_records(the_file(tmp_path)))
    begun = next(one.run for one in records if one.WhichOneof("record_type") == "run")
    assert begun.project == "skin"
    assert begun.tags[0] == "fedavg"
    config = {item.key: json.loads(item.value_json) for item in begun.config.update}
    assert config["train"]["batch_size"] == 64
    assert config["equipoise"]["method"] == "fedavg"
    assert len(config["equipoise"]["code"]) == 64
    assert "trackers" not in config["evaluate"] and "base" not in config
    summary = {
        item.key: json.loads(item.value_json)
        for one in records
        if one.WhichOneof("record_type") == "summary"
        for item in one.summary.update
    }
    assert summary["state_hash"] == done.state_hash
    wanted = done.metrics["test"]["generalisation"]["balanced_accuracy"]
    assert summary["result/test/generalisation/balanced_accuracy"] == pytest.approx(wanted)
    assert begun.host == "equipoise" and not begun.git.remote_url  # not this machine's name
    assert not [one for one in records if one.WhichOneof("record_type") in ("stats", "output_raw")]


def test_a_run_that_is_open_in_this_process_stays_its_owners(
    tiny: Callable[..., Config], tmp_path: Path
) -> None:
    import wandb

    own = wandb.init(mode="offline", dir=str(tmp_path), id="own", settings=wandb.Settings(console="off"))
    run(tiny(evaluate={"trackers": ["wandb"]}), tmp_path / "run")
    own.log({"mine": 1.0})
    own.finish()
    assert [set(numbers) for _, numbers in wandb_rows(the_file(tmp_path))] == [{"mine"}]
    assert [step for step, _ in wandb_rows(the_file(tmp_path / "run"))] == [1, 2]
    assert os.environ.get("WANDB_MODE") is None
