"""A run that ends early: when validation no longer improves, the same on every engine and after a break."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from equipoise.config import Config, resolve
from equipoise.errors import ConfigError
from equipoise.evaluate.protocol import stopped
from equipoise.keeping import read_lines
from equipoise.report import write_report
from equipoise.running import Result, resume, run
from equipoise.server import Checkpoints
from equipoise.use import load

MakeConfig = Callable[..., Config]
Once = Callable[[Config], Result]
Rows = Callable[[Path], list[dict[str, Any]]]
PLANNED, PATIENCE = 12, 2


def history(*figures: float | None, every: int = 1) -> list[dict[str, Any]]:
    return [
        {"round": every * (i + 1), "validation": {"generalisation": {"balanced_accuracy": figure}}}
        for i, figure in enumerate(figures)
    ]


# When -------------------------------------------------------------------------------------------------------


def ended(*figures: float | None, **options: Any) -> int | None:
    found = stopped(history(*figures), **options)
    return None if found is None else found[0]


def test_it_ends_after_so_many_evaluated_rounds_without_improvement() -> None:
    assert ended(0.1, 0.2, 0.2, 0.15, 0.3, patience=3) is None
    assert ended(0.1, 0.2, 0.2, 0.15, 0.2, patience=3) == 5
    assert ended(0.1, 0.2, 0.2, 0.15, 0.2, 0.9, patience=3) == 5  # what comes later changes nothing
    assert ended(0.5, 0.4, patience=1) == 2
    assert ended(patience=1) is None
    assert ended(None, None, None, patience=1) is None
    found = stopped(history(0.3, 0.2, 0.2, every=5), patience=2)
    assert found is not None and found[0] == 15 and "since round 5, for 2 evaluated rounds" in found[1]


def test_a_small_improvement_counts_only_if_it_is_asked_for() -> None:
    slow = (0.50, 0.505, 0.51, 0.515, 0.52)
    assert ended(*slow, patience=2) is None
    assert ended(*slow, patience=2, least=0.02) == 3
    assert ended(*slow, patience=3, least=0.01) is None  # 0.51 is a whole point above 0.50
    assert ended(*slow, patience=2, least=0.011) == 3


def test_the_first_rounds_are_not_looked_at() -> None:
    """Neither to end the run, nor as what later rounds must improve on."""
    late = (0.5, 0.5, 0.5, 0.5, 0.6, 0.7, 0.7, 0.7)
    assert ended(*late, patience=2) == 3
    assert ended(*late, patience=2, after=3) == 8  # 4 is the first that counts; best is 6
    assert ended(*late, patience=2, after=5) == 8
    assert ended(*late, patience=2, after=6) is None  # 7 is the first that counts, and 8 waits alone
    assert ended(*late, patience=2, after=8) is None
    early = (0.9, 0.3, 0.4, 0.5, 0.6, 0.6)
    assert ended(*early, patience=2) == 3
    assert ended(*early, patience=2, after=1) is None
    assert ended(*early, patience=1, after=1) == 6
    every = {"patience": 1, "after": 10}  # rounds, not evaluations
    found = stopped(history(0.5, 0.9, 0.3, 0.4, 0.4, every=5), **every)
    assert found is not None and found[0] == 25 and "since round 20" in found[1]


def test_an_ending_is_no_round_of_training() -> None:
    ending = {"round": 3, "ending_of": 2, "validation": {"generalisation": {"balanced_accuracy": 0.1}}}
    assert stopped([*history(0.3, 0.2), ending], patience=2) is None


# Whole runs -------------------------------------------------------------------------------------------------


def config_of(tiny: MakeConfig, method: dict[str, Any], select: str = "last", **train: Any) -> Config:
    """Nothing is learnt, so the first round is the best there is and training ends with the third."""
    stop = {"patience": PATIENCE}
    table = tiny(
        train={"rounds": PLANNED, "lr": 0.0, "batch_size": 8, "stop": stop, **train},
        evaluate={"select": select},
    ).table()
    return resolve({**table, "method": method})


def events(result: Result, name: str) -> list[dict[str, Any]]:
    return [line for line in read_lines(result.folder / "journal.jsonl")[0] if line["event"] == name]


def test_a_run_says_where_and_why_it_ended(tiny: MakeConfig, tmp_path: Path) -> None:
    notes: list[str] = []

    def watch(event: str, facts: dict[str, Any]) -> None:
        if event == "note":
            notes.append(facts["text"])

    result = run(config_of(tiny, {"name": "fedavg"}), tmp_path / "run", watch=watch)
    assert [row["round"] for row in result.history] == [1, 2, 3]
    assert result.rounds == [3]
    assert result.stopped_early is not None and result.stopped_early["round"] == 3
    (line,) = events(result, "stopped early")
    assert (line["round"], line["rounds"], line["reason"]) == (3, PLANNED, result.stopped_early["reason"])
    assert [text for text in notes if text.startswith("stopped early after round 3: ")]
    kept = json.loads((result.folder / "result.json").read_text())
    assert kept["stopped_early"] == result.stopped_early
    page = write_report(result.folder).read_text()
    assert "3 of 12 rounds. It stopped early: balanced accuracy on the validation images" in page
    assert "3 of 12 rounds (stopped early)" in (result.folder / "model-card.md").read_text()
    assert load(result.folder).origin.round == 3


def test_rounds_up_to_the_end_are_those_of_a_run_that_goes_on(tiny: MakeConfig, rows: Rows, tmp_path) -> None:
    """The cosine comes down over the planned rounds, not over those there are."""
    train = {"lr": 0.01, "schedule": "cosine", "rounds": 6, "batch_size": 32}
    config = config_of(tiny, {"name": "fedavg"}, **train, stop={"patience": 1, "least": 1.0})
    short = run(config, tmp_path / "short")
    long = run(replace(config, train=config.train.model_copy(update={"stop": None})), tmp_path / "long")
    assert short.stopped_early is not None and long.stopped_early is None
    assert len(long.history) == 6 > len(short.history)
    assert rows(short.folder) == rows(long.folder)[: len(short.history)]


def test_an_end_with_the_last_round_is_not_early(tiny: MakeConfig, tmp_path: Path) -> None:
    result = run(config_of(tiny, {"name": "fedavg"}, rounds=3), tmp_path / "run")
    assert len(result.history) == 3 and result.stopped_early is None
    assert not events(result, "stopped early")


@pytest.mark.parametrize("select", ["last", "best_validation", "mean_last_5"])
def test_rules_and_endings_go_over_the_rounds_there_are(tiny: MakeConfig, once: Once, select: str) -> None:
    method = {"name": "fedbabu", "tune_epochs": 1}
    result = once(config_of(tiny, method, select))
    wanted = {"last": [3], "best_validation": [1], "mean_last_5": [1, 2, 3]}[select]
    assert result.ending_of == wanted
    assert result.rounds == [3 + i for i in range(1, len(wanted) + 1)]
    assert load(result.folder).origin.ending_of == wanted[-1]


class Broken(Exception):
    pass


@pytest.mark.parametrize("at", [3, 5, *(pytest.param(at, marks=pytest.mark.sweep) for at in (1, 2, 4, 6))])
def test_broken_off_anywhere_it_ends_as_it_would_have(
    tiny: MakeConfig, once: Once, rows: Rows, tmp_path: Path, at: int
) -> None:
    """In training, with the round that is the last, and in each of three endings."""
    config = config_of(tiny, {"name": "fedbabu", "tune_epochs": 1}, "mean_last_5")
    straight = once(config)

    def watch(event: str, facts: dict[str, Any]) -> None:
        if event == "round" and facts["round"] == at:
            raise Broken

    with pytest.raises(Broken):
        run(config, tmp_path / "broken", watch=watch)
    again = resume(tmp_path / "broken")
    assert again.state_hash == straight.state_hash
    assert again.stopped_early == straight.stopped_early
    assert rows(again.folder) == rows(straight.folder)
    newest = Checkpoints(again.folder / "checkpoints").newest()
    assert newest is not None and newest[1].finished


def test_a_run_goes_on_for_the_rounds_that_are_not_looked_at(
    tiny: MakeConfig, rows: Rows, tmp_path: Path
) -> None:
    """Nothing is learnt, so round 4 is the best that counts; broken off before it or after, it ends alike."""
    config = config_of(tiny, {"name": "fedavg"}, stop={"patience": PATIENCE, "after": 3})
    straight = run(config, tmp_path / "straight")
    assert straight.stopped_early is not None and straight.stopped_early["round"] == 6
    assert "since round 4, for 2 evaluated rounds" in straight.stopped_early["reason"]
    for at in (2, 5):

        def watch(event: str, facts: dict[str, Any], at: int = at) -> None:
            if event == "round" and facts["round"] == at:
                raise Broken

        folder = tmp_path / f"broken-{at}"
        with pytest.raises(Broken):
            run(config, folder, watch=watch)
        again = resume(folder)
        assert again.state_hash == straight.state_hash and rows(folder) == rows(straight.folder)
        assert again.stopped_early == straight.stopped_early


def test_the_same_bits_in_a_pool(tiny: MakeConfig, rows: Rows, tmp_path: Path) -> None:
    config = config_of(tiny, {"name": "fca"}, lr=0.01, batch_size=32, stop={"patience": 1, "least": 0.5})
    serial = run(config, tmp_path / "serial")
    pool = run(config.with_engine(kind="pool", workers=2), tmp_path / "pool")
    assert serial.stopped_early is not None
    assert pool.state_hash == serial.state_hash and rows(pool.folder) == rows(serial.folder)


# What is refused --------------------------------------------------------------------------------------------


def test_without_validation_images_it_cannot_be(tiny: MakeConfig, tmp_path: Path) -> None:
    table = config_of(tiny, {"name": "fedavg"}).table()
    table["data"]["split"] = {"validation": 0.0, "test": 0.3}
    with pytest.raises(ConfigError, match=r"train\.stop watches the validation images, and no site has any"):
        run(resolve(table), tmp_path / "run")


@pytest.mark.parametrize(
    ("stop", "sentence"),
    [
        (
            {"patience": 3, "leest": 0.1},
            r"'train\.stop\.leest': did you mean 'least'.*valid: after, least, on, patience",
        ),
        ({}, "'train.stop.patience' is missing"),
        ({"patience": 0}, "'train.stop.patience' is 0"),
        ({"patience": 2, "after": -1}, "'train.stop.after' is -1"),
        ({"patience": 2, "on": "test"}, "train.stop.on"),
    ],
)
def test_a_wrong_key_is_named(stop: dict[str, Any], sentence: str) -> None:
    with pytest.raises(ConfigError, match=sentence):
        resolve({"train": {"stop": stop}})
