"""What a site tells about its predictions: counts that can be added over sites, and no score of any single
image.

All leaves are int64 tensors, so their sum over sites is exact and does not depend on the order of arrival.
"""

from __future__ import annotations

import torch
from torch import Tensor

from equipoise.data.samples import Task
from equipoise.errors import DataError, SiteError
from equipoise.losses import known

LEAST, MOST = 5, 100
"""images in a bin of what is told for one site alone, at least; and bins, at most"""
FIXED_POINT = 1_000_000
"""confidences are summed in units of one millionth"""
WARP = 4.0
"""how far the grid of score bins is stretched, see `score_bins`"""


def measure(
    logits: Tensor, labels: Tensor, *, task: Task, bins: int = 1000, calibration_bins: int = 15
) -> dict[str, Tensor]:
    """The `tallies` of the predictions, and `scores` [C, 2, bins]: one-vs-rest histograms of each class's
    probability.

    `scores[c, 1]` counts the rows that are of class c, `scores[c, 0]` the rows that are not. With several
    labels, one that is missing (NaN) counts nowhere.
    """
    counts = tallies(logits, labels, task=task, calibration_bins=calibration_bins)
    classes = logits.shape[1]
    cell = torch.arange(classes) * 2 + truth(labels, classes, task).long()
    cell = cell * bins + score_bins(logits, task, bins)
    scores = torch.bincount(cell[labelled_mask(labels, classes)], minlength=classes * 2 * bins)
    return counts | {"scores": scores.view(classes, 2, bins)}


