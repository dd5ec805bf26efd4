"""FedAvgM, FedAdam, FedYogi, FedAdagrad: the coordinator moves the model with an optimiser of its own.

Hsu, Qi, Brown, "Measuring the effects of non-identical data distribution for federated visual
classification", 2019 (FedAvgM). Reddi et al., "Adaptive federated optimization", ICLR 2021, Algorithm 2 (the
others). With Δ = Σ (n_k/Σn)(w_k − w):
    FedAvgM      v ← β v − Δ,  w ← w − η v                              (undamped, no Nesterov; β = 0, η = 1
    is FedAvg) the others   m ← β₁ m + (1−β₁) Δ,  w ← w + η m / (√v + τ)          (no bias correction)
    FedAdam      v ← β₂ v + (1−β₂) Δ²
    FedYogi      v ← v − (1−β₂) Δ² sign(v − Δ²)
    FedAdagrad   v ← v + Δ²,  β₁ = 0
Choices: only parameters are optimised, BatchNorm statistics are averaged (`apply_to_buffers` optimises both,
as Flower does); sites weigh by samples, as in the FedAvg rows beside them, where Reddi et al. take a uniform
mean; v starts at `v0` = 0. The rate of 0.01 is a start for a search: published ones run from 0.003 to 1.
FedSDC does not say which it used. Flower's FedAdam is η = 0.1 with `bias_correction`, which multiplies η by
√(1−β₂^t)/(1−β₁^t), t = 2 in the first round (Adam has t = 1); its FedAdagrad is η = 0.1, its FedYogi η =
0.01; all have τ = 1e-3 and optimise buffers.
Leaves the site: delta (mean), loss (mean). Stays: nothing.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

import torch
from pydantic import Field
from torch import Tensor

from equipoise.exchange import Ask
from equipoise.methods.base import Method
from equipoise.nets import Net
from equipoise.tree import Tree, plus, zeros_like


def parameters(net: Net, shared: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Those of the shared tensors that are trained, not measured."""
    trained = {name for name, _ in net.named_parameters()}
    return {name: tensor for name, tensor in shared.items() if name in trained}


def heavy_ball(velocity: Tree, delta: Tree, beta: float, lr: float = 1.0) -> tuple[Tree, Tree]:
    """v ← β v − Δ for every tensor that has a velocity; the new velocity, and how the model moves (the rest
    by Δ)."""
    velocity = {name: beta * v - delta[name] for name, v in velocity.items()}
    return velocity, {**delta, **{name: -lr * v for name, v in velocity.items()}}


class ServerOptimizer(Method):
    """What the server optimisers have in common."""

    apply_to_buffers: bool = False
    """optimise BatchNorm statistics like parameters, instead of averaging them"""

    def moment(self, net: Net, model: Mapping[str, Tensor]) -> Tree:
        """Zeros for every tensor the optimiser moves."""
        return zeros_like(model if self.apply_to_buffers else parameters(net, model))


class FedAvgM(ServerOptimizer):
    """FedAvg with heavy-ball momentum at the coordinator."""

    paper: ClassVar[str] = "Hsu et al. 2019"
    neutral: ClassVar[dict[str, Any] | None] = {"beta": 0.0, "lr": 1.0}
    presets: ClassVar[dict[str, dict[str, Any]]] = {"fedsdc": {"beta": 0.5}}

    beta: float = Field(0.9, ge=0, lt=1)
    """momentum"""
    lr: float = Field(1.0, gt=0)
    """server learning rate η"""

    def init(self, net: Net, shared: Mapping[str, Tensor]) -> Tree:
        server = super().init(net, shared)
        return server | {"velocity": self.moment(net, server["model"])}

    def round(self, server: Tree, ask: Ask) -> Tree:
        up = ask(self.train, model=server["model"])
        velocity, moved = heavy_ball(server["velocity"], up["delta"], self.beta, self.lr)
        return {**server, "model": plus(server["model"], moved), "velocity": velocity}


class FedAdagrad(ServerOptimizer):
    """Adagrad at the coordinator: each weight's step shrinks with all it has moved before."""

    paper: ClassVar[str] = "Reddi et al. 2021"

    lr: float = Field(0.01, gt=0)
    """server learning rate η"""
    beta1: float = Field(0.0, ge=0, lt=1)
    """memory of the first moment"""
    tau: float = Field(1e-3, gt=0)
    """adaptivity τ: how small a second moment still counts"""
    v0: float = Field(0.0, ge=0)
    """where the second moment starts; the paper's text asks for at least τ²"""

    def init(self, net: Net, shared: Mapping[str, Tensor]) -> Tree:
        server = super().init(net, shared)
        zeros = self.moment(net, server["model"])
        second = {name: torch.full_like(zero, self.v0) for name, zero in zeros.items()}
        return server | {"first": zeros, "second": second}

    def round(self, server: Tree, ask: Ask) -> Tree:
        up = ask(self.train, model=server["model"])
        delta, rate = up["delta"], self.rate(ask.round)
        first = {name: self.beta1 * m + (1 - self.beta1) * delta[name] for name, m in server["first"].items()}
        second = {name: self.second(v, delta[name] ** 2) for name, v in server["second"].items()}
        step = {name: rate * m / (second[name].sqrt() + self.tau) for name, m in first.items()}
        return {**server, "model": plus(server["model"], {**delta, **step}), "first": first, "second": second}

    def rate(self, round: int) -> float:
        """The learning rate of a round (counted from 0)."""
        return self.lr

    def second(self, v: Tensor, square: Tensor) -> Tensor:
        """The next second moment, from Δ²."""
        return v + square


class FedAdam(FedAdagrad):
    """Adam at the coordinator."""

    beta1: float = Field(0.9, ge=0, lt=1)
    """memory of the first moment"""
    beta2: float = Field(0.99, ge=0, lt=1)
    """memory of the second moment"""
    bias_correction: bool = False
    """make up for moments that start at 0, as Flower does: as Adam would, but one step ahead"""

    def rate(self, round: int) -> float:
        if not self.bias_correction:
            return self.lr
        steps = round + 2  # Flower numbers rounds from 1 and counts one more
        return float(self.lr * (1 - self.beta2**steps) ** 0.5 / (1 - self.beta1**steps))

    def second(self, v: Tensor, square: Tensor) -> Tensor:
        return self.beta2 * v + (1 - self.beta2) * square


class FedYogi(FedAdagrad):
    """Yogi at the coordinator: Adam whose second moment moves by no more than Δ² allows."""

    beta1: float = Field(0.9, ge=0, lt=1)
    """memory of the first moment"""
    beta2: float = Field(0.99, ge=0, lt=1)
    """memory of the second moment"""

    def second(self, v: Tensor, square: Tensor) -> Tensor:
        return v - (1 - self.beta2) * square * torch.sign(v - square)
