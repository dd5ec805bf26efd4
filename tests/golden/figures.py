"""The numbers of one tiny run of a method: what is on file, and how far another machine may be off.

They are of the run that the rules of `equipoise.testing` look at: two rounds at three sites. A change that
should not alter results leaves them alone; one that should says why in its commit and brings new numbers:

    python -m tests.golden.test_golden

One machine gives the same bits every time. Another processor rounds differently, and training lets that grow:
with the oldest instruction set, losses in training moved by up to 0.00006 of their value, the sizes of models
by 0.00003, the logits of test images by 0.0003 and their log loss by 0.002, and metrics not at all; two
presets went farther, up to 0.013 and metrics by 0.04. Between newer processors the logits and log loss of
test images moved by up to 0.005. What is allowed is some more than that, and so little that a learning rate
which is a hundredth too large is noticed with every method, by the losses in training.
"""

from __future__ import annotations

import json
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from tests.light import LEARNING
from torch import Tensor

from equipoise.evaluate.scores import read_scores
from equipoise.methods import METHODS
from equipoise.testing import Bench, Trace

FILE = Path(__file__).with_name("methods.json")
RUNS: dict[str, tuple[str, dict[str, Any]]] = {
    f"{name} {preset}".strip(): (name, LEARNING.get(name, {}) | ({"preset": preset} if preset else {}))
    for name, cls in METHODS.items()
    for preset in ("", *cls.presets)
}
TOLERANCES = {"loss": 5e-4, "size": 3e-4, "logits": 8e-3, "test_loss": 8e-3}
"""relative; processors with other instructions differ by up to half a per cent after two rounds"""
UNSTEADY = ("fedmlp released", "fedmas kd-1")
METRIC_TOLERANCE = 0.06
METRICS = ("accuracy", "balanced_accuracy", "macro_auc")


def measured(trace: Trace) -> dict[str, Any]:
    """The loss of every round, the last round's metrics, what the global predictors say of the test images
    (its log loss and its size), and the size of all that server and sites hold: metrics alone hardly move on
    so few images."""
    result, last = trace.result, trace.result.history[-1]["test"]
    scores = read_scores(result.folder / "scores", result.rounds)
    assert scores is not None
    return {
        "loss": [
            row["train.loss"] for row in result.history if "train.loss" in row
        ],  # fine-tuning at the end has none
        "test_loss": _log_loss(scores.logits, scores.labels),
        "logits": _size([scores.logits]) / scores.logits.numel() ** 0.5,
        "size": {
            part: _size([x for name, x in trace.tensors.items() if name.startswith("server/") == at_server])
            for part, at_server in (("server", True), ("sites", False))
        },
        **{
            view: {name: last[view][name] for name in METRICS}
            for view in ("generalisation", "specialisation")
        },
    }


def _log_loss(logits: Tensor, labels: Tensor) -> float:
    pages = logits.double()
    if labels.ndim == 1:
        return float(torch.stack([F.cross_entropy(page, labels) for page in pages]).mean())
    known = ~labels.isnan()
    losses = [F.binary_cross_entropy_with_logits(page[known], labels[known].double()) for page in pages]
    return float(torch.stack(losses).mean())


def _size(tensors: list[Tensor]) -> float:
    return float(sum(x.double().square().sum() for x in tensors)) ** 0.5


@cache
def on_file() -> dict[str, Any]:
    return dict(json.loads(FILE.read_text()))


def compare(name: str, bench: Bench) -> None:
    """A run's numbers are those on file."""
    golden = on_file()
    assert name in golden, f"{FILE.name} has no numbers of '{name}': run `python -m tests.golden.test_golden`"
    with bench.own_cache():
        found = measured(bench.ordinary)
    expected = golden[name]
    for key, tolerance in TOLERANCES.items():
        close = tolerance * (10 if name in UNSTEADY else 1)
        assert found[key] == pytest.approx(expected[key], rel=close, abs=1e-6), key
    for view in ("generalisation", "specialisation"):
        for metric in METRICS:
            assert found[view][metric] == pytest.approx(expected[view][metric], abs=METRIC_TOLERANCE), (
                view,
                metric,
            )
