"""Two views of one federation (generalisation, specialisation), and the round that is reported."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import zip_longest
from statistics import mean
from typing import Any

import numpy as np

from equipoise.errors import ConfigError
from equipoise.names import unknown

RULES = ("last", "best_validation", "mean_last_5")
ENDING = "ending_of"
"""in the row of a method's ending: the round it started from"""
FIGURE = "generalisation.balanced_accuracy"
"""the validation metric that chooses a round, and by which a run has converged"""
POINT = 0.01
"""how far apart the last two quarters of a run that has converged may be"""
FEWEST = 2
"""evaluated rounds that each of the two quarters needs"""
ROUNDING = 1e-9


def summarise(
    generalisation: dict[str, Any],
    per_site: dict[str, dict[str, Any]],
    mean: Mapping[str, float | None] | None = None,
) -> dict[str, Any]:
    """The pooled test, the mean over sites of their own tests, the mean of both, and the site that fares
    worst.

    Only scalar metrics are averaged; a site where a metric is None is left out of that metric's mean. `mean`
    is the mean over sites, where it is all that is known of them.
    """
    keys = [key for key, value in generalisation.items() if _is_number(value) or value is None]
    specialisation = {key: blend([site.get(key) for site in per_site.values()]) for key in keys}
    if mean is not None:
        specialisation = {key: mean.get(key) for key in keys}
    both = {key: (generalisation[key], specialisation[key]) for key in keys}
    values = ((site.get("balanced_accuracy"), name) for name, site in per_site.items())
    scored = [(value, name) for value, name in values if value is not None]
    worst = min(scored, default=(None, None))
    return {
        "generalisation": generalisation,
        "specialisation": specialisation,
        "average": {key: None if None in pair else sum(pair) / 2 for key, pair in both.items()},
        "worst_site": {"name": worst[1], "balanced_accuracy": worst[0]},
    }


def candidates(history: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """The rows that a rule chooses among: the rounds of training. A run that trains nothing has an ending at
    most, and reports that."""
    return [row for row in history if ENDING not in row] or history


def select(
    history: list[dict[str, Any]], rule: str, key: str = "balanced_accuracy"
) -> tuple[list[int], dict[str, Any]]:
    """The rounds that `rule` reports and their metrics, without the round number. The test set is never used
    to choose.

    A rule chooses among the rounds of training; a round that has its ending in the history is reported by
    that one's row, so a mean is over rows of one kind, and no ending is chosen or left out by its own score.
    `key` names the validation metric; dots lead into nested metrics ("generalisation.balanced_accuracy"). Of
    equally good rounds the earliest is taken. A mean goes over every number in the rows; what is not a number
    is kept if it is the same in all of them, and None otherwise.
    """
    if rule not in RULES:
        raise ConfigError(unknown("evaluate.select", rule, RULES))
    rows = sorted(candidates(history), key=lambda row: row["round"])
    if not rows:
        raise ConfigError(
            "evaluate.every: no round was evaluated, so there is none to select; lower it or add rounds"
        )
    if rule == "last":
        chosen = rows[-1:]
    elif rule == "mean_last_5":
        chosen = rows[-5:]
    else:
        scored = [(score, row) for row in rows if (score := _look_up(row.get("validation"), key)) is not None]
        if not scored:
            raise ConfigError(
                f"evaluate.select is 'best_validation', but no round has a validation '{key}'; "
                "set split.validation above 0 or select 'last'"
            )
        # `max` keeps the first of equals, which is the earliest.
        chosen = [max(scored, key=lambda pair: pair[0])[1]]
    endings = {row[ENDING]: row for row in history if ENDING in row}
    chosen = [endings.get(row["round"], row) for row in chosen]
    beside = ("round", ENDING)
    metrics = [{name: value for name, value in row.items() if name not in beside} for row in chosen]
    return [row["round"] for row in chosen], metrics[0] if len(metrics) == 1 else blend(metrics)


def converged(history: Sequence[dict[str, Any]]) -> bool | None:
    """Whether a run has moved by a point at most; None where nobody can tell."""
    found = moved(history)
    return None if found is None else abs(found) <= POINT + ROUNDING


def moved(history: Sequence[dict[str, Any]]) -> float | None:
    """How far the mean validation balanced accuracy of the last quarter of rounds is above that of the
    quarter before; None where there are too few evaluated rounds, or no validation images.

    A method's ending is no round of training and does not count.
    """
    last = max((row["round"] for row in history if ENDING not in row), default=0)
    validated = list(_validated(history))
    late = [value for round, value in validated if 4 * round > 3 * last]
    before = [value for round, value in validated if 2 * last < 4 * round <= 3 * last]
    if min(len(late), len(before)) < FEWEST:
        return None
    return mean(late) - mean(before)


def stopped(
    history: Sequence[dict[str, Any]], patience: int, least: float = 0.0, after: int = 0
) -> tuple[int, str] | None:
    """The round after which training ends early, and why; None while validation still improves.

    It follows from the rounds up to that one alone, so a run that is resumed ends where it would have.
    Rounds up to `after` are left out: neither do they count as waiting, nor is their best to be improved on.
    """
    best, since, waited = -1.0, 0, 0
    for round, value in _validated(history):
        if round <= after:
            continue
        if value > best and value - best >= least - ROUNDING:
            best, since, waited = value, round, 0
            continue
        waited += 1
        if waited == patience:
            waiting = "an evaluated round" if patience == 1 else f"{patience} evaluated rounds"
            text = f"balanced accuracy on the validation images has not improved since round {since}"
            return round, f"{text}, for {waiting}"
    return None


def _validated(history: Sequence[dict[str, Any]]) -> Iterator[tuple[int, float]]:
    """The evaluated rounds of training in order, each with its validation balanced accuracy."""
    for row in sorted((row for row in history if ENDING not in row), key=lambda row: row["round"]):
        value = _look_up(row.get("validation"), FIGURE)
        if value is not None:
            yield row["round"], value


def _look_up(metrics: Any, key: str) -> float | None:
    """The number at a dotted key, or None where there is none."""
    for part in key.split("."):
        metrics = metrics.get(part) if isinstance(metrics, dict) else None
    return metrics if _is_number(metrics) else None


def blend(values: list[Any]) -> Any:
    """The mean of like-shaped values, leaf by leaf, over those that are not None."""
    present = [value for value in values if value is not None]
    if not present:
        return None
    if all(isinstance(value, dict) for value in present):
        names = dict.fromkeys(name for value in present for name in value)
        return {name: blend([value.get(name) for value in present]) for name in names}
    if all(isinstance(value, list) for value in present):
        return [blend(list(column)) for column in zip_longest(*present)]
    if all(_is_number(value) for value in present):
        return float(np.mean(present))
    return present[0] if all(value == present[0] for value in present) else None


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)
