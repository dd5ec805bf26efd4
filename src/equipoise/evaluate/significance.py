"""Is one arm of a comparison better than another, or was it chance? Three paired tests, and Holm's correction
for many arms.

- Over test images: a bootstrap of the difference in balanced accuracy. It asks whether *these trained models*
  would differ on other patients of the same kind.
- Over seeds or folds: Student's t and the sign-flip permutation of the differences, one per run. They ask
  whether *the methods* would differ if trained again.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from equipoise.evaluate.scores import Scores
from equipoise.site.measure import labelled_mask, probabilities, truth

DRAWS = 2000
EXACT = 20
"""sign flips are all tried up to this many differences, and drawn beyond"""
CHUNK = 2**22
"""resampled rows held in memory at once"""
TERMS = 300
"""of the continued fraction; enough for full precision with thousands of runs"""


# Over test images -------------------------------------------------------------------------------------------


@dataclass(frozen=True, eq=False)
class Judged:
    """What balanced accuracy is made of, image by image. S is 1 for a single label, 2 (positives, negatives)
    for several."""

    ids: np.ndarray
    """str [N]"""
    stratum: np.ndarray
    """int64 [N]: images that may take each other's place in a resample"""
    hit: np.ndarray
    """float64 [N, S, C]: how many of the predictors decide this image rightly, as a share; 0 where it does
    not count"""
    counts: np.ndarray
    """float64 [N, S, C]: 1 where the image counts for that class"""

    def balanced_accuracy(self) -> float:
        """The figure itself, mean over the predictors."""
        return float(_balanced(np.ones((1, len(self.ids))), self.hit, self.counts)[0])

    def ordered(self, ids: np.ndarray) -> Judged | None:
        """The same images in another order; None when they are not the same images."""
        place = {name: i for i, name in enumerate(self.ids.tolist())}
        rows = np.array([place.get(name, -1) for name in ids.tolist()], dtype=np.int64)
        if len(ids) != len(self.ids) or len(place) != len(self.ids) or (rows < 0).any():
            return None
        return Judged(ids, self.stratum[rows], self.hit[rows], self.counts[rows])


def judge(scores: Scores) -> Judged:
    """From scores to decisions, with the rules of `evaluate.metrics`."""
    classes, single = scores.logits.shape[2], scores.task == "single"
    positive = truth(scores.labels, classes, scores.task).numpy()
    chance = [probabilities(page, scores.task) for page in scores.logits]
    if single:
        right = np.mean([(page.argmax(dim=1) == scores.labels).numpy() for page in chance], axis=0)
        counts = positive[:, None, :].astype(float)
        return Judged(scores.ids, scores.labels.numpy(), right[:, None, None] * counts, counts)
    right = np.mean([(page > 0.5).numpy() == positive for page in chance], axis=0)
    labelled = labelled_mask(scores.labels, classes).numpy()
    counts = np.stack([positive & labelled, ~positive & labelled], axis=1).astype(float)
    # Labels of one image go together, so images cannot be kept to their class: any may take any other's
    # place.
    return Judged(scores.ids, np.zeros(len(positive), dtype=np.int64), right[:, None, :] * counts, counts)


@dataclass(frozen=True)
class Resampled:
    """A difference, where it would lie 95 times of 100 on other images, and its two-sided p-value."""

    difference: float
    low: float
    high: float
    p: float


