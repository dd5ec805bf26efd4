"""Generalisation and specialisation, and the choice of the round that is reported."""

from __future__ import annotations

from typing import Any

import pytest
from pydantic import ValidationError

from equipoise.errors import ConfigError
from equipoise.evaluate import EvaluateOptions, select, summarise


def test_summary_by_hand() -> None:
    pooled = {
        "balanced_accuracy": 0.6,
        "macro_auc": 0.8,
        "map": None,
        "recall": [0.5, 0.7],
        "support": [3, 4],
    }
    sites: dict[str, dict[str, Any]] = {
        "north": {
            "balanced_accuracy": 0.9,
            "macro_auc": None,
            "map": 0.5,
            "recall": [0.9, None],
            "support": [1, 0],
        },
        "south": {
            "balanced_accuracy": 0.5,
            "macro_auc": 0.6,
            "map": None,
            "recall": [0.4, 0.6],
            "support": [1, 2],
        },
        "tiny": {
            "balanced_accuracy": None,
            "macro_auc": None,
            "map": None,
            "recall": [None, None],
            "support": [0, 0],
        },
    }
    found = summarise(pooled, sites)
    assert found["generalisation"] == pooled
    assert found["specialisation"] == {
        "balanced_accuracy": pytest.approx(0.7),
        "macro_auc": pytest.approx(0.6),
        "map": pytest.approx(0.5),
    }
    assert found["average"] == {
        "balanced_accuracy": pytest.approx(0.65),
        "macro_auc": pytest.approx(0.7),
        "map": None,
    }
    assert found["worst_site"] == {"name": "south", "balanced_accuracy": 0.5}


def test_summary_without_usable_sites() -> None:
    found = summarise({"balanced_accuracy": 0.6}, {})
    assert found["specialisation"] == {"balanced_accuracy": None}
    assert found["average"] == {"balanced_accuracy": None}
    assert found["worst_site"] == {"name": None, "balanced_accuracy": None}


def rows(validation: list[float | None]) -> list[dict[str, Any]]:
    """Test scores fall while validation scores may rise, so a rule that looks at the test set is caught."""
    return [
        {"round": i, "validation": {"balanced_accuracy": v}, "test": {"balanced_accuracy": 1 - i / 100}}
        for i, v in enumerate(validation, start=1)
    ]


def test_last() -> None:
    history = rows([0.3, 0.9, 0.5])
    assert select(list(reversed(history)), "last") == (
        [3],
        {k: v for k, v in history[2].items() if k != "round"},
    )


def test_best_validation_takes_the_earliest_of_equals_and_ignores_the_test_set() -> None:
    chosen, metrics = select(rows([0.3, None, 0.8, 0.8, 0.5]), "best_validation")
    assert chosen == [3]
    assert metrics["test"]["balanced_accuracy"] == pytest.approx(0.97)
    history = [
        {"round": i, "validation": {"generalisation": {"map": m}}} for i, m in enumerate([0.1, 0.4, 0.2])
    ]
    assert select(history, "best_validation", "generalisation.map")[0] == [1]


def test_mean_of_the_last_five() -> None:
    history = rows([0.9, 0.1, 0.2, 0.3, 0.4, None])
    for i, row in enumerate(history):
        row["test"] |= {
            "recall": [i / 10, None, 0.5 if i == 5 else None],
            "worst_site": {"name": "ab"[i // 5]},
        }
        row["test"]["kind"] = "pooled"
    chosen, metrics = select(history, "mean_last_5")
    assert chosen == [2, 3, 4, 5, 6]
    assert metrics["validation"]["balanced_accuracy"] == pytest.approx(0.25)
    assert metrics["test"]["balanced_accuracy"] == pytest.approx(0.96)
    assert metrics["test"]["recall"] == [pytest.approx(0.3), None, pytest.approx(0.5)]
    assert metrics["test"]["kind"] == "pooled"
    assert metrics["test"]["worst_site"] == {"name": None}
    assert "round" not in metrics
    assert select(history[:2], "mean_last_5")[0] == [1, 2]


def test_a_choice_that_cannot_be_made_is_refused() -> None:
    with pytest.raises(ConfigError, match="did you mean 'last'"):
        select(rows([0.1]), "lst")
    with pytest.raises(ConfigError, match="no round was evaluated"):
        select([], "last")
    with pytest.raises(ConfigError, match=r"split\.validation"):
        select(rows([None, None]), "best_validation")
    with pytest.raises(ConfigError, match=r"split\.validation"):
        select([{"round": 1, "test": {"balanced_accuracy": 0.9}}], "best_validation")


def test_options() -> None:
    options = EvaluateOptions()
    assert (options.every, options.select, options.exact, options.shots) == (1, "last", True, "thirds")
    for wrong in ({"every": 0}, {"select": "best_test"}, {"evry": 1}):
        with pytest.raises(ValidationError):
            EvaluateOptions.model_validate(wrong)
