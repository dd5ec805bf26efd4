"""Figures of a table's rows: mean, spread, paired differences with their 95 % interval."""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from scipy import stats

from equipoise.compare.gap import LEAST
from equipoise.evaluate.protocol import POINT, ROUNDING
from evidence.records import Record


@dataclass(frozen=True)
class Difference:
    """A mean difference over seeds, and where it lies 95 times of 100 (Student's t over seeds)."""

    mean: float
    low: float
    high: float
    seeds: int

    def __str__(self) -> str:
        text = f"{100 * self.mean:+.1f}"
        return text if self.seeds < 2 else f"{text} ({100 * self.low:+.1f} … {100 * self.high:+.1f})"


def value(record: Record, view: str, metric: str) -> float | None:
    found = record["metrics"].get(view, {}).get(metric)
    return None if found is None else float(found)


def on_validation(record: Record, view: str, metric: str) -> float | None:
    """The figure on validation images at the last evaluation; of balanced accuracy alone it is kept."""
    _, shared, own, *_ = record["curve"][-1]
    wanted = {"generalisation": (shared,), "specialisation": (own,), "average": (shared, own)}[view]
    kept = metric == "balanced_accuracy" and None not in wanted
    return statistics.mean(wanted) if kept else None


def values(records: Sequence[Record], view: str, metric: str) -> list[float]:
    return [one for record in records if (one := value(record, view, metric)) is not None]


def spread(found: Sequence[float]) -> str:
    """Mean ± standard deviation in per cent."""
    if not found:
        return "–"
    text = f"{100 * statistics.mean(found):.1f}"
    return text if len(found) < 2 else f"{text} ± {100 * statistics.stdev(found):.1f}"


def difference(
    one: Sequence[Record],
    other: Sequence[Record],
    view: str,
    metric: str = "balanced_accuracy",
    figure: Callable[[Record, str, str], float | None] = value,
) -> Difference | None:
    """One row less another, over the seeds that both have; None where there is none."""
    mine = {record["seed"]: figure(record, view, metric) for record in one}
    theirs = {record["seed"]: figure(record, view, metric) for record in other}
    pairs = [(mine[seed], theirs[seed]) for seed in mine if seed in theirs]
    gaps = [a - b for a, b in pairs if a is not None and b is not None]
    if not gaps:
        return None
    mean = statistics.mean(gaps)
    if len(gaps) < 2:
        return Difference(mean, -math.inf, math.inf, 1)
    half = float(stats.t.ppf(0.975, len(gaps) - 1)) * statistics.stdev(gaps) / math.sqrt(len(gaps))
    return Difference(mean, mean - half, mean + half, len(gaps))


def closed(
    joined: Sequence[Record],
    alone: Sequence[Record],
    pooled: Sequence[Record],
    figure: Callable[[Record], float | None],
) -> str:
    """How much of the gap between training alone and pooling all images was closed, in per cent, over the
    seeds that all three have; a dash where the gap is below a point."""
    found = [{one["seed"]: figure(one) for one in rows} for rows in (joined, alone, pooled)]
    runs = [tuple(one[seed] for one in found) for seed in found[0] if all(seed in one for one in found)]
    known = [(j, a, p) for j, a, p in runs if j is not None and a is not None and p is not None]
    if not known:
        return "–"
    gap = statistics.mean(p - a for _, a, p in known)
    return "–" if gap < LEAST else f"{100 * statistics.mean(j - a for j, a, _ in known) / gap:.0f}"


def drift(records: Sequence[Record]) -> float | None:
    """How far a row was still moving: mean validation balanced accuracy of its last quarter of rounds, less
    that of the quarter before, over all its runs; None where nobody can tell."""
    found = [record["moved"] for record in records]
    return None if not found or None in found else statistics.mean(found)


def converged(*rows: Sequence[Record]) -> bool:
    """Whether all of the rows moved by a point at most."""
    found = [drift(records) for records in rows]
    return all(one is not None and abs(one) <= POINT + ROUNDING for one in found)


def settled(records: Sequence[Record]) -> str:
    """How far a row was still moving, marked where that is more than a point; a dash where none can tell."""
    found = drift(records)
    return "–" if found is None else f"{100 * found:+.1f}" + ("" if converged(records) else " †")
