"""Metrics against scikit-learn and by hand, exact and from summed statistics."""

from __future__ import annotations

import json

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn.metrics import (
    accuracy_score,
    average_precision_score,
    balanced_accuracy_score,
    f1_score,
    recall_score,
    roc_auc_score,
)
from torch import Tensor

from equipoise.data.samples import Task
from equipoise.errors import ConfigError
from equipoise.evaluate import by_attribute, from_scores, from_statistics, shot_groups
from equipoise.site.measure import coarse, measure

COUNTED = (
    "accuracy",
    "balanced_accuracy",
    "macro_f1",
    "ece",
    "head",
    "medium",
    "tail",
    "recall",
    "support",
)


def batch(
    task: Task, seed: int, rows: int, *, levels: int | None = None, spread: float = 1.0
) -> tuple[Tensor, Tensor]:
    """Scores that know something of the labels; `levels` rounds them to make ties; the last class is always
    absent."""
    rng = np.random.default_rng(seed)
    prior = np.array([0.6, 0.25, 0.1, 0.05, 0.0])
    if task == "single":
        labels = rng.choice(5, size=rows, p=prior)
        hint = np.eye(5)[labels]
    else:
        labels = (rng.random((rows, 5)) < prior).astype(np.int64)
        hint = labels.astype(float)
    logits = spread * (rng.normal(size=(rows, 5)) + hint)
    if levels is not None:
        logits = np.round(logits * levels) / levels
    return torch.from_numpy(logits), torch.from_numpy(labels)


def oracle(logits: Tensor, labels: Tensor, task: Task) -> dict[str, float | None]:
    """scikit-learn's answers, averaged over the classes that are present."""
    if task == "single":
        chance, target = torch.softmax(logits, 1).numpy(), labels.numpy()
        guess = chance.argmax(1)
        present = sorted(set(target.tolist()))
        onehot = target[:, None] == np.arange(chance.shape[1])
        found: dict[str, float | None] = {
            "accuracy": accuracy_score(target, guess),
            "balanced_accuracy": recall_score(
                target, guess, labels=present, average="macro", zero_division=0
            ),
            "macro_f1": f1_score(target, guess, labels=present, average="macro", zero_division=0),
        }
    else:
        chance, onehot = torch.sigmoid(logits).numpy(), labels.numpy() > 0.5
        guesses = chance > 0.5
        present = [c for c in range(onehot.shape[1]) if onehot[:, c].any()]
        f1s = [f1_score(onehot[:, c], guesses[:, c], zero_division=0) for c in present]
        found = {
            "accuracy": float((guesses == onehot).mean()),
            "macro_f1": float(np.mean(f1s)) if f1s else None,
        }
        found["balanced_accuracy"] = mean(
            [balanced_accuracy_score(onehot[:, c], guesses[:, c]) for c in present if not onehot[:, c].all()]
        )
    both = [c for c in range(onehot.shape[1]) if 0 < onehot[:, c].sum() < len(onehot)]
    found["macro_auc"] = mean([roc_auc_score(onehot[:, c], chance[:, c]) for c in both])
    found["map"] = mean([average_precision_score(onehot[:, c], chance[:, c]) for c in both])
    return found


def mean(values: list[float]) -> float | None:
    return float(np.mean(values)) if values else None


@pytest.mark.parametrize("task", ["single", "multi"])
@settings(max_examples=30, deadline=None)
@given(seed=st.integers(0, 2**31), rows=st.integers(1, 60), levels=st.sampled_from([None, 1, 2]))
def test_scores_agree_with_scikit_learn(task: Task, seed: int, rows: int, levels: int | None) -> None:
    logits, labels = batch(task, seed, rows, levels=levels)
    found = from_scores(logits, labels, task=task)
    for name, value in oracle(logits, labels, task).items():
        assert found[name] == (value if value is None else pytest.approx(value, abs=1e-6)), name
    assert found["recall"][4] is None
    assert found["support"][4] == 0
    json.dumps(found, allow_nan=False)


