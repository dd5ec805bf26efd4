"""The `[evaluate]` section of the config."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal

from pydantic import Field, PrivateAttr, ValidationInfo, field_validator, model_validator

from equipoise.errors import ConfigError
from equipoise.evaluate.own import STANDARD, Metric, find_metric
from equipoise.locate import named, parts_of
from equipoise.options import Options


class EvaluateOptions(Options):
    """When and how a model is evaluated."""

    every: int = Field(default=1, ge=1)
    """evaluate after every so many rounds; the last round always is"""
    sites: int | None = Field(default=None, ge=1)
    """evaluate at so many sites, drawn once for the whole run from those with validation or test images; none
    = at all"""
    select: Literal["last", "best_validation", "mean_last_5"] = "last"
    """which round is reported, with the method's ending if it has one; the test set is never used to
    choose"""
    own: Literal["tuned", "received"] = "tuned"
    """a site's own predictor: its body after the last local training, or the received body; with its private
    parts"""
    exact: bool = True
    """in simulation, compute AUC from the scores themselves instead of from histograms"""
    per_site: bool = True
    """tell the coordinator what each site's own predictor reaches there; false: only the mean over sites,
    which can be masked"""
    shots: Literal["absolute", "thirds"] = "thirds"
    """head, medium and tail classes by number of training images, or by thirds of the classes"""
    head_over: int = Field(default=700, ge=0)
    """with `shots = "absolute"`: a class of more training images than this is a head class"""
    tail_under: int = Field(default=70, ge=0)
    """with `shots = "absolute"`: a class of fewer training images than this is a tail class"""
    attributes: bool = True
    """also report the metrics per value of each attribute column"""
    metrics: tuple[str, ...] = ()
    """metrics of your own beside ours, each `FILE.py:name`; in simulation, with `exact`"""
    trackers: tuple[str | dict[str, Any], ...] = ()
    """who else gets every round: `"tensorboard"`, `"mlflow"`, `"wandb"`, `"FILE.py:Class"`, or a table
    of such a `name` and options"""

    @property
    def endings(self) -> int:
        """From how many rounds the method's ending starts, at most: those that may be reported."""
        return 5 if self.select == "mean_last_5" else 1

    @field_validator("trackers")
    @classmethod
    def _are_named(cls, trackers: tuple[str | dict[str, Any], ...]) -> tuple[str | dict[str, Any], ...]:
        names = [one if isinstance(one, str) else one.get("name") for one in trackers]
        if not all(isinstance(name, str) for name in names):
            raise ValueError('a table needs a name, as in { name = "mlflow", uri = "…" }')
        if len(set(names)) < len(names):
            raise ValueError("one is named twice")
        return trackers

    _own: dict[str, Metric] = PrivateAttr(default_factory=dict)

    @property
    def scored(self) -> bool:
        """Whether the scores of single images are reported."""
        return self.exact and self.per_site

    @property
    def own_metrics(self) -> Mapping[str, Metric]:
        """The metrics of one's own, by the name that tables call them."""
        return self._own

    @model_validator(mode="after")
    def _find_metrics(self, info: ValidationInfo) -> EvaluateOptions:
        if self.metrics and not self.scored:
            raise ConfigError(
                "evaluate.metrics need the scores of every image: set evaluate.exact and evaluate.per_site = "
                "true, or remove them"
            )
        for name in self.metrics:
            if not named(name):
                known = (
                    "is always computed: remove it" if name in STANDARD else "is not of the form FILE.py:name"
                )
                raise ConfigError(f"evaluate.metrics: '{name}' {known}")
            short, metric = find_metric(name, parts_of(info, name))
            if short in self._own:
                raise ConfigError(f"evaluate.metrics: two metrics are called '{short}': rename one")
            self._own[short] = metric
        return self

    @model_validator(mode="after")
    def _groups_are_apart(self) -> EvaluateOptions:
        if self.tail_under > self.head_over + 1:
            raise ValueError(
                f"tail_under = {self.tail_under} is above head_over = {self.head_over}, so a class could "
                f"be both: lower it"
            )
        return self
