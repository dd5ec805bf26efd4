"""Metrics from scores, exact, or from the statistics that sites add up, to the bin width.

Everything but AUC and average precision comes from the same counts either way, and is therefore equal. A
class that is absent from a test set is left out of its averages, and what cannot be computed is None, never
NaN.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor

from equipoise.data.samples import Task
from equipoise.errors import ConfigError
from equipoise.evaluate.own import Metric, own_metrics
from equipoise.names import unknown
from equipoise.site.figures import from_statistics, metrics_of, precision
from equipoise.site.measure import labelled_mask, probabilities, tallies, truth

__all__ = ["by_attribute", "from_scores", "from_statistics", "shot_groups"]


def from_scores(
    logits: Tensor,
    labels: Tensor,
    *,
    task: Task,
    shots: Tensor | None = None,
    own: Mapping[str, Metric] | None = None,
) -> dict[str, Any]:
    """Exact metrics of logits [N, C]. `shots` comes from `shot_groups`; a missing label (NaN) counts nowhere.

    The keys are `accuracy`, `balanced_accuracy`, `macro_auc`, `map`, `macro_f1`, `ece`, `head`, `medium`,
    `tail`, and per class `recall` and `support`. In a multi-label task balanced accuracy is the mean over
    classes of (TPR + TNR) / 2 at 0.5, and accuracy is that of all labels. Macro-F1 goes over the classes
    present in the labels. `own` are metrics of one's own by name, None where labels are missing.
    """
    counts = tallies(logits, labels, task=task)
    classes = logits.shape[1]
    chance, target = probabilities(logits, task).numpy(), truth(labels, classes, task).numpy()
    labelled = labelled_mask(labels, classes).numpy()
    curves = []
    for c in range(classes):
        values, place = np.unique(chance[labelled[:, c], c], return_inverse=True)
        positives = np.bincount(place[target[labelled[:, c], c]], minlength=len(values))
        curves.append((np.bincount(place, minlength=len(values)) - positives, positives))
    metrics = metrics_of(counts, curves, shots, precision)
    if not labelled.all():
        return metrics | dict.fromkeys(own or ())
    return metrics | own_metrics(own or {}, chance, labels.cpu().numpy())


def by_attribute(
    logits: Tensor,
    labels: Tensor,
    values: Iterable[object],
    *,
    task: Task,
    shots: Tensor | None = None,
    own: Mapping[str, Metric] | None = None,
) -> dict[str, dict[str, Any]]:
    """The metrics of each value of an attribute, such as sex or skin tone; rows without a value are
    'unknown'."""
    names = np.array([str(value) or "unknown" for value in values])
    metrics = {}
    for name in np.unique(names).tolist():
        rows = torch.from_numpy(np.flatnonzero(names == name))
        metrics[name] = from_scores(logits[rows], labels[rows], task=task, shots=shots, own=own)
    return metrics


def shot_groups(
    train_counts: Tensor, mode: Literal["absolute", "thirds"] = "thirds", *, head: int = 700, tail: int = 70
) -> Tensor:
    """int64 [C]: 0 for head, 1 for medium and 2 for tail classes, by the number of training images.

    `absolute` takes thresholds, at first Fed-MAS's: more than `head` images, fewer than `tail`. `thirds`
    takes the third of the classes with most images and the third with fewest, which also suits small data; of
    equals the first is the larger.
    """
    counts = torch.as_tensor(train_counts)
    groups = torch.ones(len(counts), dtype=torch.int64)
    if mode == "absolute":
        groups[counts < tail] = 2
        groups[counts > head] = 0
    elif mode == "thirds":
        order = torch.argsort(counts, descending=True, stable=True)
        third = max(1, round(len(counts) / 3))
        groups[order[-third:]] = 2
        groups[order[:third]] = 0
    else:
        raise ConfigError(unknown("evaluate.shots", mode, ["absolute", "thirds"]))
    return groups