@pytest.mark.parametrize("task", ["single", "multi"])
@pytest.mark.parametrize(("spread", "near"), [(0.1, 5e-3), (1.0, 2e-3), (6.0, 2e-3)])
def test_statistics_agree_with_scores(task: Task, spread: float, near: float) -> None:
    """Counts exactly, curves to the bin width: also for a timid network (spread 0.1) and an overconfident one
    (6)."""
    logits, labels = batch(task, 11, 6000, spread=spread)
    shots = shot_groups(torch.tensor([600, 250, 100, 50, 0]))
    exact = from_scores(logits, labels, task=task, shots=shots)
    parts = [measure(logits[i::4], labels[i::4], task=task) for i in range(4)]
    summed = {
        name: sum((part[name] for part in parts), torch.zeros_like(parts[0][name])) for name in parts[0]
    }
    binned = from_statistics(summed, shots=shots)
    assert list(binned) == list(exact)
    for name in COUNTED:
        assert binned[name] == exact[name], name
    assert exact["head"] is not None
    assert exact["tail"] is not None
    assert binned["macro_auc"] == pytest.approx(exact["macro_auc"], abs=1e-3)
    assert binned["map"] == pytest.approx(exact["map"], abs=near)


@pytest.mark.parametrize(("rows", "auc", "precision"), [(35, 0.05, 0.35), (200, 0.005, 0.06)])
def test_coarse_statistics_agree_as_well_as_they_say(rows: int, auc: float, precision: float) -> None:
    """What is told for one site alone: decisions exactly, curves to the bins, which hold five images or
    more."""
    for seed in range(10):
        rng = torch.Generator().manual_seed(seed)
        labels = torch.multinomial(torch.tensor([0.5, 0.25, 0.15, 0.07, 0.03]), rows, True, generator=rng)
        logits = 2 * torch.randn(rows, 5, generator=rng) + 3 * torch.nn.functional.one_hot(labels, 5)
        exact = from_scores(logits, labels, task="single")
        told = from_statistics(coarse(measure(logits, labels, task="single")))
        for name in COUNTED:
            assert told[name] == exact[name] or name == "ece", name
        assert told["macro_auc"] == pytest.approx(exact["macro_auc"], abs=auc)
        assert told["map"] == pytest.approx(exact["map"], abs=precision)
        assert told["ece"] <= exact["ece"] + 1e-6


@pytest.mark.parametrize("task", ["single", "multi"])
def test_tied_scores_count_half_from_statistics_too(task: Task) -> None:
    """Scores on a coarse grid fall into different bins, so the histograms lose nothing."""
    logits, labels = batch(task, 5, 500, levels=2)
    binned = from_statistics(measure(logits, labels, task=task, bins=20000))
    exact = from_scores(logits, labels, task=task)
    assert binned["macro_auc"] == pytest.approx(exact["macro_auc"], abs=1e-4)


def test_average_precision_of_bins_is_not_biased_against_a_rare_class() -> None:
    """Fifteen positives in 500 rows, fifty times: on average the histograms neither flatter nor punish."""
    gaps = []
    for seed in range(50):
        rng = np.random.default_rng(seed)
        labels = torch.from_numpy((np.arange(500) < 15).astype(np.int64))[:, None]
        logits = torch.from_numpy(rng.normal(size=(500, 1))) + 1.5 * labels
        binned = from_statistics(measure(logits, labels, task="multi"))["map"]
        gaps.append(binned - from_scores(logits, labels, task="multi")["map"])
    assert abs(np.mean(gaps)) < 1e-3
    assert np.abs(gaps).max() < 0.015


def test_average_precision_within_one_bin_by_hand() -> None:
    """Two positives and a negative in one bin: expected at ranks 4/3 and 8/3, so (1 / (4/3) + 2 / (8/3)) /
    2."""
    stats = measure(torch.zeros(3, 1), torch.tensor([[1.0], [1.0], [0.0]]), task="multi")
    assert from_statistics(stats)["map"] == pytest.approx(0.75)


def test_calibration_error_by_hand() -> None:
    """Confidences 0.9, 0.9 (one wrong) and 0.55 (right): (|1 - 1.8| + |1 - 0.55|) / 3."""
    chance = torch.tensor([[0.9, 0.1], [0.9, 0.1], [0.45, 0.55]], dtype=torch.float64)
    found = from_scores(chance.log(), torch.tensor([0, 1, 1]), task="single")
    assert found["ece"] == pytest.approx((0.8 + 0.45) / 3, abs=1e-6)


def test_multi_label_calibration_by_hand() -> None:
    """Confidence in the decision: 0.8 positive and right, 0.7 (p = 0.3) negative and wrong: (0.2 + 0.7) /
    2."""
    chance = torch.tensor([[0.8, 0.3]], dtype=torch.float64)
    found = from_scores(torch.logit(chance), torch.tensor([[1.0, 1.0]]), task="multi")
    assert found["ece"] == pytest.approx(0.45, abs=1e-6)


