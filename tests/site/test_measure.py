"""The counts a site may tell: right by hand, whole numbers, and additive over sites."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor

from equipoise.data.samples import Task
from equipoise.errors import DataError, SiteError
from equipoise.site.measure import FIXED_POINT, MOST, coarse, measure, probabilities, score_bins, tallies


def logits_of(chances: list[list[float]]) -> Tensor:
    return torch.tensor(chances, dtype=torch.float64).log()


def random_batch(task: Task, seed: int, rows: int = 200, classes: int = 5) -> tuple[Tensor, Tensor]:
    rng = torch.Generator().manual_seed(seed)
    logits = 2 * torch.randn(rows, classes, generator=rng)
    if task == "single":
        return logits, torch.randint(classes, (rows,), generator=rng)
    return logits, (torch.rand(rows, classes, generator=rng) < 0.3).float()


def test_single_label_counts_by_hand() -> None:
    logits = logits_of([[0.7, 0.2, 0.1], [0.5, 0.3, 0.2], [0.1, 0.1, 0.8]])
    stats = measure(logits, torch.tensor([0, 1, 2]), task="single", bins=10, calibration_bins=10)
    assert stats["confusion"].tolist() == [[1, 0, 0], [1, 0, 0], [0, 0, 1]]
    calibration = stats["calibration"]
    assert calibration[:, 0].sum() == 3
    # 0.7 and 0.8 are bin edges up to rounding, so look at 0.5's neighbourhood and at the totals.
    assert calibration[:, 1].sum() == 2
    assert calibration[:, 2].sum() == 2_000_000
    assert stats["scores"].shape == (3, 2, 10)
    assert stats["scores"].sum(dim=2).tolist() == [[2, 1], [2, 1], [2, 1]]


def test_calibration_bins_are_closed_above() -> None:
    """Two classes at 3/4 and 1/2 exactly: with four bins 0.75 is in (0.5, 0.75] and 0.5 in (0.25, 0.5]."""
    logits = torch.tensor([[math.log(3.0), 0.0], [0.0, 0.0], [9.0, 0.0]], dtype=torch.float64)
    chance = probabilities(logits, "single")[:, 0]
    assert chance[1] == 0.5
    stats = tallies(logits, torch.tensor([0, 0, 1]), task="single", calibration_bins=4)
    assert stats["calibration"][1].tolist() == [1, 1, FIXED_POINT // 2]
    assert stats["calibration"][3].tolist() == [1, 0, round(FIXED_POINT / (1 + math.exp(-9)))]
    assert stats["calibration"][0].tolist() == [0, 0, 0]


def test_multi_label_counts_by_hand() -> None:
    logits = torch.tensor([[2.0, -1.0], [0.0, 3.0], [-4.0, 1.0]])
    labels = torch.tensor([[1.0, 0.0], [1.0, 1.0], [0.0, 0.0]])
    stats = measure(logits, labels, task="multi", bins=8)
    assert stats["binary"].tolist() == [
        [[1, 0], [1, 1]],
        [[1, 1], [0, 1]],
    ]  # logit 0 is p = 0.5: not above, negative
    assert stats["calibration"][:, 0].sum() == 6
    assert stats["calibration"][:, 1].sum() == 4
    sure = [1 / (1 + math.exp(-abs(z))) for z in (2, 1, 0, 3, 4, 1)]
    assert stats["calibration"][:, 2].sum() == sum(round(p * FIXED_POINT) for p in sure)
    # bins of width 1/8 in sigmoid(z / 4): z = 2 → 0.62 → 4; z = 0 → 4; z = -4 → 0.27 → 2
    assert stats["scores"][0].tolist() == [[0, 0, 1, 0, 0, 0, 0, 0], [0, 0, 0, 0, 2, 0, 0, 0]]


def test_single_cells_without_a_label_count_nowhere() -> None:
    logits, labels = random_batch("multi", 1)
    gaps = torch.rand(labels.shape, generator=torch.Generator().manual_seed(2)) < 0.3
    found = measure(logits, labels.masked_fill(gaps, torch.nan), task="multi")
    for c in range(labels.shape[1]):
        rows = ~gaps[:, c]
        alone = measure(logits[rows][:, [c]], labels[rows][:, [c]], task="multi")
        assert torch.equal(found["binary"][c], alone["binary"][0])
        assert torch.equal(found["scores"][c], alone["scores"][0])
    assert found["calibration"][:, 0].sum() == (~gaps).sum()


@pytest.mark.parametrize("task", ["single", "multi"])
def test_statistics_of_parts_add_up_to_those_of_the_whole(task: Task) -> None:
    logits, labels = random_batch(task, 0)
    whole = measure(logits, labels, task=task)
    parts = [measure(logits[i::3], labels[i::3], task=task) for i in range(3)]
    for name, value in whole.items():
        assert value.dtype == torch.int64
        assert torch.equal(value, sum((part[name] for part in parts), torch.zeros_like(value)))


def test_unlabelled_classes_count_nowhere() -> None:
    logits, labels = random_batch("multi", 1)
    labelled = torch.tensor([True, False, True, False, True])
    some = measure(logits, labels.masked_fill(~labelled, torch.nan), task="multi")
    alone = measure(logits[:, labelled], labels[:, labelled], task="multi")
    assert torch.equal(some["binary"][labelled], alone["binary"])
    assert torch.equal(some["scores"][labelled], alone["scores"])
    assert torch.equal(some["calibration"], alone["calibration"])
    assert some["binary"][~labelled].sum() == 0
    assert some["scores"][~labelled].sum() == 0


@pytest.mark.parametrize("task", ["single", "multi"])
def test_no_rows_give_zeros(task: Task) -> None:
    labels = torch.zeros(0, dtype=torch.int64) if task == "single" else torch.zeros(0, 3)
    for value in measure(torch.zeros(0, 3), labels, task=task).values():
        assert value.sum() == 0


def test_score_bins_keep_the_order_of_probabilities_up_to_saturation() -> None:
    rows = torch.tensor(
        [[-800.0, 0.0], [-30.0, 0.0], [-1.0, 0.0], [0.0, 0.0], [1.0, 0.0], [30.0, 0.0], [800.0, 0.0]]
    )
    found = score_bins(rows, "single", 1000)[:, 0].tolist()
    assert found == sorted(found)
    assert (found[0], found[3], found[-1]) == (0, 500, 999)
    assert score_bins(rows[:, :1], "multi", 1000)[:, 0].tolist() == found  # two-class softmax is a sigmoid


def test_input_that_would_be_miscounted_is_refused() -> None:
    logits, labels = random_batch("single", 2)
    with pytest.raises(DataError, match="check the task"):
        measure(logits, labels, task="multi")
    with pytest.raises(DataError, match="outside 0…4"):
        measure(logits, labels + 3, task="single")
    with pytest.raises(DataError, match="outside 0…4"):
        measure(logits, labels - 1, task="single")
    logits[7, 1] = float("nan")
    with pytest.raises(SiteError, match="diverged"):
        measure(logits, labels, task="single")


# What is told for one site alone ----------------------------------------------------------------------------


def test_bins_are_put_together_until_each_holds_enough() -> None:
    """By hand: 1, 0, 2, 2 | 5 | 3, 1, 1 with the last one joining the group before it, as it would stand
    alone."""
    rows = torch.tensor([1, 0, 2, 2, 5, 3, 1, 1, 1])
    scores = torch.stack([rows, torch.zeros_like(rows)])[None]
    confidence = torch.arange(1, 10) * rows
    calibration = torch.stack([rows, rows // 2, confidence], 1)
    told = coarse({"scores": scores, "calibration": calibration, "confusion": torch.eye(1)}, least=5, bins=4)
    assert told["scores"][0, 0].tolist() == [5, 5, 6, 0] and told["scores"][0, 1].sum() == 0
    assert told["calibration"][:, 0].tolist() == [0, 0, 0, 5, 5, 0, 0, 0, 6]
    assert told["calibration"][:, 2].tolist() == [0, 0, 0, 15, 25, 0, 0, 0, 42]
    assert told["confusion"].tolist() == [[1]]


@pytest.mark.parametrize("task", ["single", "multi"])
@pytest.mark.parametrize("rows", [0, 3, 35, 200, 1000])
def test_no_image_stands_alone(task: Task, rows: int) -> None:
    """Of 35 images most stand alone in one of 1,000 bins; told for one site, at least five are together."""
    logits, labels = random_batch(task, 1, rows)
    fine = measure(logits, labels, task=task)
    if rows == 35:
        assert (fine["scores"].sum(1) == 1).sum() > 100
    told = coarse(fine)
    filled = told["scores"].sum(1)
    assert told["scores"].shape == (5, 2, MOST) and filled.sum(1).tolist() == [rows] * 5
    assert bool(((filled >= min(5, rows)) | (filled == 0)).all())
    decisions = told["calibration"][:, 0]
    each = 5 if task == "single" else 25
    assert bool(((decisions >= min(each, int(decisions.sum()))) | (decisions == 0)).all())
    assert decisions.sum() == fine["calibration"][:, 0].sum()


def pairs(chance: Tensor, positive: Tensor) -> float:
    """AUC by looking at every pair."""
    up, down = chance[positive], chance[~positive]
    wins = (up[:, None] > down).double() + 0.5 * (up[:, None] == down).double()
    return float(wins.mean())


@pytest.mark.parametrize(("rows", "typical"), [(35, 0.05), (200, 0.02), (1000, 0.01)])
def test_the_auc_of_coarse_bins_is_within_what_is_said(rows: int, typical: float) -> None:
    """Never farther off than Σ n·p / (2 N P), and on average over classes much less."""
    gaps = []
    for seed in range(10):
        logits, labels = random_batch("single", seed, rows)
        logits += 1.5 * torch.nn.functional.one_hot(labels, 5)
        told = coarse(measure(logits, labels, task="single"))["scores"].double()
        chance = probabilities(logits, "single")
        for c in range(5):
            positive = labels == c
            if positive.all() or not positive.any():
                continue
            n, p = told[c]
            below = n.cumsum(0) - n
            area = float((p * (below + 0.5 * n)).sum() / (p.sum() * n.sum()))
            gaps.append(abs(area - pairs(chance[:, c], positive)))
            assert gaps[-1] <= float((n * p).sum() / (2 * p.sum() * n.sum())) + 1e-9
    assert sum(gaps) / len(gaps) < typical


def test_the_calibration_error_of_coarse_bins_is_never_too_large() -> None:
    for seed in range(10):
        logits, labels = random_batch("single", seed, 60)
        fine = measure(logits, labels, task="single")
        gaps = [
            float((stats["calibration"][:, 1] - stats["calibration"][:, 2] / FIXED_POINT).abs().sum()) / 60
            for stats in (fine, coarse(fine))
        ]
        assert gaps[1] <= gaps[0] + 1e-6 and gaps[0] - gaps[1] < 0.1