def bootstrap(
    arm: Sequence[Judged], reference: Sequence[Judged], rng: np.random.Generator, draws: int = DRAWS
) -> Resampled | None:
    """The mean over runs of the difference in balanced accuracy, resampled over images; None where runs saw
    other images.

    Run i of the arm is paired with run i of the reference, image by image. An image is drawn for all runs
    that test on it, since what it is like does not change with the seed. Images are drawn within their class,
    n - 1 of n, which makes the spread of the resamples an unbiased estimate of the spread over patients: with
    few images of a rare class it would be too small otherwise.
    """
    paired = [one.ordered(other.ids) for one, other in zip(arm, reference, strict=True)]
    pairs = [(one, other) for one, other in zip(paired, reference, strict=True) if one is not None]
    if not pairs or len(pairs) < len(paired):
        return None
    every = np.concatenate([one.ids for one, _ in pairs])
    ids, first, place = np.unique(every, return_index=True, return_inverse=True)
    stratum = np.concatenate([one.stratum for one, _ in pairs])[first]
    rows = np.split(place, np.cumsum([len(one.ids) for one, _ in pairs])[:-1])

    def difference(weights: np.ndarray) -> np.ndarray:
        differences = [
            _balanced(weights[:, row], one.hit - other.hit, one.counts)
            for row, (one, other) in zip(rows, pairs, strict=True)
        ]
        return np.asarray(np.mean(differences, axis=0))

    step = max(1, CHUNK // len(ids))
    drawn = [difference(_resample(stratum, min(step, draws - done), rng)) for done in range(0, draws, step)]
    observed, resamples = float(difference(np.ones((1, len(ids))))[0]), np.concatenate(drawn)
    low, high = np.quantile(resamples, (0.025, 0.975)).tolist()
    beyond = int((np.abs(resamples - observed) >= abs(observed) - 1e-12).sum())
    return Resampled(observed, low, high, (1 + beyond) / (1 + draws))


def interval(judged: Judged, rng: np.random.Generator, draws: int = DRAWS) -> tuple[float, float]:
    """Where balanced accuracy would lie 95 times of 100 on other images of the same kind, drawn as in
    `bootstrap`."""
    step = max(1, CHUNK // len(judged.ids))
    drawn = [
        _balanced(_resample(judged.stratum, min(step, draws - done), rng), judged.hit, judged.counts)
        for done in range(0, draws, step)
    ]
    low, high = np.quantile(np.concatenate(drawn), (0.025, 0.975)).tolist()
    return low, high


def wilson(share: float, count: int, z: float = 1.959964) -> tuple[float, float]:
    """The 95 % interval of a share of `count` images (Wilson 1927): also right for few images, and for none
    or all of them."""
    middle = (share + z * z / (2 * count)) / (1 + z * z / count)
    reach = z / (1 + z * z / count) * math.sqrt(share * (1 - share) / count + (z / (2 * count)) ** 2)
    return max(0.0, middle - reach), min(1.0, middle + reach)


def _resample(stratum: np.ndarray, draws: int, rng: np.random.Generator) -> np.ndarray:
    """How often each image is in each resample, float64 [draws, N]."""
    weights = np.empty((draws, len(stratum)))
    for name in np.unique(stratum):
        rows = np.flatnonzero(stratum == name)
        chosen = rng.integers(len(rows), size=(draws, max(1, len(rows) - 1)))
        chosen += len(rows) * np.arange(draws)[:, None]
        weights[:, rows] = np.bincount(chosen.ravel(), minlength=draws * len(rows)).reshape(draws, len(rows))
    return weights


def _balanced(weights: np.ndarray, hit: np.ndarray, counts: np.ndarray) -> np.ndarray:
    """Balanced accuracy [B] (or, as it is linear in the hits, a difference) under B weightings of N images.

    A class that has no image left, or for several labels no positive or no negative one, is left out of the
    mean.
    """
    shape = (len(weights), *hit.shape[1:])
    above, below = ((weights @ x.reshape(len(x), -1)).reshape(shape) for x in (hit, counts))
    there = (below > 0).all(axis=1)
    per_class = np.where(there, (above / np.where(below > 0, below, 1)).mean(axis=1), 0)
    result: np.ndarray = per_class.sum(axis=1) / np.maximum(1, there.sum(axis=1))
    return result


# Over seeds and folds ---------------------------------------------------------------------------------------


def paired_t(differences: Sequence[float], overlap: float = 0.0) -> float | None:
    """Two-sided p of Student's paired t-test; None for fewer than two differences.

    `overlap` is test rows per training row where runs share training rows, 1 / (K - 1) for K folds: their
    differences are then alike, and the variance of their mean is larger than 1/n of theirs (Nadeau and Bengio
    2003).
    """
    n = len(differences)
    if n < 2:
        return None
    mean, deviation = float(np.mean(differences)), float(np.std(differences, ddof=1))
    if deviation <= 1e-15:
        return 1.0 if abs(mean) <= 1e-15 else 0.0
    t = mean / (deviation * math.sqrt(1 / n + overlap))
    return incomplete_beta((n - 1) / (n - 1 + t * t), (n - 1) / 2, 0.5)


def sign_flip(differences: Sequence[float], rng: np.random.Generator) -> float | None:
    """Two-sided p of the sign-flip permutation test; None for fewer than two differences.

    Under the null each difference might as well have had the other sign. All signs are tried for up to
    `EXACT` differences, so the smallest p that n of them can give is 2 / 2^n; beyond that 100,000 are drawn.
    """
    values = np.asarray(differences, dtype=float)
    if len(values) < 2:
        return None
    if len(values) <= EXACT:
        sums = np.zeros(1)
        for value in values:
            sums = np.concatenate([sums + value, sums - value])
    else:
        signs = rng.integers(2, size=(100_000, len(values))) * 2 - 1
        sums = np.append(signs @ values, values.sum())
    return float((np.abs(sums) >= abs(values.sum()) - 1e-12).mean())


def holm(ps: Sequence[float | None]) -> list[float | None]:
    """p-values corrected for how many there are (Holm 1979); None stays None."""
    known = sorted((p, i) for i, p in enumerate(ps) if p is not None)
    result: list[float | None] = [None] * len(ps)
    largest = 0.0
    for rank, (p, i) in enumerate(known):
        largest = max(largest, min(1.0, p * (len(known) - rank)))
        result[i] = largest
    return result


def incomplete_beta(x: float, a: float, b: float) -> float:
    """The regularised incomplete beta function I_x(a, b); Student's two-sided p for t and n degrees is
    I_{n/(n+t²)}(n/2, 1/2)."""
    if x <= 0 or x >= 1:
        return 0.0 if x <= 0 else 1.0
    front = math.lgamma(a + b) - math.lgamma(a) - math.lgamma(b)
    front = math.exp(front + a * math.log(x) + b * math.log1p(-x))
    # The continued fraction is quick below the mean of the distribution; above it the mirror image is.
    if x < (a + 1) / (a + b + 2):
        return front * _fraction(x, a, b) / a
    return 1 - front * _fraction(1 - x, b, a) / b


def _fraction(x: float, a: float, b: float) -> float:
    """The continued fraction 1/(1 + d₁/(1 + d₂/(1 + …))) of the incomplete beta function, evaluated from the
    back."""
    value = 1.0
    for k in range(TERMS, 0, -1):
        m, odd = divmod(k, 2)
        d = -(a + m) * (a + b + m) / (a + k) if odd else m * (b - m) / (a + k - 1)
        value = 1 + d * x / ((a + k - 1 if odd else a + k) * value)
    return 1 / value
