"""Differential privacy of single images: what a config says of it, and what a site's training is told."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field

from pydantic import Field, model_validator

from equipoise.errors import ConfigError
from equipoise.nets import Net
from equipoise.nets.norm import batch_norms
from equipoise.options import Options
from equipoise.site.accounting import Spent, noise_for
from equipoise.site.noise import Seeded, Source

COUNTS, TRAIN = "class counts", "train images"
"""what an answer may be computed from beside noisy steps: how many images of each class there are, and the
training images themselves"""


class PrivacyOptions(Options):
    """Differential privacy: every image's part in a training step is clipped, and noise added. Leave the
    section out for training without it."""

    epsilon: float | None = Field(None, gt=0, allow_inf_nan=False)
    """ε that a site has spent when all planned rounds are done, at most; the noise follows from it, site by
    site"""
    noise: float | None = Field(None, ge=0, allow_inf_nan=False)
    """in place of `epsilon`: standard deviation of the noise, in multiples of `clip`; 0 clips only, and ε is
    infinite"""
    clip: float = Field(1.0, gt=0, allow_inf_nan=False)
    """largest norm of one image's gradient"""
    delta: float = Field(1e-5, gt=0, lt=1)
    """δ; must be below one over the training images of every site"""

    @model_validator(mode="after")
    def _either(self) -> PrivacyOptions:
        if (self.epsilon is None) == (self.noise is None):
            raise ConfigError(
                "[privacy] needs either epsilon, what a site may spend in all, or noise, which sets it "
                "directly: set one of the two"
            )
        return self

    def noise_of(self, images: int, batch_size: int, passes: int) -> float:
        """The noise of a site with so many images, which trains so many passes over them."""
        if self.noise is not None:
            return self.noise
        assert self.epsilon is not None
        plan = steps_of(images, batch_size, passes, 0.0)
        return noise_for(self.epsilon, self.delta, plan.rate, plan.steps)

    def check_images(self, site: str, images: int) -> None:
        """Refuse a δ with which a whole image could be told."""
        if self.delta * images >= 1:
            raise ConfigError(
                f"privacy.delta = {self.delta:g} is not below 1/{images}, and '{site}' has so many training "
                "images: it would allow one of them to be told in full; set a smaller one"
            )


def steps_of(images: int, batch_size: int, passes: int, noise: float) -> Spent:
    """The steps of so many passes over a site's images, each of which is in a step by the same chance."""
    size = min(batch_size, max(1, images))
    return Spent(
        noise=noise, rate=size / max(1, images), steps=passes * math.ceil(images / size) if images else 0
    )


def check_net(net: Net) -> None:
    """Refuse a network in which the images of a batch see each other."""
    if batch_norms(net) and not net.frozen:
        raise ConfigError(
            "[privacy] needs a gradient of every single image, and BatchNorm mixes the images of a batch: "
            'set net.batch_norm = "group", or "frozen"'
        )


@dataclass(frozen=True)
class Mechanism:
    """How one site trains privately."""

    clip: float
    noise: float
    source: Source = Seeded
    """where noise and choice of images come from"""
    spend: Callable[[Spent], None] = lambda spent: None
    """told before the steps are taken; may refuse them"""


@dataclass
class Trace:
    """What the answer to one question was computed from."""

    passes: int = 0
    """passes over the training images in clipped, noisy steps"""
    reads: set[str] = field(default_factory=set)
    """what else of the site's data"""
