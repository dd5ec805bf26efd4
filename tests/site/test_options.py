"""Learning rates over rounds, by hand."""

from __future__ import annotations

import math

import pytest
from pydantic import ValidationError

from equipoise.site import TrainOptions


def test_fca_s_steps() -> None:
    # 80 rounds at 1e-3, a tenth from round 60 and again from round 70 (counted from 1).
    options = TrainOptions(rounds=80, lr=1e-3, schedule="steps", milestones=(60, 70), decay=0.1)
    for number in range(1, 81):
        expected = 1e-3 if number <= 59 else 1e-4 if number <= 69 else 1e-5
        assert options.rate(number - 1) == pytest.approx(expected, rel=1e-12), number


def test_constant() -> None:
    assert {TrainOptions(lr=0.3).rate(round) for round in (0, 7, 100)} == {0.3}


def test_cosine() -> None:
    options = TrainOptions(rounds=4, lr=1.0, schedule="cosine", final_lr=0.2)
    expected = [1.0, 0.6 + 0.4 * math.sqrt(0.5), 0.6, 0.6 - 0.4 * math.sqrt(0.5), 0.2]
    assert [options.rate(round) for round in range(5)] == pytest.approx(expected)


def test_no_rounds_divide_by_nothing() -> None:
    assert TrainOptions(rounds=0, lr=1.0, schedule="cosine").rate(0) == 1.0


@pytest.mark.parametrize(
    "bad",
    [
        {"rounds": -1},
        {"lr": -1},
        {"momentum": 1.0},
        {"participation": 0},
        {"participation": 1.1},
        {"decay": 0},
        {"batch_size": 0},
    ],
)
def test_impossible_values_are_refused(bad: dict[str, float]) -> None:
    with pytest.raises(ValidationError):
        TrainOptions(**bad)
