"""Metrics from counts: what a site can say of its own predictions, and a coordinator of all sites' together.

A class that is absent from a test set is left out of its averages, and what cannot be computed is None, never
NaN.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import numpy as np
import torch
from torch import Tensor

from equipoise.site.measure import FIXED_POINT

GROUPS = "shots"
"""in what is sent for evaluation: the group of each class, where only means over sites are wanted"""
SHOTS = ("head", "medium", "tail")
FIGURES = ("accuracy", "balanced_accuracy", "macro_auc", "map", "macro_f1", "ece", *SHOTS)
"""the metrics that are one number"""

Curve = tuple[np.ndarray, np.ndarray]
"""negatives and positives at each distinct score or in each bin, scores ascending"""
Area = Callable[[np.ndarray, np.ndarray], float]
"""a number from a curve"""


def from_statistics(stats: dict[str, Tensor], *, shots: Tensor | None = None) -> dict[str, Any]:
    """The same metrics from `measure`'s statistics, summed over sites; AUC and average precision to the bin
    width.

    Average precision is the touchier of the two: a class with only a handful of positives can be off by 0.01.
    """
    curves = [(h[0], h[1]) for h in stats["scores"].long().numpy()]
    return metrics_of(stats, curves, shots, _mixed_precision)


def addable(stats: dict[str, Tensor], shots: Tensor) -> dict[str, dict[str, Tensor]]:
    """One site's metrics in a form that can be added over sites: each number, and whether there is one."""
    figures = from_statistics(stats, shots=shots)
    return {
        "sum": {name: torch.tensor(figures[name] or 0.0, dtype=torch.float64) for name in FIGURES},
        "count": {name: torch.tensor(int(figures[name] is not None)) for name in FIGURES},
    }


def mean_of(added: Mapping[str, Mapping[str, Tensor]]) -> dict[str, float | None]:
    """The mean over sites of what `addable` made; a site without a value is left out of it."""
    return {
        name: float(total) / int(count) if (count := added["count"][name]) > 0 else None
        for name, total in added["sum"].items()
    }


def metrics_of(
    counts: dict[str, Tensor], curves: list[Curve], shots: Tensor | None, precision: Area
) -> dict[str, Any]:
    """All metrics: decisions and calibration from counts, the rest from one score curve per class."""
    single = "confusion" in counts
    decided = counts["confusion" if single else "binary"].double().numpy()
    if single:
        hits, support, chosen = decided.diagonal(), decided.sum(axis=1), decided.sum(axis=0)
        right, total = hits.sum(), decided.sum()
    else:
        hits, support, chosen = decided[:, 1, 1], decided[:, 1].sum(axis=1), decided[:, :, 1].sum(axis=1)
        right, total = hits.sum() + decided[:, 0, 0].sum(), decided.sum()
    recall = _ratios(hits, support)
    # A class present in the labels has support > 0, so its F1 = 2 TP / (support + predicted) is always
    # defined.
    f1 = [
        None if n == 0 else 2 * h / (n + p)
        for h, n, p in zip(hits.tolist(), support.tolist(), chosen, strict=True)
    ]
    if single:
        balanced = recall
    else:
        specificity = _ratios(decided[:, 0, 0], decided[:, 0].sum(axis=1))
        pairs = zip(recall, specificity, strict=True)
        balanced = [None if r is None or s is None else (r + s) / 2 for r, s in pairs]
    return {
        "accuracy": _ratios([right], [total])[0],
        "balanced_accuracy": _mean(balanced),
        "macro_auc": _mean([_of_both(_area, curve) for curve in curves]),
        "map": _mean([_of_both(precision, curve) for curve in curves]),
        "macro_f1": _mean(f1),
        "ece": _calibration_error(counts["calibration"]),
        **_by_shot(recall, shots),
        "recall": recall,
        "support": support.astype(int).tolist(),
    }


def _by_shot(recall: list[float | None], shots: Tensor | None) -> dict[str, float | None]:
    """Mean recall over head, medium and tail classes."""
    groups = [-1] * len(recall) if shots is None else shots.tolist()
    return {
        name: _mean([r for r, group in zip(recall, groups, strict=True) if group == i])
        for i, name in enumerate(SHOTS)
    }


def _calibration_error(calibration: Tensor) -> float | None:
    """Expected calibration error: Σ over bins of |correct - confidence|, per decision."""
    count, correct, confidence = calibration.double().numpy().T
    gap = np.abs(correct - confidence / FIXED_POINT).sum()
    return _ratios([gap], [count.sum()])[0]


def _of_both(metric: Area, curve: Curve) -> float | None:
    """A metric of one class's curve, or None when positives or negatives are lacking."""
    negatives, positives = curve
    return metric(negatives, positives) if negatives.sum() and positives.sum() else None


def _area(negatives: np.ndarray, positives: np.ndarray) -> float:
    """Area under the ROC curve: the chance that a positive outscores a negative, a tie counting half."""
    below = np.cumsum(negatives) - negatives
    wins = (positives * (2 * below + negatives)).sum()
    return float(wins / (2 * positives.sum() * negatives.sum()))


def precision(negatives: np.ndarray, positives: np.ndarray) -> float:
    """Average precision: Σ (recall step × precision) from the highest threshold down, without
    interpolation."""
    hits = np.cumsum(positives[::-1])
    shown = hits + np.cumsum(negatives[::-1])  # never 0: every distinct score belongs to some row
    return float((positives[::-1] * hits / shown).sum() / hits[-1])


def _mixed_precision(negatives: np.ndarray, positives: np.ndarray) -> float:
    """Average precision when the rows of a bin are not tied but in an unknown order, taken as random.

    The k-th of p positives among n rows is then expected at rank k (n + 1) / (p + 1). Taking the bin for one
    tie would give every positive the precision at the bin's end, usually the lowest, and make rare classes
    look worse.
    """
    hits, rows = positives[::-1], (positives + negatives)[::-1]
    bin_of = np.repeat(np.arange(len(hits)), hits)
    rank = np.arange(1, len(bin_of) + 1)
    k = rank - (np.cumsum(hits) - hits)[bin_of]
    shown = (np.cumsum(rows) - rows)[bin_of] + k * (rows[bin_of] + 1) / (hits[bin_of] + 1)
    return float((rank / shown).mean())


def _ratios(above: Iterable[float], below: Iterable[float]) -> list[float | None]:
    return [float(a) / float(b) if b else None for a, b in zip(above, below, strict=True)]


def _mean(values: list[float | None]) -> float | None:
    """The mean of those that exist."""
    present = [value for value in values if value is not None]
    return math.fsum(present) / len(present) if present else None
