"""What a method does after its last round belongs to what is reported, whichever rule chooses the rounds."""

from __future__ import annotations

import errno
import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from equipoise.config import Config, read, resolve
from equipoise.errors import StorageError
from equipoise.evaluate import from_scores, select
from equipoise.evaluate.scores import read_scores
from equipoise.evaluate.significance import judge
from equipoise.running import Result, run
from equipoise.server import Checkpoints
from equipoise.setup import material
from equipoise.tree import digest
from equipoise.use import load
from equipoise.use.judge import logits

RULES = ("last", "best_validation", "mean_last_5")
ROUNDS = 6
BABU = {"name": "fedbabu", "tune_epochs": 2}
ENDINGS: dict[str, tuple[dict[str, Any], str]] = {
    "fine-tuning": (BABU, "tuned"),
    "fine-tuning, received bodies": (BABU, "received"),
    "heads at the end": ({"name": "fedrep", "final_epochs": 2}, "tuned"),
    "re-trained classifier": ({"name": "fedavg", "crt": 1}, "tuned"),
    "both": ({"name": "fedbabu", "tune_epochs": 1, "crt": 1}, "received"),
}

MakeConfig = Callable[..., Config]
Once = Callable[[Config], Result]


def config_of(
    tiny: MakeConfig,
    method: dict[str, Any],
    select: str,
    own: str = "tuned",
    participation: float = 0.7,
    **engine: Any,
) -> Config:
    table = tiny(
        train={"rounds": ROUNDS, "lr": 0.02, "participation": participation},
        evaluate={"select": select, "own": own},
        engine=engine,
    ).table()
    return resolve({**table, "method": method})


def validation(row: dict[str, Any]) -> float:
    return row["validation"]["generalisation"]["balanced_accuracy"]


def chosen(rule: str, rows: list[dict[str, Any]]) -> list[int]:
    """The rounds a rule takes, told anew."""
    if rule == "best_validation":
        best = max(validation(row) for row in rows)
        return [min(row["round"] for row in rows if validation(row) == best)]
    return [row["round"] for row in rows][-1 if rule == "last" else -5 :]


def near(found: Any, wanted: float | None) -> bool:
    return found is None if wanted is None else found == pytest.approx(wanted, abs=1e-9)


def reported(result: Result) -> list[dict[str, Any]]:
    """The rows of the rounds that the result names."""
    return [row for row in result.history if row["round"] in result.rounds]


def check_reported(result: Result, rule: str) -> None:
    """Every row of one kind, its mean the result, its scores kept, its state and private versions the ones
    that are loaded."""
    rows = reported(result)
    assert [row["round"] for row in rows] == result.rounds
    for view in ("generalisation", "specialisation"):
        values = [row["test"][view]["balanced_accuracy"] for row in rows]
        assert near(result.metrics["test"][view]["balanced_accuracy"], float(np.mean(values)))
    kept = sorted(path.name for path in (result.folder / "scores").iterdir())
    assert kept == [f"round-{number:06d}.safetensors" for number in result.rounds]
    scores = read_scores(result.folder / "scores", result.rounds)
    assert scores is not None
    assert near(
        result.metrics["test"]["generalisation"]["balanced_accuracy"], judge(scores).balanced_accuracy()
    )
    told = json.loads((result.folder / "result.json").read_text())
    assert (told["selected_rounds"], told["ending_of"]) == (result.rounds, result.ending_of)
    dataset = material(read(result.folder / "config.toml"))
    for holding in dataset.holdings:
        model = load(result.folder, holding.name)
        assert (model.origin.round, model.origin.rule) == (result.rounds[-1], rule)
        found = from_scores(
            logits(model, dataset.samples.images, holding.test),
            torch.from_numpy(dataset.samples.labels[holding.test]),
            task=dataset.samples.task,
            shots=torch.tensor(model.blueprint.shots),
        )
        wanted = rows[-1]["test"]["sites"][holding.name]
        assert near(found["balanced_accuracy"], wanted["balanced_accuracy"]) and near(
            found["ece"], wanted["ece"]
        )


