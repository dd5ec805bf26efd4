"""The parts an objective is made of: each shapes logits, or is the criterion, or both."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import ClassVar, Literal

import torch
from pydantic import Field
from torch import Tensor

from equipoise.errors import ConfigError
from equipoise.losses import multilabel, shaping, single
from equipoise.losses.shaping import Shaper
from equipoise.options import Options

Task = Literal["single", "multi"]
Criterion = Callable[..., Tensor]


@dataclass(frozen=True)
class Facts:
    """What an objective may know: the site's own labels, and how far the run is."""

    counts: Tensor
    """float64 [C]: samples per class; positives per label for a multi-label task"""
    total: Tensor
    """float64, scalar or [C]: samples a count is out of: those that have the label"""
    labelled: Tensor | None
    """bool [C]: the labels the site annotates on some image; None means each"""
    task: Task
    round: int
    rounds: int

    @property
    def annotated(self) -> Tensor:
        """bool [C]: the labels the site annotates, spelt out."""
        return torch.ones_like(self.counts, dtype=torch.bool) if self.labelled is None else self.labelled

    @property
    def sides(self) -> Tensor:
        """float64 [C, 2]: negatives and positives of every label."""
        return torch.stack([self.total - self.counts, self.counts], 1)

    def known(self, shaper: Shaper) -> Shaper:
        """The shift without the labels the site knows nothing of."""
        if self.labelled is None or shaper.shift is None:
            return shaper
        return Shaper(shaper.scale, shaper.shift * self.labelled)


class Part(Options):
    """One element of an objective: it shapes logits, or it is the criterion, or both."""

    name: str
    tasks: ClassVar[tuple[Task, ...]] = ("single",)
    prior: ClassVar[bool] = False
    """shifts logits by the site's class shares"""

    @property
    def last(self) -> bool:
        """True when nothing may follow, because this part brings its own criterion."""
        return False

    def shaper(self, facts: Facts) -> Shaper | None:
        return None

    def criterion(self, facts: Facts) -> Criterion | None:
        return None


class CrossEntropy(Part):
    """Softmax cross-entropy."""

    name: Literal["cross_entropy"] = "cross_entropy"

    @property
    def last(self) -> bool:
        return True


class BalancedSoftmax(Part):
    """Cross-entropy of logits shifted by the log of the site's class prior."""

    name: Literal["balanced_softmax"] = "balanced_softmax"
    prior: ClassVar[bool] = True

    def shaper(self, facts: Facts) -> Shaper:
        return shaping.prior_shift(shaping.prior_of(facts.counts))


class LogitAdjustment(Part):
    """Balanced softmax with the log prior times tau; multi-label: with the log-odds of each label."""

    name: Literal["logit_adjustment"] = "logit_adjustment"
    tasks: ClassVar[tuple[Task, ...]] = ("single", "multi")
    prior: ClassVar[bool] = True
    tau: float = Field(default=1.0, ge=0)
    """strength; 0 is cross-entropy, 1 balanced softmax"""

    def shaper(self, facts: Facts) -> Shaper:
        if facts.task == "single":
            return shaping.prior_shift(shaping.prior_of(facts.counts), self.tau)
        return facts.known(shaping.odds_shift(shaping.positive_prior(facts.counts, facts.total), self.tau))


class FedRS(Part):
    """Logits of classes the site lacks, or of labels it does not annotate, are scaled down (FedRS)."""

    name: Literal["fedrs"] = "fedrs"
    tasks: ClassVar[tuple[Task, ...]] = ("single", "multi")
    alpha: float = Field(default=0.5, ge=0, le=1)
    """scale of absent classes; 1 is cross-entropy. Multi-label: of labels not annotated, where the criterion
    counts them at all"""
    mode: Literal["binary", "proportional"] = "binary"
    """binary: absent classes only (the paper); proportional (single-label): all classes, by count relative to
    the largest"""

    def shaper(self, facts: Facts) -> Shaper:
        if facts.task == "single":
            return shaping.restriction(facts.counts, self.alpha, self.mode)
        if self.mode == "proportional":
            raise ConfigError(
                "objective 'fedrs': mode = \"proportional\" weighs classes against each other, and several "
                "labels "
                'per image do not compete: use mode = "binary"'
            )
        # A label that is annotated and never found has negatives to learn from: it is not absent.
        return shaping.restriction(facts.annotated, self.alpha)


class ClassBalanced(Part):
    """Cross-entropy weighted by the effective number of samples per class."""

    name: Literal["class_balanced"] = "class_balanced"
    beta: float = Field(default=0.9999, ge=0, le=1)
    """0 weighs classes alike, 1 by inverse frequency"""

    @property
    def last(self) -> bool:
        return True

    def criterion(self, facts: Facts) -> Criterion:
        return partial(single.class_balanced, counts=facts.counts, beta=self.beta)


