"""Whole tiny runs: bad answers, dropped sites, stops at every round, full disks; the result is the same bits
or an honest error."""

from __future__ import annotations

import errno
import os
import shutil
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from equipoise.config import Config
from equipoise.engine import Engine, Question
from equipoise.errors import ConfigError, StorageError
from equipoise.exchange import ExchangeOptions, Ledger
from equipoise.methods import Method
from equipoise.running import Result, resume, run
from equipoise.server import Checkpoints, Federation, Journal, countable, loop

MakeConfig = Callable[..., Config]
Once = Callable[[Config], Result]
Rows = Callable[[Path], list[dict[str, Any]]]
Change = Callable[[bytes], bytes | None]
Private = Callable[[Path], dict[str, str]]


# Stopping and going on --------------------------------------------------------------------------------------


class Stop(Exception):
    """The run is interrupted."""


class Falls:
    """Raises when the given question of the given round has been answered by two sites."""

    def __init__(self, engine: Engine, question: str, round: int) -> None:
        self.engine, self.at = engine, (question, round)

    def ask(self, question: Question, sites: Sequence[str]) -> Iterator[tuple[str, bytes]]:
        for number, answer in enumerate(self.engine.ask(question, sites)):
            if (question.name, question.round) == self.at and number == 2:
                raise Stop
            yield answer

    def close(self) -> None:
        self.engine.close()


@pytest.mark.parametrize(
    ("method", "participation"),
    [
        ("fedavg", 1.0),
        ("fca", 0.7),
        ("fedsdc+", 0.7),
        *(
            pytest.param(m, p, marks=pytest.mark.sweep)
            for m, p in [("fedavg", 0.7), ("fca", 1.0), ("fedprox", 1.0), ("local", 1.0)]
        ),
    ],
)
def test_stopping_at_every_round_changes_nothing(
    method: str,
    participation: float,
    tiny: MakeConfig,
    once: Once,
    rows: Rows,
    private: Private,
    tmp_path: Path,
) -> None:
    train = {"rounds": 3, "batch_size": 32, "participation": participation}
    config = tiny(method, train=train, evaluate={"every": 1})
    straight = once(config)
    seen = 0

    def watch(event: str, facts: dict[str, Any]) -> None:
        # A round is told of before it is committed: the hardest moment to stop at.
        nonlocal seen
        if event == "round" and facts["round"] > seen:
            seen = facts["round"]
            raise Stop

    for _ in range(3):
        with pytest.raises(Stop):
            run(config, tmp_path / "stopped", watch=watch)
    stopped = resume(tmp_path / "stopped")
    assert stopped.state_hash == straight.state_hash
    assert rows(tmp_path / "stopped") == rows(straight.folder)
    assert private(tmp_path / "stopped") == private(straight.folder)
    assert stopped.metrics.keys() == straight.metrics.keys()
    assert resume(tmp_path / "stopped").state_hash == straight.state_hash


@pytest.mark.parametrize(
    ("question", "round"), [("train", 0), ("train", 1), ("evaluate", 0), ("evaluate", 2)]
)
def test_stopping_in_the_middle_of_a_question_changes_nothing(
    question: str, round: int, tiny: MakeConfig, once: Once, rows: Rows, private: Private, tmp_path: Path
) -> None:
    config = tiny("fca", train={"rounds": 3, "batch_size": 32}, evaluate={"every": 1})
    straight = once(config)
    with pytest.raises(Stop):
        run(config, tmp_path / "stopped", wrap=lambda engine: Falls(engine, question, round))
    assert resume(tmp_path / "stopped").state_hash == straight.state_hash
    assert rows(tmp_path / "stopped") == rows(straight.folder)
    assert private(tmp_path / "stopped") == private(straight.folder)


def test_a_finished_run_is_not_trained_again(tiny: MakeConfig, once: Once, tmp_path: Path) -> None:
    config = tiny("fedavg")
    first = once(config)
    shutil.copytree(first.folder, tmp_path, dirs_exist_ok=True)
    asked: list[str] = []

    class Never:
        def __init__(self, engine: Engine) -> None:
            self.engine = engine

        def ask(self, question: Question, sites: Sequence[str]) -> Iterator[tuple[str, bytes]]:
            asked.append(question.name)
            yield from self.engine.ask(question, sites)

        def close(self) -> None:
            self.engine.close()

    assert run(config, tmp_path, wrap=Never).state_hash == first.state_hash
    assert asked == []


def test_another_config_is_refused_and_another_engine_is_not(
    tiny: MakeConfig, once: Once, tmp_path: Path
) -> None:
    folder = Path(shutil.copytree(once(tiny("fedavg")).folder, tmp_path / "run"))
    with pytest.raises(StorageError, match=r"holds a run with another config: choose another --out"):
        run(tiny("fedavg", train={"seed": 1}), folder)
    run(tiny("fedavg", engine={"workers": 3}), folder)


