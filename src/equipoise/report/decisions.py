"""What the global predictor decided on the union of test sets, and how sure it was: counts behind several
figures."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise

import numpy as np
import torch

from equipoise.report.folder import Run
from equipoise.site.measure import FIXED_POINT, tallies


@dataclass(frozen=True, eq=False)
class Decisions:
    """Counts, and their means where several rounds or predictors are reported."""

    decided: np.ndarray
    """[C, C] true class by predicted class; for several labels [C, 2, 2], per class truth by decision"""
    calibration: np.ndarray
    """[bins, 3]: decisions, how many were right, and the sum of their confidences"""

    @property
    def ece(self) -> float:
        """Expected calibration error: Σ over bins |right − sure|, per decision."""
        count, right, sure = self.calibration.T
        return float(np.abs(right - sure).sum() / count.sum())

    def bins(self) -> list[tuple[float, float, float, float, float]]:
        """From, to, decisions, mean confidence, share that was right; the last two are 0 where there is no
        decision."""
        edges = np.linspace(0, 1, len(self.calibration) + 1).tolist()
        return [
            (low, high, count, sure / count if count else 0.0, right / count if count else 0.0)
            for (low, high), (count, right, sure) in zip(
                pairwise(edges), self.calibration.tolist(), strict=True
            )
        ]


def decisions(run: Run) -> Decisions | None:
    """From the scores a simulation keeps, or the counts a federation noted; None where there are neither."""
    scores = run.scores
    if scores is not None:
        pages = [tallies(page, scores.labels, task=scores.task) for page in scores.logits]
        stacks = {name: torch.stack([page[name] for page in pages]) for name in pages[0]}
        counts = {name: stack.double().mean(0).numpy() for name, stack in stacks.items()}
    else:
        noted = (run.test or {}).get("counts") or {}
        counts = {name: np.array(table, dtype=np.float64) for name, table in noted.items()}
    decided = counts.get("confusion", counts.get("binary"))
    if decided is None or not decided.sum():
        return None
    return Decisions(decided, counts["calibration"] / np.array([1, 1, FIXED_POINT]))