class LDAM(Part):
    """Margins by class frequency on a cosine head, re-weighted late (LDAM-DRW); multi-label: by side."""

    name: Literal["ldam"] = "ldam"
    tasks: ClassVar[tuple[Task, ...]] = ("single", "multi")
    max_margin: float = Field(default=0.5, ge=0)
    """margin of the rarest class; multi-label: of the rarer side of each label"""
    scale: float = Field(default=30.0, gt=0)
    """factor on the cosines, in training and prediction alike"""
    defer: float = Field(default=0.8, ge=0, le=1)
    """share of the rounds after which classes are re-weighted; 1 never re-weights"""
    beta: float = Field(default=0.9999, ge=0, le=1)
    """of the effective number of samples"""

    @property
    def last(self) -> bool:
        return True

    def criterion(self, facts: Facts) -> Criterion:
        late = facts.round >= self.defer * facts.rounds
        if facts.task == "single":
            weight = single.effective_weight(facts.counts, self.beta) if late else None
            bound = partial(single.ldam, counts=facts.counts, max_margin=self.max_margin)
        else:
            known = facts.annotated[:, None]  # of a label the site does not annotate it knows no side
            weight = torch.where(known, multilabel.side_weight(facts.sides, self.beta), 1.0) if late else None
            margin = multilabel.side_margin(facts.sides, self.max_margin) * known
            bound = partial(multilabel.ldam_cells, margin=margin)
        return partial(bound, scale=self.scale, weight=weight)


class MultiPart(Part):
    """A part that multi-label tasks may use."""

    over: Literal["labelled", "all"] = "labelled"
    """multi-label: divide the sum by the cells that count, or by all cells as FedMLP does"""


class Focal(MultiPart):
    """Focal loss: well-classified samples count less; softmax or, for multi-label tasks, sigmoid."""

    name: Literal["focal"] = "focal"
    tasks: ClassVar[tuple[Task, ...]] = ("single", "multi")
    gamma: float = Field(default=2.0, ge=0)
    """0 is cross-entropy"""

    @property
    def last(self) -> bool:
        return True

    def criterion(self, facts: Facts) -> Criterion | None:
        if self.gamma == 0:
            return None
        if facts.task == "single":
            return partial(single.focal, gamma=self.gamma)
        return lambda logits, y: single.focus(multilabel.bce_cells(logits, y), self.gamma)


class FedLC(MultiPart):
    """A margin of tau * n^(-1/4) per class (FedLC); multi-label: between the two sides of each label."""

    name: Literal["fedlc"] = "fedlc"
    tasks: ClassVar[tuple[Task, ...]] = ("single", "multi")
    tau: float = Field(default=1.0, ge=0)
    """strength; 0 is cross-entropy"""
    strict: bool = False
    """single-label: leave the true class out of the denominator as the paper prints it; tends to diverge"""

    @property
    def last(self) -> bool:
        return self.strict

    def shaper(self, facts: Facts) -> Shaper:
        if facts.task == "single":
            return shaping.margin_shift(facts.counts, self.tau)
        negatives, positives = facts.sides.unbind(1)
        return facts.known(shaping.binary_margin_shift(positives, negatives, self.tau))

    def criterion(self, facts: Facts) -> Criterion | None:
        if not self.strict:
            return None
        if facts.task == "multi":
            raise ConfigError("objective 'fedlc': strict = true has no multi-label form; remove it")
        return single.strict_cross_entropy


class BCE(MultiPart):
    """Binary cross-entropy of each label."""

    name: Literal["bce"] = "bce"
    tasks: ClassVar[tuple[Task, ...]] = ("multi",)
    pos_weight: bool = False
    """weigh positives by n/positives, from the labels the site has"""
    missing: Literal["ignore", "negative"] = "ignore"
    """labels that are missing: left out, or trained on as absent findings"""

    @property
    def last(self) -> bool:
        return True

    def criterion(self, facts: Facts) -> Criterion:
        if not self.pos_weight:
            return multilabel.bce_cells
        weight = multilabel.positive_weight(facts.counts, facts.total, facts.labelled)
        return partial(multilabel.bce_cells, pos_weight=weight)


class AdjustedBCE(MultiPart):
    """Binary cross-entropy of logits shifted by the log-odds of each label at the site (FedMLP)."""

    name: Literal["adjusted_bce"] = "adjusted_bce"
    tasks: ClassVar[tuple[Task, ...]] = ("multi",)
    prior: ClassVar[bool] = True
    absent: Literal["clip", "none"] = "clip"
    """a label without positives: as if half a sample were positive, or no shift"""

    def shaper(self, facts: Facts) -> Shaper:
        shaper = facts.known(shaping.odds_shift(shaping.positive_prior(facts.counts, facts.total)))
        if self.absent == "clip" or shaper.shift is None:
            return shaper
        return Shaper(shift=shaper.shift * (facts.counts > 0))


OBJECTIVES: dict[str, type[Part]] = {
    "cross_entropy": CrossEntropy,
    "balanced_softmax": BalancedSoftmax,
    "logit_adjustment": LogitAdjustment,
    "fedrs": FedRS,
    "fedlc": FedLC,
    "focal": Focal,
    "class_balanced": ClassBalanced,
    "ldam": LDAM,
    "bce": BCE,
    "adjusted_bce": AdjustedBCE,
}
"""Every part by name; its docstring is its one-line description."""
