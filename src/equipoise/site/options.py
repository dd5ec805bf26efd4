"""How a site trains: optimiser, schedule, batches, views."""

from __future__ import annotations

import math
from typing import Any, Literal

from pydantic import Field

from equipoise.options import Options
from equipoise.site.views import ViewOptions

START = ("init", "init_parts", "init_sha256")
"""keys of [train] that say what the first model is; they are for whoever starts a run, and not for its
sites"""


class StopOptions(Options):
    """When a run ends before its last round."""

    patience: int = Field(ge=1)
    """evaluated rounds without an improvement after which the run ends"""
    on: Literal["validation"] = "validation"
    """what must improve: the global predictor's balanced accuracy on the validation images of all sites"""
    least: float = Field(0.0, ge=0, le=1)
    """smallest improvement that counts, from 0 to 1; 0 = any"""


class TrainOptions(Options):
    """Rounds and local training, the same at every site."""

    rounds: int = Field(20, ge=0)
    """communication rounds"""
    epochs: int = Field(1, ge=0)
    """local epochs per round"""
    batch_size: int = Field(32, ge=1)
    """images per step"""
    optimizer: Literal["sgd", "adam", "adamw"] = "adam"
    """local optimiser; `adam` couples weight decay with the gradient, `adamw` does not"""
    lr: float = Field(1e-3, ge=0)
    """learning rate of the first round"""
    momentum: float = Field(0.0, ge=0, lt=1)
    """sgd only"""
    nesterov: bool = False
    """sgd only"""
    weight_decay: float = Field(0.0, ge=0)
    """L2 penalty (decoupled for adamw)"""
    schedule: Literal["constant", "steps", "cosine"] = "constant"
    """learning rate over rounds: constant, times `decay` at each of `milestones`, or cosine down to
    `final_lr`"""
    milestones: tuple[int, ...] = ()
    """rounds (counted from 1) from which the rate is multiplied by `decay`"""
    decay: float = Field(0.1, gt=0)
    """factor at each milestone"""
    final_lr: float = Field(0.0, ge=0)
    """where the cosine ends"""
    persist_optimizer: bool = False
    """keep the optimiser's moments at the site between rounds"""
    clip_norm: float | None = Field(None, gt=0)
    """largest gradient norm, if any"""
    objective: Any = None
    """base loss: a name, `{ name = "focal", gamma = 2.0 }`, or a list; none = what the method recommends"""
    views: tuple[str, ...] | None = None
    """augmented views per image, no fewer than the method asks for; none = those it asks for"""
    augment: ViewOptions = ViewOptions()
    """strengths of the views"""
    participation: float = Field(1.0, gt=0, le=1)
    """share of sites drawn for each round"""
    stop: StopOptions | None = None
    """end early: `{ patience = 5 }` ends a run when five evaluated rounds have not improved validation;
    schedules and what counts rounds are not shortened with it"""
    init: str | None = None
    """folder of a finished run to start from: the global predictor of the round it selected"""
    init_parts: Literal["whole", "body"] | None = None
    """`whole` takes every tensor that both models have; `body` keeps new heads, as for other classes; none =
    whole"""
    init_sha256: str | None = None
    """digest of that run's state; filled in when the run begins, so that a changed one is noticed"""
    precision: Literal["fp32", "bf16"] = "fp32"
    """bf16 is faster and changes results"""
    seed: int = Field(0, ge=0)
    """every draw of the run derives from it"""

    def rate(self, round: int) -> float:
        """The learning rate of a round (counted from 0)."""
        if self.schedule == "steps":
            return self.lr * self.decay ** sum(round + 1 >= milestone for milestone in self.milestones)
        if self.schedule == "cosine":
            turn = 0.5 * (1 + math.cos(math.pi * round / max(1, self.rounds)))
            return self.final_lr + (self.lr - self.final_lr) * turn
        return self.lr
