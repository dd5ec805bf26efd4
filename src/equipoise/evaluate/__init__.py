"""From counts to metrics: per class, per site, per attribute, pooled and local, and which round to report."""

from __future__ import annotations

from equipoise.evaluate.metrics import by_attribute, from_scores, from_statistics, shot_groups
from equipoise.evaluate.observer import Evaluation
from equipoise.evaluate.options import EvaluateOptions
from equipoise.evaluate.protocol import ENDING, blend, converged, select, summarise

__all__ = [
    "ENDING",
    "EvaluateOptions",
    "Evaluation",
    "blend",
    "by_attribute",
    "converged",
    "from_scores",
    "from_statistics",
    "select",
    "shot_groups",
    "summarise",
]
