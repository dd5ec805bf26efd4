"""Whole tiny runs: bad answers, dropped sites, stops at every round, full disks; the result is the same bits or an honest error."""

from __future__ import annotations

import errno
import json
import os
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from equipoise.config import Config
from equipoise.engine import Engine, Question
from equipoise.errors import SiteError, StorageError
from equipoise.exchange import ExchangeOptions, Ledger, decode_upload, encode_upload
from equipoise.leaves import Each, Mean, Sum, Upload
from equipoise.methods import Method
from equipoise.running import Result, resume, run
from equipoise.server import Checkpoints, Federation, Journal
from equipoise.tree import digest, unflatten

MakeConfig = Callable[..., Config]
Rows = Callable[[Path], list[dict[str, Any]]]
Change = Callable[[bytes], bytes | None]

BAD_SITE = "site-01"


def private(folder: Path) -> dict[str, str]:
    """Digests of the private versions that the newest checkpoint counts as committed."""
    found = Checkpoints(folder / "checkpoints").newest()
    assert found is not None
    return {
        site: version + digest(unflatten(load_file(folder / "sites" / site / f"{version}.safetensors")))
        for site, version in found[1].versions.items()
    }


def journal(folder: Path, event: str) -> list[dict[str, Any]]:
    lines = [json.loads(line) for line in (folder / "journal.jsonl").read_text().splitlines()]
    return [line for line in lines if line["event"] == event]


# Bad answers ---------------------------------------------------------------------------------------------------------


class Spoil:
    """One site's `train` answer of the given rounds is changed, or lost where the change gives None."""

    def __init__(self, engine: Engine, change: Change, rounds: Sequence[int]) -> None:
        self.engine, self.change, self.rounds = engine, change, rounds

    def ask(self, question: Question, sites: Sequence[str]) -> Iterator[tuple[str, bytes]]:
        for site, data in self.engine.ask(question, sites):
            if (site, question.name) == (BAD_SITE, "train") and question.round in self.rounds:
                changed = self.change(data)
                if changed is not None:
                    yield site, changed
            else:
                yield site, data

    def close(self) -> None:
        self.engine.close()


def delta(change: Callable[[dict[str, torch.Tensor]], None], weight: Callable[[float], float] = float) -> Change:
    """An answer whose delta is changed in place, and its weight by a function."""

    def spoil(data: bytes) -> bytes:
        header, upload = decode_upload(data)
        leaf = upload["delta"]
        assert isinstance(leaf, Mean)
        value = {name: tensor.clone() for name, tensor in leaf.value.items()}
        change(value)
        return encode_upload({**upload, "delta": Mean(value, weight(float(leaf.weight)))}, header)

    return spoil


def with_leaf(**leaves: Any) -> Change:
    def spoil(data: bytes) -> bytes:
        header, upload = decode_upload(data)
        changed: Upload = {**upload, **leaves}
        return encode_upload(changed, header)

    return spoil


def put(name: str, make: Callable[[torch.Tensor], torch.Tensor]) -> Callable[[dict[str, torch.Tensor]], None]:
    def change(value: dict[str, torch.Tensor]) -> None:
        value[name] = make(value[name])

    return change


