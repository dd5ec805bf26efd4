"""Losses and metrics of every method on one tiny run, held against numbers on file.

A change that should not alter results leaves them alone; one that should says why in its commit and brings
new numbers:

    python -m tests.golden.test_golden

One machine gives the same bits every time. Another processor rounds differently, and training lets that grow:
with the oldest instruction set, losses moved by up to 0.0005 of their value and metrics by up to 0.03. What
is allowed is some more than that.
"""

from __future__ import annotations

import json
import os
import tempfile
from pathlib import Path
from typing import Any

import pytest
from tests.light import LIGHT

from equipoise.config import Config, resolve
from equipoise.methods import METHODS
from equipoise.running import run

FILE = Path(__file__).with_name("methods.json")
RUNS: dict[str, dict[str, Any]] = {
    f"{name} {preset}".strip(): {
        "name": name,
        **LIGHT.get(name, {}),
        **({"preset": preset} if preset else {}),
    }
    for name, cls in METHODS.items()
    for preset in ("", *cls.presets)
}
LOSS_TOLERANCE = 2e-3
METRIC_TOLERANCE = 0.06
METRICS = ("accuracy", "balanced_accuracy", "macro_auc")


KNOWN: dict[str, dict[str, Any]] = {}
"""what runs came to by config: a preset may say what the defaults say"""


def measured(method: dict[str, Any]) -> dict[str, Any]:
    """The loss of every round, and the last round's metrics."""
    data = {"kind": "phantom", "scale": 0.008, "image_size": 16, "task": METHODS[method["name"]].tasks[0]}
    train = {"rounds": 3, "batch_size": 16, "lr": 0.003, "seed": 1}
    table = {
        "data": data,
        "method": method,
        "train": train,
        "engine": {"device": "cpu"},
        "evaluate": {"every": 3},
    }
    if METHODS[method["name"]].tasks == ("multi",):
        table["partition"] = {"missing": 3}  # such methods are for labels that are missing
    config = resolve(table)
    if config.digest not in KNOWN:
        KNOWN[config.digest] = _measured(config)
    return KNOWN[config.digest]


def _measured(config: Config) -> dict[str, Any]:
    with tempfile.TemporaryDirectory() as folder:
        result = run(config, folder)
    last = result.history[-1]["test"]
    return {
        "loss": [
            row["train.loss"] for row in result.history if "train.loss" in row
        ],  # fine-tuning at the end has none
        **{
            view: {name: last[view][name] for name in METRICS}
            for view in ("generalisation", "specialisation")
        },
    }


AS_PUBLISHED = ("", "paper", "released")
"""the presets that `make test` looks at; parts left out one by one are for the sweep"""


@pytest.mark.parametrize(
    "name",
    [
        pytest.param(name, marks=[] if name.partition(" ")[2] in AS_PUBLISHED else [pytest.mark.sweep])
        for name in RUNS
    ],
)
def test_numbers_are_those_on_file(name: str) -> None:
    golden = json.loads(FILE.read_text())
    assert name in golden, f"{FILE.name} has no numbers of '{name}': run `python -m tests.golden.test_golden`"
    found, expected = measured(RUNS[name]), golden[name]
    assert found["loss"] == pytest.approx(expected["loss"], rel=LOSS_TOLERANCE)
    for view in ("generalisation", "specialisation"):
        for metric in METRICS:
            assert found[view][metric] == pytest.approx(expected[view][metric], abs=METRIC_TOLERANCE), (
                view,
                metric,
            )


def test_nothing_on_file_is_forgotten() -> None:
    assert set(json.loads(FILE.read_text())) == set(RUNS)


def update() -> None:
    """Write the numbers of this machine."""
    with tempfile.TemporaryDirectory() as cache:
        os.environ["EQUIPOISE_CACHE"] = cache
        numbers = {name: measured(method) for name, method in RUNS.items()}
    FILE.write_text(json.dumps(numbers, indent=1) + "\n")


if __name__ == "__main__":
    update()
