"""Hostile sites, to try a federation on: FedAvg at which some sites do harm.

    [method]
    name = "equipoise.testing.attacks:SignFlip"
    sites = ["site-03", "site-07"]

Everything they send keeps the guard's rules: right shapes, finite numbers, no negative variance. So what
holds them off is `exchange.max_ratio`, which looks at sizes, and `exchange.reduce`, which looks at directions
too. BatchNorm's statistics stay honest, since the guard would notice them first.
"""

from __future__ import annotations

from dataclasses import replace

import torch
from pydantic import Field
from torch import Tensor

from equipoise.exchange.reduction import part_of
from equipoise.leaves import Upload
from equipoise.methods.base import Method
from equipoise.nets import Net
from equipoise.site import Batch, Loc


class Attack(Method):
    """FedAvg; sites that are named send an honest update, changed."""

    sites: tuple[str, ...] = ()
    """the hostile ones"""
    factor: float = Field(10.0, ge=0)
    """how many times as far as an honest site they move the model"""

    def changed(self, x: Tensor, draw: torch.Generator) -> Tensor:
        """What is sent in place of one tensor of the update."""
        return self.factor * x

    def train(self, net: Net, loc: Loc) -> Upload:
        upload = super().train(net, loc)
        if loc.site not in self.sites:
            return upload
        draw, delta = loc.generator("attack"), loc.delta(net)
        bad = {name: x if part_of(name) else self.changed(x, draw) for name, x in delta.items()}
        return upload | {"delta": replace(upload["delta"], value=bad)}


class Scale(Attack):
    """The honest update, many times as large: one site leaves the others behind."""


class SignFlip(Attack):
    """The way back, many times as far."""

    def changed(self, x: Tensor, draw: torch.Generator) -> Tensor:
        return -self.factor * x


class Noise(Attack):
    """A random direction, each tensor many times as long as the honest one."""

    def changed(self, x: Tensor, draw: torch.Generator) -> Tensor:
        noise = torch.randn(x.shape, generator=draw)
        return noise * (self.factor * x.norm() / noise.norm().clamp_min(1e-12))


class LabelFlip(Attack):
    """Training with one class called another. With `factor` = 1 it is what a wrong export of labels does by
    mistake."""

    factor: float = Field(1.0, ge=0)
    """how many times as far as an honest site they move the model"""
    flipped: int = Field(0, ge=0)
    """the class that is called another"""
    into: int = Field(1, ge=0)
    """the class it is called"""

    def loss(self, net: Net, batch: Batch, loc: Loc) -> Tensor:
        if loc.site in self.sites:
            batch = replace(batch, y=torch.where(batch.y == self.flipped, self.into, batch.y))
        return super().loss(net, batch, loc)
