"""Tests and corrections against scipy and hand-made cases; and under the null one in twenty is called
different."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
import torch
from scipy import special, stats
from sklearn.metrics import balanced_accuracy_score

from equipoise.errors import StorageError
from equipoise.evaluate.metrics import from_scores
from equipoise.evaluate.scores import Scores, keep_scores, read_scores, write_scores
from equipoise.evaluate.significance import (
    Judged,
    bootstrap,
    holm,
    incomplete_beta,
    judge,
    paired_t,
    sign_flip,
)

RNG = np.random.default_rng


def single(logits: np.ndarray, labels: np.ndarray, ids: list[str] | None = None) -> Scores:
    names = np.array(ids or [f"i{i}" for i in range(len(labels))])
    pages = logits if logits.ndim == 3 else logits[None]
    return Scores("single", names, torch.from_numpy(labels), torch.from_numpy(pages).float())


# Student's t ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("a", [0.5, 1, 2, 7.5, 50, 500])
@pytest.mark.parametrize("b", [0.5, 1, 3, 40])
def test_incomplete_beta_is_scipys(a: float, b: float) -> None:
    for x in (0, 1e-9, 0.01, 0.3, 0.5, 0.77, 0.99, 1):
        assert incomplete_beta(x, a, b) == pytest.approx(special.betainc(a, b, x), rel=1e-10, abs=1e-14)


@pytest.mark.parametrize("n", [2, 3, 5, 30])
def test_paired_t_is_scipys(n: int) -> None:
    for seed in range(5):
        a, b = RNG(seed).normal(0.3, 1, n), RNG(seed + 9).normal(0, 1, n)
        assert paired_t((a - b).tolist()) == pytest.approx(stats.ttest_rel(a, b).pvalue, rel=1e-9)


def test_paired_t_at_the_edges() -> None:
    assert paired_t([0.1]) is None
    assert paired_t([0.0, 0.0, 0.0]) == 1.0
    assert paired_t([0.25, 0.25, 0.25]) == 0.0


def test_folds_that_share_training_rows_count_for_less() -> None:
    values = [0.02, 0.05, 0.01, 0.04, 0.03]
    t = np.mean(values) / np.sqrt(np.var(values, ddof=1) * (1 / 5 + 1 / 4))
    assert paired_t(values, overlap=1 / 4) == pytest.approx(2 * stats.t.sf(t, 4), rel=1e-9)
    assert paired_t(values, overlap=1 / 4) > paired_t(values)  # type: ignore[operator]


# Sign flips and Holm ----------------------------------------------------------------------------------------


def test_sign_flip_tries_every_sign() -> None:
    values = [0.3, -0.1, 0.4, 0.2, 0.05]
    sums = [
        abs(sum(s * v for s, v in zip(signs, values, strict=True)))
        for signs in itertools.product((1, -1), repeat=5)
    ]
    assert sign_flip(values, RNG(0)) == sum(s >= abs(sum(values)) - 1e-12 for s in sums) / 32
    assert sign_flip([0.1, 0.2, 0.3], RNG(0)) == 2 / 8
    assert sign_flip([0.0, 0.0], RNG(0)) == 1.0
    assert sign_flip([0.1], RNG(0)) is None


def test_sign_flip_is_scipys_permutation_test() -> None:
    values = RNG(3).normal(0.4, 1, size=9)
    other = stats.permutation_test((values,), np.mean, permutation_type="samples", n_resamples=np.inf)
    assert sign_flip(values.tolist(), RNG(0)) == pytest.approx(other.pvalue)


def test_many_sign_flips_are_drawn() -> None:
    values = RNG(5).normal(0.25, 1, size=25).tolist()
    p = sign_flip(values, RNG(0))
    assert p is not None and p == pytest.approx(paired_t(values), abs=0.03)
    assert p == sign_flip(values, RNG(0))


def test_holm_by_hand() -> None:
    assert holm([0.01, 0.04, None, 0.03]) == [
        pytest.approx(0.03),
        pytest.approx(0.06),
        None,
        pytest.approx(0.06),
    ]
    assert holm([0.6, 0.7]) == [1.0, 1.0]
    assert holm([]) == []


# Bootstrap over images --------------------------------------------------------------------------------------


def test_judged_is_the_balanced_accuracy_of_the_metrics() -> None:
    labels, logits = RNG(0).integers(0, 4, 60), RNG(1).normal(size=(60, 4))
    judged = judge(single(logits, labels))
    assert judged.balanced_accuracy() == pytest.approx(balanced_accuracy_score(labels, logits.argmax(1)))
    several = judge(single(np.stack([logits, -logits]), labels))  # two predictors: the mean of their figures
    assert several.balanced_accuracy() == pytest.approx(
        np.mean([balanced_accuracy_score(labels, x.argmax(1)) for x in (logits, -logits)])
    )


def test_judged_with_several_labels_leaves_out_a_class_without_positives() -> None:
    labels = (RNG(0).random((50, 3)) < [0.5, 0.2, 0.0]).astype(np.float32)
    logits = torch.from_numpy(RNG(1).normal(size=(50, 3))).float()
    scores = Scores("multi", np.array([f"i{i}" for i in range(50)]), torch.from_numpy(labels), logits[None])
    wanted = from_scores(logits, torch.from_numpy(labels), task="multi")["balanced_accuracy"]
    assert judge(scores).balanced_accuracy() == pytest.approx(wanted)


def test_images_are_paired_by_id_whatever_their_order() -> None:
    labels, first, second = (
        RNG(0).integers(0, 3, 90),
        RNG(1).normal(size=(90, 3)),
        RNG(2).normal(size=(90, 3)),
    )
    ids = [f"i{i}" for i in range(90)]
    order = RNG(3).permutation(90)
    straight = bootstrap([judge(single(first, labels))], [judge(single(second, labels))], RNG(0))
    mixed = judge(single(first[order], labels[order], [ids[i] for i in order]))
    again = bootstrap([mixed], [judge(single(second, labels))], RNG(0))
    assert straight is not None and again is not None
    assert again == straight
    gap = balanced_accuracy_score(labels, first.argmax(1)) - balanced_accuracy_score(labels, second.argmax(1))
    assert straight.difference == pytest.approx(gap)
    other = judge(single(first, labels, [f"j{i}" for i in range(90)]))
    assert bootstrap([other], [judge(single(second, labels))], RNG(0)) is None
    assert bootstrap([], [], RNG(0)) is None


def test_the_spread_is_that_of_the_mean_of_differences() -> None:
    labels = np.repeat([0, 1, 2], [400, 60, 12])
    first, second = ((RNG(s).random((len(labels), 3)) + np.eye(3)[labels] * 0.3) for s in (1, 2))
    found = bootstrap([judge(single(first, labels))], [judge(single(second, labels))], RNG(0), draws=20_000)
    gaps = (first.argmax(1) == labels).astype(float) - (second.argmax(1) == labels)
    variance = sum(gaps[labels == c].var(ddof=1) / (labels == c).sum() for c in range(3)) / 9
    assert found is not None
    assert found.high - found.low == pytest.approx(2 * 1.96 * np.sqrt(variance), rel=0.05)
    assert found.p == pytest.approx(2 * stats.norm.sf(abs(found.difference) / np.sqrt(variance)), abs=0.02)


def test_a_large_difference_is_seen_and_none_is_not() -> None:
    labels = RNG(0).integers(0, 3, 200)
    good, bad = np.eye(3)[labels] + RNG(1).normal(0, 0.3, (200, 3)), RNG(2).normal(size=(200, 3))
    found = bootstrap([judge(single(good, labels))], [judge(single(bad, labels))], RNG(0))
    assert found is not None and found.p < 0.001 and found.low > 0
    same = bootstrap([judge(single(good, labels))], [judge(single(good, labels))], RNG(0))
    assert same is not None and (same.difference, same.p) == (0.0, 1.0)


def test_an_image_counts_as_one_however_many_seeds_tested_it() -> None:
    labels, a, b = RNG(0).integers(0, 3, 120), RNG(1).normal(size=(120, 3)), RNG(2).normal(size=(120, 3))
    one = bootstrap([judge(single(a, labels))], [judge(single(b, labels))], RNG(0))
    five = bootstrap([judge(single(a, labels))] * 5, [judge(single(b, labels))] * 5, RNG(0))
    assert one is not None and five is not None
    assert (five.difference, five.p) == (pytest.approx(one.difference), one.p)


# Under the null ---------------------------------------------------------------------------------------------


def trained(difficulty: np.ndarray, labels: np.ndarray, rng: np.random.Generator) -> Judged:
    """A simulated run: each image is decided rightly with a chance of its own, so runs of one method agree
    and differ."""
    right = rng.random(len(labels)) < difficulty
    decided = np.where(right, labels, (labels + 1) % 5)
    return judge(single(np.eye(5)[decided], labels))


@pytest.mark.sweep
def test_the_same_method_with_other_seeds_is_called_different_once_in_twenty() -> None:
    draws, seeds = 200, 8
    called = {"images": 0, "t": 0, "sign flip": 0}
    for draw in range(draws):
        rng = RNG([7, draw])
        labels = np.repeat(np.arange(5), [120, 60, 30, 15, 8])
        difficulty = rng.beta(2, 1, size=len(labels))
        one, other = ([trained(difficulty, labels, rng) for _ in range(seeds)] for _ in range(2))
        images = bootstrap(one[:1], other[:1], rng, draws=500)
        assert images is not None
        gaps = [a.balanced_accuracy() - b.balanced_accuracy() for a, b in zip(one, other, strict=True)]
        called["images"] += images.p < 0.05
        called["t"] += (paired_t(gaps) or 0) < 0.05
        called["sign flip"] += (sign_flip(gaps, rng) or 0) < 0.05
    for name, count in called.items():
        assert 3 <= count <= 19, f"{name} calls {count} of {draws} different"  # 10 ± 3 standard deviations


# The file ---------------------------------------------------------------------------------------------------


def test_scores_come_back_and_old_rounds_go(tmp_path) -> None:
    folder = tmp_path / "scores"
    labels, logits = RNG(0).integers(0, 3, 10), RNG(1).normal(size=(3, 10, 3)).astype(np.float32)
    for round in (1, 2, 3):
        write_scores(folder, round, single(logits[round - 1], labels, [f"ü{i}" for i in range(10)]))
    keep_scores(folder, {2, 3})
    assert sorted(path.name for path in folder.iterdir()) == [
        "round-000002.safetensors",
        "round-000003.safetensors",
    ]
    found = read_scores(folder, [2, 3])
    assert found is not None
    assert found.ids.tolist() == [f"ü{i}" for i in range(10)]
    assert torch.equal(found.logits, torch.from_numpy(logits[1:]))
    assert torch.equal(found.labels, torch.from_numpy(labels))
    assert read_scores(folder, [1]) is None and read_scores(folder, []) is None
    path = folder / "round-000002.safetensors"
    data = bytearray(path.read_bytes())
    data[-1] ^= 1
    for damaged in (b"cut", bytes(data), (folder / "round-000003.safetensors").read_bytes()):
        path.write_bytes(damaged)
        with pytest.raises(StorageError, match=r"round-000002\.safetensors is damaged or was changed"):
            read_scores(folder, [2, 3])