def coarse(stats: dict[str, Tensor], least: int = LEAST, bins: int = MOST) -> dict[str, Tensor]:
    """The same statistics, told so that no image stands alone in a bin: for what is read for one site by
    itself.

    Neighbouring bins are put together until each holds `least` images (all of them, where there are fewer).
    `scores` becomes [C, 2, bins]: bin k is the k-th group from the lowest score up. The scores are not told,
    only their order, which is all that AUC and average precision need. Rows of one group count as equal, so
    an AUC is off by at most Σ n·p / (2 N P) over the groups, n of all N negatives and p of all P positives
    being in a group: with 35 images a macro AUC is within 0.05, with 200 within 0.005. Average precision
    depends on the few highest scores, so that of a rare class is rough: within 0.35 and 0.06. In
    `calibration` a group is told in its last bin; opposite errors within a group cancel, so the calibration
    error can only be too small.
    """
    scores = stats["scores"]
    merged = torch.zeros(*scores.shape[:2], bins, dtype=torch.int64)
    for c, histogram in enumerate(scores):
        rows = histogram.sum(0)
        group = _groups(rows, max(least, -(-int(rows.sum()) // bins)))
        merged[c].index_add_(1, group, histogram)
    calibration = stats["calibration"]
    decisions = len(scores) if "binary" in stats else 1  # per image
    group = _groups(calibration[:, 0], least * decisions)
    last = torch.zeros(len(group), dtype=torch.int64)
    last = last.scatter_reduce(0, group, torch.arange(len(group)), "amax")
    calibration = torch.zeros_like(calibration).index_add_(0, last[group], calibration)
    return stats | {"scores": merged, "calibration": calibration}


def _groups(rows: Tensor, least: int) -> Tensor:
    """The group of each bin, from 0: neighbours together until they hold `least` rows; what is left joins the
    last. Most bins are empty, so only the others are walked through."""
    if least <= 0:
        return torch.arange(len(rows))
    ends, held = list[int](), 0
    filled = rows.nonzero()[:, 0]
    for place, count in zip(filled.tolist(), rows[filled].tolist(), strict=True):
        held += count
        if held >= least:
            ends.append(place)
            held = 0
    group = torch.searchsorted(torch.tensor(ends, dtype=torch.int64), torch.arange(len(rows)))
    return group.clamp_max(max(0, len(ends) - 1))


def tallies(logits: Tensor, labels: Tensor, *, task: Task, calibration_bins: int = 15) -> dict[str, Tensor]:
    """Decisions and how sure they were.

    Single-label: `confusion` [C, C], true class by predicted class. Multi-label: `binary` [C, 2, 2], per
    class truth by prediction, which is positive above 0.5. Both: `calibration` [bins, 3], for equal-width
    bins of the confidence in the decision (open below, closed above) the count, how many were correct, and
    the sum of confidences in `FIXED_POINT`.
    """
    _check(logits, labels, task)
    classes = logits.shape[1]
    chance = probabilities(logits, task)
    if task == "single":
        confidence, decision = chance.max(dim=1)
        target = labels.cpu().long()
        pairs = torch.bincount(target * classes + decision, minlength=classes * classes)
        decided = {"confusion": pairs.view(classes, classes)}
        correct = decision == target
    else:
        positive = chance > 0.5
        target, labelled = truth(labels, classes, task), labelled_mask(labels, classes)
        cell = torch.arange(classes) * 4 + target.long() * 2 + positive.long()
        decided = {"binary": torch.bincount(cell[labelled], minlength=classes * 4).view(classes, 2, 2)}
        confidence = torch.maximum(chance, 1 - chance)[labelled]
        correct = (positive == target)[labelled]
    bucket = ((confidence * calibration_bins).ceil().long() - 1).clamp(0, calibration_bins - 1)
    sure = (confidence * FIXED_POINT).round().long()
    columns = torch.stack([torch.ones_like(bucket), correct.long(), sure], dim=1)
    calibration = torch.zeros(calibration_bins, 3, dtype=torch.int64).index_add_(0, bucket, columns)
    return decided | {"calibration": calibration}


def probabilities(logits: Tensor, task: Task) -> Tensor:
    """Softmax or sigmoid in double precision, so that close scores of a sure model do not become ties."""
    scores = logits.detach().cpu().double()
    return scores.softmax(dim=1) if task == "single" else scores.sigmoid()


def truth(labels: Tensor, classes: int, task: Task) -> Tensor:
    """bool [N, C]: is row n of class c?"""
    labels = labels.cpu()
    return labels[:, None] == torch.arange(classes) if task == "single" else labels > 0.5


def labelled_mask(labels: Tensor, classes: int) -> Tensor:
    """bool [N, C]: is it known whether row n is of class c?"""
    mask = known(labels.cpu())
    return mask if mask.ndim == 2 else mask[:, None].expand(-1, classes)


def score_bins(logits: Tensor, task: Task, bins: int) -> Tensor:
    """The score bin of each row and class, int64 [N, C].

    The grid is uniform in sigmoid(logit(p) / WARP). With 1000 bins that is 0.016 wide in logit(p) around p =
    0.5 and
    0.06 wide at logit ±10: fine where an untrained network's scores crowd, and fine in p near 0 and 1, where
    a rare class is told apart. Scores spread over more than about 0.1 in logit(p) give an AUC within 0.001 of
    the exact one.
    """
    scores = logits.detach().cpu().double()
    if task == "single":
        log_chance = scores.log_softmax(dim=1)
        # log(1 - p) as log(-expm1(log p)) is exact near p = 0 and p = 1; p = 1 gives logit +inf, hence the
        # last bin.
        scores = log_chance - torch.log(-torch.expm1(log_chance))
    return ((scores / WARP).sigmoid() * bins).long().clamp(0, bins - 1)


def _check(logits: Tensor, labels: Tensor, task: Task) -> None:
    """Refuse what would be counted in a wrong cell."""
    rows, classes = logits.shape
    expected = (rows,) if task == "single" else (rows, classes)
    if tuple(labels.shape) != expected:
        raise DataError(
            f"evaluation: labels have shape {tuple(labels.shape)} where {expected} is needed; check the task"
        )
    if task == "single" and rows and (int(labels.min()) < 0 or int(labels.max()) >= classes):
        raise DataError(
            f"evaluation: a label is outside 0…{classes - 1}; check the classes of the data and of the model"
        )
    if not bool(torch.isfinite(logits).all()):
        raise SiteError(
            "evaluation: the model gives scores that are not finite; it has diverged, lower the learning rate"
        )
