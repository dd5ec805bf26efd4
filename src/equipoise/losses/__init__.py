"""Pure loss functions, and the base loss of a run composed from them."""

from equipoise.losses.multilabel import bce_cells, class_means, filled, known, masked_bce, masked_mean
from equipoise.losses.objectives import (
    Objective,
    ObjectiveOptions,
    knows_counts,
    make_objective,
    parse_objective,
)
from equipoise.losses.parts import OBJECTIVES
from equipoise.losses.shaping import prior_of
from equipoise.losses.single import among, kl

__all__ = [
    "OBJECTIVES",
    "Objective",
    "ObjectiveOptions",
    "among",
    "bce_cells",
    "class_means",
    "filled",
    "kl",
    "known",
    "knows_counts",
    "make_objective",
    "masked_bce",
    "masked_mean",
    "parse_objective",
    "prior_of",
]