def test_a_run_of_a_version_with_fewer_options_is_not_continued(
    tiny: MakeConfig, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What its default does now is not what the run began with, and nothing is there to go on with."""
    whole = Config.table

    def fewer(config: Config) -> dict[str, Any]:
        table = whole(config)
        del table["method"]["lambda_own"]
        return table

    with monkeypatch.context() as older:
        older.setattr(Config, "table", fewer)
        run(tiny("fca"), tmp_path)
    with pytest.raises(StorageError, match=r"did not know 'method\.lambda_own', .*: finish it with that"):
        resume(tmp_path)
    with pytest.raises(StorageError, match="holds a run with another config"):
        run(tiny("fca", train={"seed": 1}), tmp_path)


def test_what_is_no_run_folder_cannot_be_resumed(tmp_path: Path) -> None:
    with pytest.raises(StorageError, match=r"is not a run folder: it has no config\.toml"):
        resume(tmp_path)


def test_a_damaged_checkpoint_stops_a_resume_with_a_sentence(
    tiny: MakeConfig, once: Once, tmp_path: Path
) -> None:
    shutil.copytree(once(tiny("fedavg")).folder, tmp_path, dirs_exist_ok=True)
    path = tmp_path / "checkpoints" / "round-000002.safetensors"
    path.write_bytes(path.read_bytes()[:-8])
    with pytest.raises(StorageError, match="is missing or damaged: restore it, or start the run anew"):
        resume(tmp_path)


def test_lost_private_state_stops_a_resume_with_a_sentence(tiny: MakeConfig, tmp_path: Path) -> None:
    with pytest.raises(Stop):
        run(tiny("fca"), tmp_path, wrap=lambda engine: Falls(engine, "train", 1))
    for path in (tmp_path / "sites").rglob("0.0.safetensors"):
        path.unlink()
    with pytest.raises(StorageError, match=r"private state '0\.0' of site 'site-00' cannot be read"):
        resume(tmp_path)


def test_private_state_is_kept_for_both_checkpoints_and_the_round_under_way(
    tiny: MakeConfig, tmp_path: Path
) -> None:
    run(tiny("fca", train={"rounds": 5, "batch_size": 64}, evaluate={"every": 5}), tmp_path)
    for site in ("site-00", "site-01", "site-02"):
        folder = tmp_path / "sites" / site
        assert sorted(path.stem for path in folder.glob("*.safetensors")) == ["2.0", "3.0", "4.0"]
        assert folder.stat().st_mode & 0o777 == 0o700


# Disks ------------------------------------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.real_probe
@pytest.mark.parametrize(
    ("place", "rounds", "step", "writes"),
    [
        ("fsync", 1, 3, 3),
        pytest.param("fsync", 1, 1, 9, marks=pytest.mark.sweep),
        pytest.param("replace", 2, 1, 16, marks=pytest.mark.sweep),
    ],
)
def test_a_full_disk_at_any_write_is_told_and_the_run_goes_on_later(
    place: str,
    rounds: int,
    step: int,
    writes: int,
    tiny: MakeConfig,
    rows: Rows,
    private: Private,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    config = tiny(
        "fca",
        train={"rounds": rounds, "batch_size": 64},
        partition={"sites": 2},
        exchange={"min_sites": 2},
        evaluate={"every": rounds},
    )
    straight = run(config, tmp_path / "straight")
    real, calls = getattr(os, place), 0

    def count(limit: int) -> Callable[..., Any]:
        def call(*args: Any, **kwargs: Any) -> Any:
            nonlocal calls
            calls += 1
            if calls == limit:
                raise OSError(errno.ENOSPC, "No space left on device")
            return real(*args, **kwargs)

        return call

    limit, failed = 1 - step, 0
    while True:
        limit, calls = limit + step, 0
        folder = tmp_path / str(limit)
        with monkeypatch.context() as patch:
            patch.setattr(os, place, count(limit))
            try:
                run(config, folder)
            except StorageError as error:
                failed += 1
                text = str(error)
            else:
                break
        assert "cannot be written" in text
        again = run(config, folder)
        assert again.state_hash == straight.state_hash
        assert rows(folder) == rows(tmp_path / "straight")
        assert private(folder) == private(tmp_path / "straight")
    # config, ledger, metrics, a checkpoint and its head by round, result; private files by round (renamed,
    # not synced) and the probe's
    assert failed >= writes


# Drawing sites ----------------------------------------------------------------------------------------------


class Silent:
    """An observer that looks away."""

    def wants_tuned(self, round: int) -> bool:
        return False

    def observe(self, done: int, server: Any, ask: Any, facts: Any) -> None: ...

    def mark(self) -> str:
        return ""

    def pinned(self) -> frozenset[int]:
        return frozenset()


@pytest.mark.parametrize(("share", "count"), [(1.0, 10), (0.5, 5), (0.3, 3), (0.29, 2), (0.01, 1)])
def test_sites_are_drawn_by_seed_and_round(share: float, count: int, tmp_path: Path) -> None:
    sites = tuple(f"s{i}" for i in range(10))
    book = Journal(tmp_path / "journal.jsonl")

    def drawn(seed: int) -> list[tuple[str, ...]]:
        federation = Federation(
            method=Method(),
            engine=None,  # type: ignore[arg-type]
            ledger=Ledger(()),
            limits=ExchangeOptions(),
            journal=book,
            checkpoints=Checkpoints(tmp_path / "c"),
            sites=sites,
            rounds=40,
            seed=seed,
            participation=share,
            config_hash="",
            observer=Silent(),
        )
        return [federation.participants(round) for round in range(40)]

    first = drawn(0)
    book.close()
    assert drawn(0) == first
    assert all(len(set(chosen)) == count and list(chosen) == sorted(chosen) for chosen in first)
    if share < 1:
        assert drawn(1) != first
        assert {site for chosen in first for site in chosen} == set(sites)


# How many sites ---------------------------------------------------------------------------------------------


def test_more_sites_than_sums_have_room_for_are_refused(
    tiny: MakeConfig, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    countable(100_000)
    with pytest.raises(ConfigError, match=r"at most 100,000 sites, .* this one has 100,001$"):
        countable(100_001)
    monkeypatch.setattr(loop, "MOST_SITES", 2)
    with pytest.raises(ConfigError, match="at most 2 sites"):
        run(tiny(), tmp_path)
    assert not (tmp_path / "checkpoints").exists()
