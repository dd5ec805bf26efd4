"""Every method through Flower's ClientApp and Message layer: the bits of the serial simulation."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from tests import doctored
from tests.light import ALIKE, LIGHTEST

from equipoise.config import Config
from equipoise.deploy import apps
from equipoise.deploy.coordinator import coordinate
from equipoise.methods import METHODS
from equipoise.running import Result, prepare
from equipoise.server.journal import read as read_journal
from equipoise.setup import material

MakeConfig = Callable[..., Config]
Once = Callable[[Config], Result]
Rows = Callable[[Path], list[dict[str, Any]]]


def tiny_for(tiny: MakeConfig, name: str) -> Config:
    task = METHODS[name].tasks[0]
    sections: dict[str, dict[str, Any]] = {"data": {"task": task}, "evaluate": {"every": 2}}
    config = tiny(name, **sections, partition={"missing": 2} if task == "multi" else {})
    return replace(config, method=METHODS[name](**LIGHTEST.get(name, {})))


QUICK = ("fca", "fediic", "fedsdc")
"""private state; two questions; leaves that are read site by site"""


ALSO = ("fedavg", "fedmlp", "fedmas", "creff", "fedbabu", "rscfed", "cbafed")
"""a plain mean; one label of several; weights of a site's own; a server that trains; an ending; sites in
groups; a model of rounds ago"""


def mark(name: str) -> Any:
    if name in QUICK:
        return ()
    return pytest.mark.slow if name in ALSO else pytest.mark.sweep


def test_those_left_to_the_sweep_exchange_what_another_does(tiny: MakeConfig) -> None:
    def exchanged(name: str) -> set[tuple[Any, ...]]:
        config = tiny_for(tiny, name)
        dataset = material(config)
        ledger = prepare(config, dataset.facts, dataset).ledger
        return {(row["question"], row["leaf"], row["kind"]) for row in ledger.rows()}

    usual = exchanged("fedavg"), exchanged("fedavgm")
    assert not [name for name in ALIKE if exchanged(name) not in usual]


@pytest.mark.parametrize(
    "name",
    [pytest.param(name, marks=mark(name)) for name, cls in METHODS.items() if cls.standard != "pooled"],
)
def test_a_method_over_flower_is_the_simulation(
    name: str, tiny: MakeConfig, rows: Rows, town: Any, once: Once
) -> None:
    same_as_simulated(tiny_for(tiny, name), rows, town, once)


@pytest.mark.parametrize(
    ("name", "options", "sections"),
    [
        ("fedsdc+", {}, {"train": {"participation": 0.67}, "evaluate": {"every": 2}}),
        ("fedbabu", {"tune_epochs": 1}, {"evaluate": {"select": "mean_last_5", "own": "received"}}),
        ("fedavg", {}, {"net": {"freeze": "block2", "views_kept": 2}, "evaluate": {"every": 2}}),
    ],
    ids=["a question to everyone", "an ending of every reported round", "frozen stages"],
)
def test_questions_beyond_a_round_are_the_simulation(
    name: str,
    options: dict[str, Any],
    sections: dict[str, Any],
    tiny: MakeConfig,
    rows: Rows,
    town: Any,
    once: Once,
) -> None:
    config = replace(tiny(name, **sections), method=METHODS[name](**options))
    found = same_as_simulated(config, rows, town, once)
    assert found.ending_of == ([1, 2] if name == "fedbabu" else [])
    assert not [
        line
        for line in read_journal(found.folder / "journal.jsonl")[0]
        if line["event"] in ("refused", "missing")
    ]


@pytest.mark.parametrize(("spread", "matrices"), [(0.01, 3), (None, 2)])
def test_a_classifier_over_flower_is_the_simulation(
    spread: float | None, matrices: int, tiny: MakeConfig, rows: Rows, town: Any, once: Once
) -> None:
    """With a matrix for each class, which the ledger's generated sites are too small for, and with options
    that are switched off, for which a file has a word."""
    method = METHODS["equipoise"](own_covariance=spread, own=None)
    found = same_as_simulated(
        replace(tiny("equipoise", evaluate={"every": 2}), method=method), rows, town, once
    )
    assert found.server["closed"]["precision"].dim() == matrices


def test_the_coordinator_ends_a_run_early(tiny: MakeConfig, rows: Rows, town: Any, once: Once) -> None:
    """Nothing is learnt, so the second round is the first without an improvement."""
    train = {"rounds": 9, "lr": 0.0, "batch_size": 8, "stop": {"patience": 1}}
    config = replace(tiny("fedbabu", train=train), method=METHODS["fedbabu"](tune_epochs=1))
    found = same_as_simulated(config, rows, town, once)
    assert found.ending_of == [2] and found.stopped_early is not None
    ended = [
        line for line in read_journal(found.folder / "journal.jsonl")[0] if line["event"] == "stopped early"
    ]
    assert [line["round"] for line in ended] == [2]


class Broken(Exception):
    """The coordinator is gone."""


@pytest.mark.parametrize("at", [2, *(pytest.param(at, marks=pytest.mark.sweep) for at in (1, 3))])
def test_a_run_that_ends_early_is_resumed_to_the_same_rounds(
    at: int, tiny: MakeConfig, rows: Rows, town: Any, once: Once
) -> None:
    """Broken off in training, with the round that is the last, and in the ending. No improvement counts, so
    training ends with the second round; the sites are started anew as well."""
    train = {"rounds": 9, "stop": {"patience": 1, "least": 1.0}}
    config = replace(tiny("fedbabu", train=train), method=METHODS["fedbabu"](tune_epochs=1))
    there = town(config)
    straight = once(replace(config, evaluate=there.config.evaluate))

    def watch(event: str, facts: dict[str, Any]) -> None:
        if event == "round" and facts["round"] == at:
            raise Broken

    with pytest.raises(Broken):
        coordinate(there.wire, there.run, watch)
    for folder in there.sites.values():
        apps.desk(str(folder))._joined.clear()
    found = there.go()
    assert straight.ending_of == [2] and straight.stopped_early is not None
    assert found.stopped_early == straight.stopped_early
    assert (found.rounds, found.ending_of) == (straight.rounds, straight.ending_of)
    assert found.state_hash == straight.state_hash
    assert rows(there.run) == rows(straight.folder)
    events = [line["event"] for line in read_journal(there.run / "journal.jsonl")[0]]
    assert events.count("resumed") == 1 and "stopped early" in events


def same_as_simulated(config: Config, rows: Rows, town: Any, once: Once) -> Result:
    there = town(config)
    found = there.go()
    simulated = replace(config, evaluate=there.config.evaluate)
    expected = once(simulated)
    assert found.state_hash == expected.state_hash
    assert rows(there.run) == rows(expected.folder)
    listed = [doctored.table(folder / "ledger.json")["leaves"] for folder in (there.run, expected.folder)]
    assert [row for row in listed[0] if row["question"] != "join"] == listed[1]
    return found
