"""Using a trained model: predict images, test it on new data, export it."""

from __future__ import annotations

from equipoise.blueprint import Blueprint
from equipoise.predict import Origin, Prediction, Predictor
from equipoise.use.formats import export
from equipoise.use.judge import evaluate
from equipoise.use.source import load

__all__ = ["Blueprint", "Origin", "Prediction", "Predictor", "evaluate", "export", "load"]
