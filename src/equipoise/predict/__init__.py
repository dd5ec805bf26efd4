"""A trained network at work: class probabilities of images, and where classes lie in its features."""

from equipoise.predict.features import class_maps
from equipoise.predict.predictor import Origin, Prediction, Predictor, assemble

__all__ = ["Origin", "Prediction", "Predictor", "assemble", "class_maps"]
