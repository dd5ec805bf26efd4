"""Trackers: TensorBoard, MLflow, Weights & Biases or your own, told of every round of a run.

A name in `evaluate.trackers` is one of `TRACKERS`, or `path/to/file.py:Class`, or `package.module:Class`.
"""

from __future__ import annotations

from equipoise.trackers.base import Numbers, Run, Summary, Tracker
from equipoise.trackers.registry import TRACKERS, check_name, make
from equipoise.trackers.tracking import Tracking, describe

__all__ = ["TRACKERS", "Numbers", "Run", "Summary", "Tracker", "Tracking", "check_name", "describe", "make"]
