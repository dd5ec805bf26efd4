"""How a site trains: optimiser, schedule, batches, views."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, Literal

from pydantic import Field, PrivateAttr, ValidationInfo, model_validator

from equipoise.errors import ConfigError
from equipoise.locate import named, parts_of
from equipoise.names import unknown
from equipoise.options import Options
from equipoise.site.own_optimizer import TORCH, Make, find_optimizer, try_optimizer
from equipoise.site.views import VIEWS, Maker, View, ViewOptions, make_view, own_view, try_view

OPTIMIZERS = ("sgd", "adam", "adamw")
"""Equipoise's own local optimisers"""

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
    after: int = Field(0, ge=0)
    """first rounds that are not looked at, such as a method's warm-up: patience begins after them, and their
    best is not what later rounds must improve on"""


class TrainOptions(Options):
    """Rounds and local training, the same at every site."""

    rounds: int = Field(20, ge=0)
    """communication rounds"""
    epochs: int = Field(1, ge=0)
    """local epochs per round"""
    batch_size: int = Field(32, ge=1)
    """images per step"""
    optimizer: str = "adam"
    """local optimiser: `sgd`, `adam` or `adamw`; or `torch.optim:Class`, or your own, `FILE.py:Class`. `adam`
    couples weight decay with the gradient, `adamw` does not"""
    optimizer_options: dict[str, Any] = {}
    """what a `torch.optim:Class` or an optimiser of your own is made with, beside the learning rate"""
    lr: float = Field(1e-3, ge=0)
    """learning rate of the first round"""
    momentum: float = Field(0.0, ge=0, lt=1)
    """sgd, or another optimiser that takes it"""
    nesterov: bool = False
    """sgd, or another optimiser that takes it"""
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
    """augmented views per image, no fewer than the method asks for; none = those it asks for. A view of your
    own: `FILE.py:name`"""
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

    _own_optimizer: Make | None = PrivateAttr(default=None)
    _own_views: dict[str, Maker] = PrivateAttr(default_factory=dict)
    """by name: the views that are code of the config's own"""

    @model_validator(mode="after")
    def _find_views(self, info: ValidationInfo) -> TrainOptions:
        for name in self.views or ():
            if named(name):
                self._own_views[name] = own_view(name, parts_of(info, name).find(name, "train.views"))
        return self

    @model_validator(mode="after")
    def _find_optimizer(self, info: ValidationInfo) -> TrainOptions:
        name = self.optimizer
        if not named(name):
            if name not in OPTIMIZERS:
                also = ", torch.optim:Class or FILE.py:Class"
                raise ConfigError("train.optimizer: " + unknown("optimiser", name, OPTIMIZERS) + also)
            if self.optimizer_options:
                raise ConfigError(
                    f"train.optimizer_options: '{name}' has its options in [train]; remove them"
                )
            return self
        if "lr" in self.optimizer_options:
            raise ConfigError("train.optimizer_options: the learning rate is train.lr; remove lr")
        torch_has_it = name.startswith(f"{TORCH}:")
        self._own_optimizer = find_optimizer(name, None if torch_has_it else parts_of(info, name))
        try_optimizer(name, self._own_optimizer, self.optimizer_arguments(self.lr), self.persist_optimizer)
        return self

    @property
    def own_optimizer(self) -> Make | None:
        """What makes an optimiser that is none of Equipoise's."""
        return self._own_optimizer

    def optimizer_arguments(self, rate: float) -> dict[str, Any]:
        """What that is called with, beside the parameters."""
        set_here = {
            key: value for key in ("momentum", "nesterov", "weight_decay") if (value := getattr(self, key))
        }
        return {"lr": rate, **set_here, **self.optimizer_options}

    @property
    def known_views(self) -> tuple[str, ...]:
        """The names of all views there are, ours and the config's own."""
        return (*VIEWS, *self._own_views)

    def make_views(self, mean: Sequence[float], std: Sequence[float]) -> dict[str, View]:
        """All views by name; `mean` and `std` per channel are what images are normalised with."""
        return {name: make_view(name, self.augment, mean, std, self._own_views) for name in self.known_views}

    def try_views(self, channels: int, size: int) -> None:
        """Refuse views of one's own that do not work on images of this size, or not twice alike."""
        for name, maker in self._own_views.items():
            try_view(name, maker, channels, size)

    def rate(self, round: int) -> float:
        """The learning rate of a round (counted from 0)."""
        if self.schedule == "steps":
            return self.lr * self.decay ** sum(round + 1 >= milestone for milestone in self.milestones)
        if self.schedule == "cosine":
            turn = 0.5 * (1 + math.cos(math.pi * round / max(1, self.rounds)))
            return self.final_lr + (self.lr - self.final_lr) * turn
        return self.lr