EVERY_RUN = {
    *(("fine-tuning", rule) for rule in RULES),
    ("fine-tuning, received bodies", "mean_last_5"),
    ("heads at the end", "best_validation"),
    ("re-trained classifier", "last"),
    ("both", "mean_last_5"),
}
"""every rule and every ending; the other combinations are swept"""


@pytest.mark.parametrize(
    ("ending", "rule"),
    [
        pytest.param(ending, rule, marks=[] if (ending, rule) in EVERY_RUN else [pytest.mark.sweep])
        for ending in ENDINGS
        for rule in RULES
    ],
)
def test_the_ending_of_what_was_chosen_is_reported(
    ending: str, rule: str, tiny: MakeConfig, once: Once
) -> None:
    method, own = ENDINGS[ending]
    result = once(config_of(tiny, method, rule, own))
    ordinary = [row for row in result.history if "ending_of" not in row]
    ended = [row for row in result.history if "ending_of" in row]
    assert [row["round"] for row in ordinary] == list(range(1, ROUNDS + 1))
    assert result.ending_of == chosen(rule, ordinary)
    assert [row["ending_of"] for row in ended] == result.ending_of
    assert result.rounds == [ROUNDS + 1 + i for i in range(len(ended))]
    for row in ended:
        before = ordinary[row["ending_of"] - 1]
        assert row["test"]["sites"] != before["test"]["sites"]
        same = row["test"]["generalisation"] == before["test"]["generalisation"]
        # Fine-tuning is the sites' alone, and starts from the chosen body.
        assert same == (method["name"] == "fedbabu" and "crt" not in method)
    newest = Checkpoints(result.folder / "checkpoints").load(result.rounds[-1])[1]
    assert newest.state == digest(result.server)
    check_reported(result, rule)
    if (ending, rule) == ("fine-tuning", "best_validation"):
        assert result.ending_of != [ROUNDS]  # so that the best round is seen to be another than the last


@pytest.mark.parametrize("rule", RULES)
def test_a_method_without_an_ending_is_reported_as_it_was(
    rule: str, tiny: MakeConfig, tmp_path: Path
) -> None:
    result = run(config_of(tiny, {"name": "fedbabu", "tune_epochs": 0}, rule, participation=1.0), tmp_path)
    assert len(result.history) == ROUNDS and not any("ending_of" in row for row in result.history)
    assert (result.rounds, result.ending_of) == (chosen(rule, result.history), [])
    check_reported(result, rule)
    newest = Checkpoints(tmp_path / "checkpoints").newest()
    assert newest is not None and newest[1].round == ROUNDS and newest[1].finished


@pytest.mark.parametrize(
    "rule", ["best_validation", *(pytest.param(r, marks=pytest.mark.sweep) for r in ("last", "mean_last_5"))]
)
def test_a_run_that_trains_nothing_reports_its_ending(rule: str, tiny: MakeConfig, tmp_path: Path) -> None:
    """As when a trained model gets another classifier: the source's model, and the ending of this method."""
    source = run(config_of(tiny, {"name": "equipoise"}, "last"), tmp_path / "source")
    changed = {"rounds": 0, "init": str(tmp_path / "source")}
    table = config_of(tiny, {"name": "equipoise"}, rule).table()
    result = run(resolve({**table, "train": {**table["train"], **changed}}), tmp_path / "ended")
    assert (result.rounds, result.ending_of) == ([1], [0])
    assert result.metrics["test"] == source.metrics["test"]
    check_reported(result, rule)


MOSTLY = ["mean_last_5", *(pytest.param(rule, marks=pytest.mark.sweep) for rule in RULES[:2])]
"""the rule with several endings on every run; the others have one, as it has five"""


