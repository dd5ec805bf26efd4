"""Pure loss functions, and the base loss of a run composed from them."""

from equipoise.losses.multilabel import (
    adjusted_bce,
    bce_cells,
    class_means,
    fedlc_bce,
    masked_bce,
    masked_focal,
    masked_mean,
    positive_weight,
)
from equipoise.losses.objectives import Objective, ObjectiveOptions, make_objective, parse_objective
from equipoise.losses.parts import OBJECTIVES
from equipoise.losses.shaping import Shaper, positive_prior, prior_of
from equipoise.losses.single import (
    among,
    balanced_softmax,
    class_balanced,
    cross_entropy,
    effective_weight,
    fedlc,
    fedrs,
    focal,
    kl,
    ldam,
    logit_adjustment,
)

__all__ = [
    "OBJECTIVES",
    "Objective",
    "ObjectiveOptions",
    "Shaper",
    "adjusted_bce",
    "among",
    "balanced_softmax",
    "bce_cells",
    "class_balanced",
    "class_means",
    "cross_entropy",
    "effective_weight",
    "fedlc",
    "fedlc_bce",
    "fedrs",
    "focal",
    "kl",
    "ldam",
    "logit_adjustment",
    "make_objective",
    "masked_bce",
    "masked_focal",
    "masked_mean",
    "parse_objective",
    "positive_prior",
    "positive_weight",
    "prior_of",
]
