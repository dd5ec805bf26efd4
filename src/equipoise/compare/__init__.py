"""Several methods, seeds and folds on the same data: all runs through one pool of processes, then one table
with p-values."""

from __future__ import annotations

import sys

from equipoise.compare.plan import Arm, Job, Plan, arm_from, make_plan, numbers
from equipoise.compare.pool import Failure, race
from equipoise.compare.summary import compare, conclude, page, summarise
from equipoise.verb import Verb

__all__ = [
    "Arm",
    "Failure",
    "Job",
    "Plan",
    "arm_from",
    "compare",
    "conclude",
    "make_plan",
    "numbers",
    "page",
    "race",
    "summarise",
]

sys.modules[__name__].__class__ = Verb