@pytest.mark.parametrize("rule", MOSTLY)
def test_in_a_pool_it_is_the_same(rule: str, tiny: MakeConfig, tmp_path: Path) -> None:
    serial, pool = (
        run(config_of(tiny, BABU, rule, kind=kind, **more), tmp_path / kind)
        for kind, more in (("serial", {}), ("pool", {"workers": 2}))
    )
    assert (serial.state_hash, serial.rounds, serial.metrics) == (pool.state_hash, pool.rounds, pool.metrics)


class Stop(Exception):
    pass


@pytest.mark.parametrize("rule", MOSTLY)
def test_stopping_at_every_ending_changes_nothing(
    rule: str,
    tiny: MakeConfig,
    once: Once,
    rows: Callable[[Path], list[dict[str, Any]]],
    tmp_path: Path,
) -> None:
    method, own = ENDINGS["both"]
    config = config_of(tiny, method, rule, own)
    whole = once(config)
    seen, asked = ROUNDS, list[str]()

    def watch(event: str, facts: dict[str, Any]) -> None:
        nonlocal seen
        if event == "answer":
            asked.append(facts["question"])
        if event == "round" and facts["round"] > seen:
            seen = facts["round"]
            raise Stop

    for _ in whole.rounds:
        with pytest.raises(Stop):
            run(config, tmp_path / "stopped", watch=watch)
    stopped = run(config, tmp_path / "stopped", watch=watch)
    assert (stopped.state_hash, stopped.rounds, stopped.metrics) == (
        whole.state_hash,
        whole.rounds,
        whole.metrics,
    )
    assert rows(tmp_path / "stopped") == rows(whole.folder)
    assert asked.count("train") == 2 * ROUNDS  # two of three sites a round: no round is trained again
    check_reported(stopped, rule)


@pytest.mark.sweep
@pytest.mark.parametrize("rule", MOSTLY)
def test_a_disk_that_fills_up_while_an_ending_is_committed_changes_nothing(
    rule: str, tiny: MakeConfig, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = config_of(tiny, BABU, rule)
    straight = run(config, tmp_path / "straight")
    real, newest = os.replace, Path()

    def full(source: Any, target: Any) -> None:
        # The checkpoint is written, maybe over an old one; the head that names it is not.
        if Path(target).name == "HEAD.json" and newest.exists():
            raise OSError(errno.ENOSPC, "No space left on device")
        real(source, target)

    for number in straight.rounds:
        newest = tmp_path / "full" / "checkpoints" / f"round-{number:06d}.safetensors"
        monkeypatch.setattr(os, "replace", full)
        with pytest.raises(StorageError, match="cannot be written"):
            run(config, tmp_path / "full")
        monkeypatch.setattr(os, "replace", real)
    again = run(config, tmp_path / "full")
    assert (again.state_hash, again.rounds, again.metrics) == (
        straight.state_hash,
        straight.rounds,
        straight.metrics,
    )
    check_reported(again, rule)


def test_a_mean_is_over_rows_of_one_kind() -> None:
    history = [{"round": i, "test": {"balanced_accuracy": i / 100}} for i in range(1, 8)]
    ended = [
        {"round": 8 + i, "ending_of": 3 + i, "test": {"balanced_accuracy": 0.5 + i / 10}} for i in range(5)
    ]
    assert select(history, "mean_last_5")[0] == [3, 4, 5, 6, 7]
    rounds, metrics = select(history + ended, "mean_last_5")
    assert rounds == [8, 9, 10, 11, 12]
    assert metrics == {"test": {"balanced_accuracy": pytest.approx(0.7)}}


def test_validation_chooses_the_round_and_never_between_a_round_and_its_ending() -> None:
    history = [
        {"round": i, "validation": {"balanced_accuracy": v}} for i, v in ((1, 0.5), (2, 0.8), (3, 0.6))
    ]
    for v in (0.1, 0.8, 0.9):
        ended = {"round": 4, "ending_of": 2, "validation": {"balanced_accuracy": v}, "test": {"accuracy": v}}
        assert select([*history, ended], "best_validation") == (
            [4],
            {"validation": {"balanced_accuracy": v}, "test": {"accuracy": v}},
        )
