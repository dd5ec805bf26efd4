"""Intervals of single figures: Wilson's against scipy, the bootstrap against known spreads."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from scipy.stats import binomtest, norm

from equipoise.evaluate.scores import Scores
from equipoise.evaluate.significance import interval, judge, wilson


@pytest.mark.parametrize(("hits", "count"), [(0, 3), (1, 10), (12, 12), (37, 80), (900, 1000)])
def test_wilson_is_scipys(hits: int, count: int) -> None:
    expected = binomtest(hits, count).proportion_ci(0.95, method="wilson")
    assert wilson(hits / count, count) == pytest.approx((expected.low, expected.high), abs=1e-7)


def scores(right: list[np.ndarray]) -> Scores:
    """One class per array; an image is given its own class where the array says so, otherwise the next
    one."""
    labels = np.concatenate([np.full(len(part), i) for i, part in enumerate(right)])
    guess = np.where(np.concatenate(right), labels, (labels + 1) % len(right))
    logits = torch.nn.functional.one_hot(torch.from_numpy(guess), len(right)).float()
    return Scores("single", np.arange(len(labels)).astype(str), torch.from_numpy(labels), logits[None])


def test_the_bootstrap_has_the_spread_of_a_mean_of_recalls() -> None:
    """Recalls 0.6 of 400 and 0.9 of 50: the variance of their mean is (0.6·0.4/399 + 0.9·0.1/49) / 4."""
    found = judge(scores([np.arange(400) < 240, np.arange(50) < 45]))
    low, high = interval(found, np.random.default_rng(0), draws=20_000)
    deviation = np.sqrt(0.24 / 399 + 0.09 / 49) / 2
    reach = norm.ppf(0.975) * deviation
    assert high - low == pytest.approx(
        2 * reach, rel=0.03
    )  # a little skewed, as the recall of 0.9 is, so not around 0.75


def test_a_model_that_is_always_right_has_no_spread() -> None:
    assert interval(judge(scores([np.ones(5, bool), np.ones(9, bool)])), np.random.default_rng(0)) == (
        1.0,
        1.0,
    )


def test_chunks_do_not_change_the_draws(monkeypatch: pytest.MonkeyPatch) -> None:
    found = judge(scores([np.arange(40) < 20, np.arange(30) < 25]))
    wide = interval(found, np.random.default_rng(3), draws=4000)
    monkeypatch.setattr("equipoise.evaluate.significance.CHUNK", 70 * 500)
    assert interval(found, np.random.default_rng(3), draws=4000) == pytest.approx(wide, abs=0.01)
