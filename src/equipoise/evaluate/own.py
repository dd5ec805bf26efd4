"""Metrics of one's own, named in `evaluate.metrics`: functions of all scores at once."""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import torch

from equipoise.errors import ConfigError
from equipoise.locate import Parts
from equipoise.seeds import isolated
from equipoise.signatures import check_options

STANDARD = (
    "accuracy",
    "balanced_accuracy",
    "macro_auc",
    "map",
    "macro_f1",
    "ece",
    "head",
    "medium",
    "tail",
    "recall",
    "support",
)
"""the metrics that are always there"""

Metric = Callable[[np.ndarray, np.ndarray], Any]
"""probabilities float64 [N, C] and labels (int64 [N], or float32 [N, C] for several) to a number or None"""


def find_metric(name: str, parts: Parts) -> tuple[str, Metric]:
    """The metric that a name of a config leads to, and what tables call it."""
    where = f"evaluate.metrics: '{name}'"
    short = name.rpartition(":")[2]
    if short in STANDARD:
        raise ConfigError(f"{where} has the name of a metric that is always there: give it another")
    function = parts.find(name, "evaluate.metrics")
    if not callable(function) or inspect.isclass(function):
        raise ConfigError(f"{where} is not a function of scores and labels")
    check_options(function, (), (), where, first=2)
    return short, function


def own_metrics(metrics: Mapping[str, Metric], scores: np.ndarray, labels: np.ndarray) -> dict[str, Any]:
    """Every metric of one's own; None where it has no value."""
    return {name: _value(name, metric, scores, labels) for name, metric in metrics.items()}


def own_names(metrics: Mapping[str, Any]) -> tuple[str, ...]:
    """The names of those among computed metrics."""
    numbers = (name for name, value in metrics.items() if value is None or isinstance(value, int | float))
    return tuple(name for name in numbers if name not in STANDARD)


def _value(name: str, metric: Metric, scores: np.ndarray, labels: np.ndarray) -> float | None:
    try:
        with isolated(0, torch.device("cpu")):
            value = metric(scores.copy(), labels.copy())
    except Exception as error:
        raise ConfigError(
            f"evaluate.metrics: '{name}' fails on {len(labels)} images ({type(error).__name__}: {error}): "
            "let it give None where it cannot be computed"
        ) from error
    if value is None:
        return None
    try:
        number = float(value)
    except (TypeError, ValueError):
        raise ConfigError(
            f"evaluate.metrics: '{name}' must give a number or None, and gave a {type(value).__name__}"
        ) from None
    return number if math.isfinite(number) else None
