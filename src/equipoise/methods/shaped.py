"""BSM-FL, FedLC, FedRS, FedFocal, LDAM-FL, FedAvg-PL: FedAvg with another base loss, made from what a site
knows of its own labels.

    BSM-FL    CE(z + log π_k, y)                                        Ren et al., "Balanced meta-softmax",
    NeurIPS 2020 FedLC     CE(z − τ n_k^(−1/4), y)                                   Zhang et al., "Federated
    learning with label distribution
                                                                        skew via logits calibration", ICML
                                                                        2022
    FedRS     CE(s ⊙ z, y), s_c = α where n_kc = 0, else 1              Li & Zhan, "FedRS", KDD 2021
    FedFocal  mean of −(1 − p_y)^γ log p_y                              Sarkar et al., "Fed-Focal loss", 2020
    LDAM-FL   CE(s (cos − m_y on the true class), y; ω)                 Cao et al., "Label-distribution-aware
    margin loss", NeurIPS 2019
              m_c ∝ n_kc^(−1/4), largest `max_margin`; from `defer` · rounds on ω_c ∝ (1−β)/(1−β^n_kc); absent
              classes: m = ω = 0
    FedAvg-PL mean of BCE over the labels the site annotates            the partial loss of Sun et al.,
    "FedMLP", MICCAI 2024
FedLC and FedRS shape the logits in front of the configured base loss (scales first, then all shifts); the
others are the base loss and take the place of the configured one. Predictions use raw logits, which are s ·
cos from LDAM-FL's head.

Several labels per image do not compete, so all is within one label, between its n_c0 negatives and n_c1
positives, a side the site lacks counting as half a sample: BSM-FL shifts each logit by its log-odds; FedLC by
τ (n_c0^(−1/4) − n_c1^(−1/4)); LDAM-FL takes s m_c1 off a positive and adds s m_c0 to a negative, the rarer
side having `max_margin`, and its late weights have mean 1 over the label's images; FedFocal is the sigmoid
form. FedRS scales the logits of labels the site does not annotate, which counts under `objective = { name =
"bce", missing = "negative" }`: there α = 1 is FedAvg, and α = 0 has FedAvg-PL's gradients (as a mean over all
labels). Choices: FedLC's denominator keeps the true class, as every implementation that trains does (`strict`
leaves it out, as printed; it is unbounded below); FedRS's later code scales by count (`mode =
"proportional"`), there on logits without bias; that compares classes, so several labels are refused. FedMLP's
code takes the positive weight from the complete labels; a site here has no labels of classes it does not
annotate, so `pos_weight` counts observed ones.
Leaves the site: delta (mean), loss (mean). Stays: class counts.
"""

from __future__ import annotations

from typing import Any, ClassVar, Literal

from pydantic import Field

from equipoise.losses import ObjectiveOptions, parts
from equipoise.methods.base import Method
from equipoise.nets import Cosine


class BSMFL(Method):
    """FedAvg with balanced softmax: logits shifted by the log of the site's class shares."""

    paper: ClassVar[str] = "Ren et al. 2020"

    def base_loss(self, objective: ObjectiveOptions) -> ObjectiveOptions:
        return ObjectiveOptions(parts=(parts.LogitAdjustment(),))


class FedLC(Method):
    """FedAvg with margins by the site's class counts."""

    paper: ClassVar[str] = "Zhang et al. 2022"
    neutral: ClassVar[dict[str, Any] | None] = {"tau": 0.0}
    presets: ClassVar[dict[str, dict[str, Any]]] = {"fedmas": {"tau": 0.5}}

    tau: float = Field(1.0, ge=0)
    """strength of the margins"""
    strict: bool = False
    """leave the true class out of the denominator, as the paper prints it; tends to diverge"""

    def base_loss(self, objective: ObjectiveOptions) -> ObjectiveOptions:
        part = parts.FedLC(tau=self.tau, strict=self.strict)
        return objective.ending(part) if self.strict else objective.after(part)


class FedRS(Method):
    """FedAvg in which the logits of classes a site lacks count less."""

    paper: ClassVar[str] = "Li & Zhan 2021"
    neutral: ClassVar[dict[str, Any] | None] = {"alpha": 1.0}
    presets: ClassVar[dict[str, dict[str, Any]]] = {"fediic": {"alpha": 0.0}}

    alpha: float = Field(0.5, ge=0, le=1)
    """scale of the logits of absent classes"""
    mode: Literal["binary", "proportional"] = "binary"
    """scale absent classes only, or all classes by count relative to the largest"""

    def base_loss(self, objective: ObjectiveOptions) -> ObjectiveOptions:
        return objective.after(parts.FedRS(alpha=self.alpha, mode=self.mode))


class FedFocal(Method):
    """FedAvg with the focal loss: images that are classified well count less."""

    paper: ClassVar[str] = "Sarkar et al. 2020"
    neutral: ClassVar[dict[str, Any] | None] = {"gamma": 0.0}
    presets: ClassVar[dict[str, dict[str, Any]]] = {"fediic": {"gamma": 2.0}, "fca": {"gamma": 1.0}}

    gamma: float = Field(2.0, ge=0)
    """how much less"""

    def base_loss(self, objective: ObjectiveOptions) -> ObjectiveOptions:
        return ObjectiveOptions(parts=(parts.Focal(gamma=self.gamma),))


class LDAMFL(Method):
    """FedAvg with a cosine head, margins by the site's class counts, and classes re-weighted in the last
    rounds."""

    paper: ClassVar[str] = "Cao et al. 2019"

    max_margin: float = Field(0.5, ge=0)
    """margin of the site's rarest class"""
    scale: float = Field(30.0, gt=0)
    """factor on the cosines"""
    defer: float = Field(0.8, ge=0, le=1)
    """share of the rounds after which classes are re-weighted; 1 never does"""
    beta: float = Field(0.9999, ge=0, le=1)
    """of the effective number of samples"""

    def make_head(self, width: int, classes: int) -> Cosine:
        return Cosine(width, classes, self.scale)

    def base_loss(self, objective: ObjectiveOptions) -> ObjectiveOptions:
        part = parts.LDAM(max_margin=self.max_margin, scale=self.scale, defer=self.defer, beta=self.beta)
        return ObjectiveOptions(parts=(part,))


class FedAvgPL(Method):
    """FedAvg whose loss looks only at the labels a site annotates."""

    paper: ClassVar[str] = "Sun et al. 2024"
    tasks = ("multi",)
    neutral: ClassVar[dict[str, Any] | None] = {}
    presets: ClassVar[dict[str, dict[str, Any]]] = {"fedmlp": {"pos_weight": True}}

    pos_weight: bool = False
    """weigh positives by images per positive, from the labels the site has"""

    def base_loss(self, objective: ObjectiveOptions) -> ObjectiveOptions:
        return ObjectiveOptions(parts=(parts.BCE(pos_weight=self.pos_weight),))
