"""The figures of the page, by run and by comparison."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import chain

from equipoise.evaluate import blend
from equipoise.report.course import convergence, costs, exchanged, progress, timing
from equipoise.report.decisions import decisions
from equipoise.report.figure import Arms, Figure
from equipoise.report.folder import Run
from equipoise.report.odd import different
from equipoise.report.quality import calibration, decided, feature_map, recalls, recalls_of_arms
from equipoise.report.sites import contribution, distribution, gains, site_gains

__all__ = ["Figure", "comparison_figures", "run_figures", "site_gains"]

ARMS = 8
"""arms a picture shows at most: the best; there are no more shapes to tell them apart by"""


def run_figures(run: Run) -> list[Figure]:
    """The figures of one run; those it has no data for are left out."""
    counts = decisions(run)
    return list(
        chain(
            distribution(run.data),
            progress(run),
            recalls(run),
            decided(run, counts),
            calibration(counts),
            contribution(run),
            different(run),
            feature_map(run),
            exchanged(run),
            timing(run),
        )
    )


def comparison_figures(runs: Arms) -> list[Figure]:
    """The figures of a comparison: each title with its runs over seeds."""
    arms = [(title, list(some)) for title, some in runs if some]
    if not arms:
        return []
    shown = _best(arms)
    return list(
        chain(
            distribution(arms[0][1][0].data),
            convergence(shown, len(arms)),
            recalls_of_arms(shown, len(arms)),
            gains(arms, shown),
            costs(arms),
        )
    )


def _best(arms: Arms) -> Arms:
    """The arms a picture has room for: those that generalise best, in their order."""

    def reached(runs: Sequence[Run]) -> float:
        values = [run.test["generalisation"]["balanced_accuracy"] for run in runs if run.test]
        return blend(values) or 0.0

    best = {title for title, _ in sorted(arms, key=lambda arm: -reached(arm[1]))[:ARMS]}
    return [(title, runs) for title, runs in arms if title in best]
