"""Where parts meet: method × objective × missing labels × selection × participation × views × head ×
re-training × how sums are made × differential privacy × frozen stages.

Every two values of two options meet in at least one tiny run of `make test-all`, and every value is in one of
`make test`, but methods that are like another (`ALIKE`). A cell is either refused before the first round, in
one sentence, or what must always hold holds: its numbers are finite, a second run gives the same bits, the
row that is reported is the row that was selected, the model that is loaded scores what was reported, no
answer was turned away, and a method at its neutral settings is FedAvg.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from tests.crossings.pairs import Cell, covering, pairs_of
from tests.light import ALIKE, LIGHTEST

from equipoise.config import resolve
from equipoise.errors import ConfigError, EquipoiseError, MethodError
from equipoise.evaluate import from_scores
from equipoise.methods import METHODS
from equipoise.running import Result, run
from equipoise.server.journal import read as read_journal
from equipoise.setup import material
from equipoise.site import accounting
from equipoise.tree import flatten
from equipoise.use import load
from equipoise.use.judge import logits

ROUNDS = 2

COMMON: dict[str, list[Any]] = {
    "select": ["last", "best_validation", "mean_last_5"],
    "own": ["tuned", "received"],
    "participation": [1.0, 0.5],
    "views": [None, ["eval"], ["weak", "weak"]],
    "head": ["linear", "cosine"],
    "crt": [0, 1],
    "exchange": [{}, {"secure": True, "clip": 1.0}, {"reduce": "median", "hostile": 0.25}],
    "privacy": [None, {"noise": 1.0}],
    "freeze": [None, "block1"],
}
SINGLE = COMMON | {
    "task": ["single"],
    "method": [name for name, cls in METHODS.items() if "single" in cls.tasks],
    "missing": [0],
    "objective": [
        None,
        "cross_entropy",
        "balanced_softmax",
        "logit_adjustment",
        "focal",
        "class_balanced",
        "ldam",
        "balanced_softmax+ldam",
        "fedlc",
        "fedrs+balanced_softmax",
    ],
}
MULTI = COMMON | {
    "task": ["multi"],
    "method": [name for name, cls in METHODS.items() if "multi" in cls.tasks],
    "missing": [0, 1],
    "objective": [
        None,
        "bce",
        {"name": "bce", "missing": "negative"},
        {"name": "bce", "pos_weight": True},
        "adjusted_bce",
        "focal",
        "fedlc",
        "ldam",
    ],
}


def key(cell: Cell) -> str:
    """A name for a cell."""
    words = [
        cell["method"],
        cell["objective"],
        f"missing{cell['missing']}",
        cell["select"],
        cell["own"],
        cell["participation"],
    ]
    words += ["views" + str(len(cell["views"] or ())), cell["head"], f"crt{cell['crt']}"]
    words += [*cell["exchange"]][:1] + ["private"] * bool(cell["privacy"]) + ["frozen"] * bool(cell["freeze"])
    return "-".join(word if isinstance(word, str) else json.dumps(word) for word in words)


def few(options: dict[str, list[Any]]) -> list[Cell]:
    """All pairs of the other options, the methods dealt to them in turn; every method is there at least
    once."""
    rest = covering({name: values for name, values in options.items() if name != "method"})
    methods = options["method"]
    return [
        rest[i % len(rest)] | {"method": methods[i % len(methods)]}
        for i in range(max(len(rest), len(methods)))
    ]


def quick_cells() -> Iterator[object]:
    """Of the few those that have a value which none before has: every method that is like no other is there,
    and every value."""
    met = {json.dumps(("method", name)) for name in ALIKE}
    for cell in (*few(SINGLE), *few(MULTI)):
        values = {json.dumps(one) for one in cell.items()}
        if values - met:
            yield pytest.param(cell, id=key(cell))
        met |= values


def all_cells() -> Iterator[object]:
    for options in (SINGLE, MULTI):
        cells = {key(cell): cell for cell in (*few(options), *covering(options))}
        yield from (pytest.param(cell, id=name) for name, cell in cells.items())


def table(cell: Cell, **method: Any) -> dict[str, Any]:
    """The config of a cell."""
    name = method.get("name", cell["method"])
    train = {
        "rounds": ROUNDS,
        "batch_size": 32,
        "participation": cell["participation"],
        **cell.get("train", {}),
    }
    given = {"objective": cell["objective"], "views": cell["views"]}
    net = {"name": "small-cnn", "head": cell["head"]}
    net |= {"freeze": cell["freeze"]} if cell["freeze"] else {}
    net |= {"batch_norm": "group"} if cell["privacy"] else {}
    return {
        "data": {"kind": "phantom", "scale": 0.004, "image_size": 16, "task": cell["task"]},
        "partition": {"kind": "iid", "sites": 4} | ({"missing": cell["missing"]} if cell["missing"] else {}),
        "method": {"name": name, "crt": cell["crt"], **(method or LIGHTEST.get(name, {}))},
        "net": net,
        "train": train | {option: value for option, value in given.items() if value is not None},
        "evaluate": {"select": cell["select"], "own": cell["own"]},
        "exchange": cell["exchange"],
        "engine": {"device": "cpu"},
        **({"privacy": cell["privacy"]} if cell["privacy"] else {}),
    }


def numbers(value: Any) -> Iterator[float]:
    """Every number in nested metrics."""
    if isinstance(value, dict):
        for one in value.values():
            yield from numbers(one)
    elif isinstance(value, list):
        for one in value:
            yield from numbers(one)
    elif isinstance(value, int | float):
        yield float(value)


def attempt(cell: Cell, folder: Path, *, often: bool = True, **method: Any) -> Result | None:
    """The run of a cell, or None where it is refused, which must be before the first round and in one
    sentence; evaluated `often`, or at the end only."""
    wanted = table(cell, **method)
    wanted["evaluate"] |= {} if often else {"every": ROUNDS}
    try:
        return run(resolve(wanted), folder)
    except (ConfigError, MethodError) as error:
        sentence = str(error)
    except EquipoiseError as error:
        raise AssertionError(f"neither refused nor run: {error}") from error
    assert 20 < len(sentence) < 600
    assert not list((folder / "checkpoints").glob("round-00000[1-9]*")), "refused in the middle of training"
    return None


@pytest.mark.parametrize("cell", list(quick_cells()))
def test_what_must_always_hold_holds_where_these_meet(
    cell: Cell, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(accounting, "_epsilon", lambda steps, delta: 1.0)  # nobody asks how private it is
    result = attempt(cell, tmp_path / "one")
    if result is not None:
        _sound(result, cell, tmp_path)


@pytest.mark.sweep
@pytest.mark.parametrize("cell", list(all_cells()))
def test_so_it_does_for_every_pair_again_and_beside_fedavg(cell: Cell, tmp_path: Path) -> None:
    result = attempt(cell, tmp_path / "one")
    again = attempt(cell, tmp_path / "two")
    if result is None or again is None:
        assert result is again
        return
    assert result.state_hash == again.state_hash
    assert result.metrics == again.metrics
    _sound(result, cell, tmp_path)
    _neutral_is_fedavg(cell, tmp_path)


def _sound(result: Result, cell: Cell, tmp_path: Path) -> None:
    """Its numbers are finite, no answer was turned away, and what is reported is what was selected and what
    the loaded model scores."""
    assert all(torch.isfinite(tensor).all() for tensor in flatten(result.server).values())
    assert all(math.isfinite(number) for number in numbers(result.metrics))
    assert not [
        line for line in read_journal(tmp_path / "one" / "journal.jsonl")[0] if line["event"] == "rejected"
    ]
    _reported_is_selected(result, cell)
    _loaded_scores_what_was_reported(result, cell)


def _reported_is_selected(result: Result, cell: Cell) -> None:
    rows = {row["round"]: row for row in result.history}
    assert result.rounds
    assert set(result.rounds) <= set(rows)
    if cell["select"] == "mean_last_5":
        got = result.metrics["test"]["generalisation"]["balanced_accuracy"]
        scores = [rows[number]["test"]["generalisation"]["balanced_accuracy"] for number in result.rounds]
        assert got == pytest.approx(sum(scores) / len(scores), abs=1e-12)
        return
    (number,) = result.rounds
    assert result.metrics["test"] == rows[number]["test"]
    if cell["select"] == "last":
        assert number == max(rows)


def _loaded_scores_what_was_reported(result: Result, cell: Cell) -> None:
    reported = result.metrics["test"]["generalisation"]["balanced_accuracy"]
    if cell["select"] == "mean_last_5" or cell["method"] in ("local", "fedsdc", "fedsdc+"):
        return  # a mean of several models; no global model at all; the mean over a bank of heads
    config = resolve(table(cell))
    dataset = material(config)
    rows = np.concatenate([holding.test for holding in dataset.holdings])
    try:
        model = load(result.folder)
    except MethodError as error:
        if "at the sites" in str(error):  # parts of the model never left them
            return
        raise
    labels = torch.from_numpy(dataset.samples.labels[rows])
    found = from_scores(logits(model, dataset.samples.images, rows), labels, task=cell["task"])
    assert found["balanced_accuracy"] == pytest.approx(reported, abs=1e-6)


def _neutral_is_fedavg(cell: Cell, folder: Path) -> None:
    """With the same base loss, views and local training, the neutral settings of a method give FedAvg's
    weights."""
    cls = METHODS[cell["method"]]
    if cls.neutral is None or cell["privacy"]:  # noise is drawn for every tensor, also for those left alone
        return
    if "clip" in cell["exchange"]:  # the norm is of every tensor, also of those that FedAvg does not have
        return
    neutral = attempt(cell, folder / "neutral", often=False, name=cell["method"], **cls.neutral)
    if neutral is None:
        return
    config = resolve(table(cell, name=cell["method"], **cls.neutral))
    parts = [part.model_dump(exclude_none=True) for part in config.method.base_loss(config.objective).parts]
    wanted = {key: value for key, value in cls.recommends.items() if key != "objective"}
    same = {**cell, "views": cell["views"] or list(cls.views), "objective": parts, "train": wanted}
    plain = attempt(same, folder / "plain", often=False, name="fedavg")
    if plain is None:
        return
    ours, theirs = (flatten(one.server["model"]) for one in (neutral, plain))
    assert set(theirs) <= set(ours)
    differ = [name for name in theirs if not torch.equal(ours[name], theirs[name])]
    assert not differ, f"{cell['method']} at its neutral settings is not FedAvg here: {differ[:3]}"


def test_the_cells_cover_every_pair() -> None:
    options = {"a": [0, 1, 2], "b": ["x", "y"], "c": [None, True, False, 3]}
    found = covering(options)
    index = [{name: options[name].index(value) for name, value in cell.items()} for cell in found]
    met = {pair for chosen in index for pair in pairs_of(chosen)}
    assert len(met) == 3 * 2 + 3 * 4 + 2 * 4
    assert len(found) < 3 * 2 * 4