W = "body.conv1.weight"
KINDS: dict[str, tuple[Change, str]] = {
    "NaN": (delta(put(W, lambda x: x * torch.nan)), "not finite"),
    "Inf": (delta(put(W, lambda x: x + torch.inf)), "not finite"),
    "wrong shape": (delta(put(W, lambda x: x.transpose(0, 1))), "has shape"),
    "broadcastable shape": (delta(put(W, lambda x: x[:1])), "has shape"),
    "dtype": (delta(put(W, lambda x: x.double())), "has dtype float64"),
    "extra tensor": (delta(lambda value: value.update(more=torch.ones(2))), "extra tensor 'delta/more'"),
    "extra leaf": (with_leaf(images=Each(torch.ones(3))), "extra tensor 'images'"),
    "missing tensor": (delta(lambda value: value.__delitem__(W)), f"missing tensor 'delta/{W}'"),
    "negative weight": (delta(lambda value: None, lambda w: -w), "negative"),
    "NaN weight": (delta(lambda value: None, lambda w: float("nan")), "not finite"),
    "huge weight": (delta(lambda value: None, lambda w: 1e9), "max_weight"),
    "huge values": (delta(put(W, lambda x: x + 1e6)), "more than the fixed-point range"),
    "wrong kind": (with_leaf(loss=Sum(torch.tensor(1.0, dtype=torch.float64))), "is a 'sum' leaf, not 'mean'"),
    "oversize": (lambda data: data + bytes(10**7), "bytes, at most"),
    "truncated": (lambda data: data[: len(data) // 2], "message"),
    "garbage": (lambda data: bytes(range(256)) * 10, "message"),
    "empty": (lambda data: b"", "message"),
}


@pytest.fixture(scope="module")
def lost(tiny: MakeConfig, tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], tuple[Result, Path]]:
    """A run that loses the bad site's answers, once per method."""
    made: dict[str, tuple[Result, Path]] = {}

    def get(method: str) -> tuple[Result, Path]:
        if method not in made:
            folder = tmp_path_factory.mktemp("lost") / method
            config = tiny(method, train={"rounds": 3})
            made[method] = run(config, folder, wrap=lambda engine: Spoil(engine, lambda data: None, (0, 1))), folder
        return made[method]

    return get


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("method", ["fedavg", "fca"])
def test_a_bad_answer_counts_as_none(
    method: str, kind: str, tiny: MakeConfig, rows: Rows, lost: Callable[[str], tuple[Result, Path]], tmp_path: Path
) -> None:
    change, reason = KINDS[kind]
    config = tiny(method, train={"rounds": 3})
    spoiled = run(config, tmp_path, wrap=lambda engine: Spoil(engine, change, (0, 1)))
    expected, folder = lost(method)
    assert spoiled.state_hash == expected.state_hash
    assert rows(tmp_path) == rows(folder)
    assert private(tmp_path) == private(folder)
    rejected = journal(tmp_path, "rejected")
    assert [(line["site"], line["round"], line["question"]) for line in rejected] == [(BAD_SITE, r, "train") for r in (0, 1)]
    assert all(reason in line["reason"] and BAD_SITE in line["reason"] for line in rejected)
    assert [row["sites"] for row in rows(tmp_path)] == [["site-00", "site-02"]] * 2 + [["site-00", "site-01", "site-02"]]


def test_losing_a_site_matters(tiny: MakeConfig, lost: Callable[[str], tuple[Result, Path]], tmp_path: Path) -> None:
    assert run(tiny("fedavg", train={"rounds": 3}), tmp_path).state_hash != lost("fedavg")[0].state_hash


def test_too_few_sites_stop_the_run_and_it_can_go_on(tiny: MakeConfig, tmp_path: Path) -> None:
    config = tiny("fca", exchange={"min_sites": 3})
    straight = run(config, tmp_path / "straight")
    with pytest.raises(SiteError, match=r"round 1: only 2 of 3 sites .* 3 are needed"):
        run(config, tmp_path / "a", wrap=lambda engine: Spoil(engine, lambda data: None, (1,)))
    assert resume(tmp_path / "a").state_hash == straight.state_hash


# Stopping and going on -----------------------------------------------------------------------------------------------


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


@pytest.mark.parametrize("participation", [1.0, 0.7])
@pytest.mark.parametrize("method", ["fedavg", "fedprox", "fca", "local"])
def test_stopping_at_every_round_changes_nothing(
    method: str, participation: float, tiny: MakeConfig, rows: Rows, tmp_path: Path
) -> None:
    config = tiny(method, train={"rounds": 3, "participation": participation})
    straight = run(config, tmp_path / "straight")
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
    assert rows(tmp_path / "stopped") == rows(tmp_path / "straight")
    assert private(tmp_path / "stopped") == private(tmp_path / "straight")
    assert stopped.metrics.keys() == straight.metrics.keys()
    assert resume(tmp_path / "stopped").state_hash == straight.state_hash


@pytest.mark.parametrize(("question", "round"), [("train", 0), ("train", 1), ("evaluate", 0), ("evaluate", 2)])
def test_stopping_in_the_middle_of_a_question_changes_nothing(
    question: str, round: int, tiny: MakeConfig, rows: Rows, tmp_path: Path
) -> None:
    config = tiny("fca", train={"rounds": 3})
    straight = run(config, tmp_path / "straight")
    with pytest.raises(Stop):
        run(config, tmp_path / "stopped", wrap=lambda engine: Falls(engine, question, round))
    assert resume(tmp_path / "stopped").state_hash == straight.state_hash
    assert rows(tmp_path / "stopped") == rows(tmp_path / "straight")
    assert private(tmp_path / "stopped") == private(tmp_path / "straight")


def test_a_finished_run_is_not_trained_again(tiny: MakeConfig, tmp_path: Path) -> None:
    config = tiny("fedavg")
    first = run(config, tmp_path)
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


def test_another_config_is_refused_and_another_engine_is_not(tiny: MakeConfig, tmp_path: Path) -> None:
    run(tiny("fedavg"), tmp_path)
    with pytest.raises(StorageError, match=r"holds a run with another config: choose another --out"):
        run(tiny("fedavg", train={"seed": 1}), tmp_path)
    run(tiny("fedavg", engine={"workers": 3}), tmp_path)


def test_what_is_no_run_folder_cannot_be_resumed(tmp_path: Path) -> None:
    with pytest.raises(StorageError, match="is not a run folder: it has no config.toml"):
        resume(tmp_path)


def test_a_damaged_checkpoint_stops_a_resume_with_a_sentence(tiny: MakeConfig, tmp_path: Path) -> None:
    run(tiny("fedavg"), tmp_path)
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


def test_only_the_last_two_rounds_of_private_state_are_kept(tiny: MakeConfig, tmp_path: Path) -> None:
    run(tiny("fca", train={"rounds": 5}), tmp_path)
    for site in ("site-00", "site-01", "site-02"):
        folder = tmp_path / "sites" / site
        assert sorted(path.stem for path in folder.glob("*.safetensors")) == ["3.0", "4.0"]
        assert folder.stat().st_mode & 0o777 == 0o700


# Disks ---------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("place", ["fsync", "replace"])
def test_a_full_disk_at_any_write_is_told_and_the_run_goes_on_later(
    place: str, tiny: MakeConfig, rows: Rows, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = tiny("fca")
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

    limit, failed = 0, 0
    while True:
        limit, calls = limit + 1, 0
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
    # config, ledger, four checkpoints with their heads, result; and the private files, which are renamed but not synced
    assert failed == {"fsync": 11, "replace": 17}[place]


# Drawing sites -------------------------------------------------------------------------------------------------------


class Silent:
    """An observer that looks away."""

    def wants_tuned(self, round: int) -> bool:
        return False

    def observe(self, done: int, server: Any, ask: Any, facts: Any) -> None: ...

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
