"""Using a trained model: predict images, test it on new data, export it."""

from __future__ import annotations

from equipoise.use.formats import export
from equipoise.use.judge import evaluate
from equipoise.use.predictor import Facts, Input, Prediction, Predictor
from equipoise.use.source import load

__all__ = ["Facts", "Input", "Prediction", "Predictor", "evaluate", "export", "load"]