def test_single_label_by_hand() -> None:
    """Class 0: 3 of 4 right, class 1: 1 of 2, class 2: absent though predicted once."""
    guess = torch.tensor([0, 0, 0, 1, 1, 2])
    labels = torch.tensor([0, 0, 0, 0, 1, 1])
    logits = 4 * torch.nn.functional.one_hot(guess, 3).double()
    found = from_scores(logits, labels, task="single", shots=torch.tensor([0, 2, 1]))
    assert found["accuracy"] == pytest.approx(4 / 6)
    assert found["recall"] == [0.75, 0.5, None]
    assert found["support"] == [4, 2, 0]
    assert found["balanced_accuracy"] == pytest.approx(0.625)
    assert found["macro_f1"] == pytest.approx((6 / 7 + 1 / 2) / 2)
    assert (found["head"], found["medium"], found["tail"]) == (0.75, None, 0.5)
    # Class 0: three of four positives outscore both negatives, one ties. Class 1: one positive outscores
    # three of four negatives and ties with the fourth; the other is "2", where class 1 scores as low as in
    # the rows of guess 0.
    assert found["macro_auc"] == pytest.approx(((3 + 0.5) / 4 + (0.5 * (3 + 0.5) / 4 + 0.5 * 1.5 / 4)) / 2)


def test_nothing_to_measure_gives_none() -> None:
    found = from_scores(torch.zeros(0, 3), torch.zeros(0, dtype=torch.int64), task="single")
    for name in ("accuracy", "balanced_accuracy", "macro_auc", "map", "macro_f1", "ece", "head"):
        assert found[name] is None, name
    assert found["recall"] == [None] * 3


def test_unlabelled_classes_are_left_out() -> None:
    logits, labels = batch("multi", 3, 300)
    labelled = torch.tensor([True, False, True, False, False])
    some = from_scores(logits, labels.double().masked_fill(~labelled, torch.nan), task="multi")
    alone = from_scores(logits[:, labelled], labels[:, labelled], task="multi")
    for name in ("accuracy", "balanced_accuracy", "macro_auc", "map", "macro_f1", "ece"):
        assert some[name] == pytest.approx(alone[name]), name
    assert some["recall"][1] is None


def test_a_cell_without_a_label_counts_in_no_metric() -> None:
    """Class by class as if its unlabelled images were not there; the decisions of all cells together."""
    logits, labels = batch("multi", 3, 300)
    gaps = torch.rand(labels.shape, generator=torch.Generator().manual_seed(1)) < 0.4
    labels = labels.double().masked_fill(gaps, torch.nan)
    found = from_scores(logits, labels, task="multi")
    each = []
    for c in range(labels.shape[1]):
        rows = ~labels[:, c].isnan()
        each.append(from_scores(logits[rows][:, [c]], labels[rows][:, [c]], task="multi"))
    for name in ("balanced_accuracy", "macro_auc", "map", "macro_f1"):
        values = [one[name] for one in each if one[name] is not None]
        assert found[name] == pytest.approx(sum(values) / len(values)), name
    known = ~labels.isnan()
    assert found["accuracy"] == pytest.approx(((logits > 0) == (labels > 0))[known].double().mean().item())
    assert found["support"] == (labels == 1).sum(0).tolist()


def test_shot_groups() -> None:
    counts = torch.tensor([5000, 701, 700, 70, 69, 0])
    assert shot_groups(counts, "absolute").tolist() == [0, 0, 1, 1, 2, 2]
    assert shot_groups(counts, "absolute", head=4000, tail=701).tolist() == [0, 1, 2, 2, 2, 2]
    assert shot_groups(counts).tolist() == [0, 0, 1, 1, 2, 2]
    assert shot_groups(torch.tensor([3, 9, 5, 1, 5, 4, 2])).tolist() == [1, 0, 0, 2, 1, 1, 2]
    assert shot_groups(torch.tensor([1, 2])).tolist() == [2, 0]
    assert shot_groups(torch.tensor([7])).tolist() == [0]
    with pytest.raises(ConfigError, match="did you mean 'thirds'"):
        shot_groups(counts, "third")  # type: ignore[arg-type]


def test_by_attribute() -> None:
    logits, labels = batch("single", 4, 90)
    values = ["light", "", "dark"] * 30
    found = by_attribute(logits, labels, values, task="single")
    assert list(found) == ["dark", "light", "unknown"]
    assert found["light"] == from_scores(logits[0::3], labels[0::3], task="single")
    assert found["unknown"] == from_scores(logits[1::3], labels[1::3], task="single")
