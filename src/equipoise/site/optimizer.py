"""The local optimisers, straight on torch's fused kernels.

`torch.optim` would do the same arithmetic (the tests hold every step against it, bit for bit), but importing
it drags in the compiler, seconds for every worker process, and its moments are keyed by parameter objects;
ours are named, so a site can keep them.
"""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor, nn

from equipoise.site.options import TrainOptions
from equipoise.site.own_optimizer import OwnOptimizer

BETAS, EPSILON = (0.9, 0.999), 1e-8


def make_optimizer(
    options: TrainOptions, rate: float, named: Mapping[str, nn.Parameter]
) -> Optimizer | OwnOptimizer:
    """The optimiser that the options name, over these parameters."""
    make = options.own_optimizer
    if make is None:
        return Optimizer(options, rate, named)
    return OwnOptimizer(make, options.optimizer_arguments(rate), named)


class Optimizer:
    """SGD, Adam or AdamW over named parameters."""

    def __init__(self, options: TrainOptions, rate: float, named: Mapping[str, nn.Parameter]) -> None:
        self.options, self.rate, self.named = options, rate, dict(named)
        self.moments: dict[str, dict[str, Tensor]] = {}
        """by parameter: momentum, or first and second moment and step count"""

    def zero(self) -> None:
        """Forget the gradients."""
        for parameter in self.named.values():
            parameter.grad = None

    @torch.no_grad()
    def step(self) -> None:
        """One step along the gradients there are."""
        live = {name: p for name, p in self.named.items() if p.grad is not None}
        if live:
            (self._sgd if self.options.optimizer == "sgd" else self._adam)(live)

    def _sgd(self, live: dict[str, nn.Parameter]) -> None:
        o = self.options
        if o.momentum:
            for name, p in live.items():
                if name not in self.moments:
                    self.moments[name] = {"momentum": torch.zeros_like(p)}
        torch._fused_sgd_(
            list(live.values()),
            gradients(live),
            [self.moments[name]["momentum"] for name in live] if o.momentum else [],
            weight_decay=o.weight_decay,
            momentum=o.momentum,
            lr=self.rate,
            dampening=0.0,
            nesterov=o.nesterov,
            maximize=False,
            # True would restart the momentum of every parameter given here, also of those that had steps
            # before. A momentum of zeros becomes the gradient by itself.
            is_first_step=False,
        )

    def _adam(self, live: dict[str, nn.Parameter]) -> None:
        for name, p in live.items():
            if name not in self.moments:
                zeros = {"first": torch.zeros_like(p), "second": torch.zeros_like(p)}
                self.moments[name] = zeros | {"steps": torch.zeros((), device=p.device)}
        moments = [self.moments[name] for name in live]
        steps = [m["steps"] for m in moments]
        torch._foreach_add_(steps, 1)
        kernel = torch._fused_adam_ if self.options.optimizer == "adam" else torch._fused_adamw_
        kernel(
            list(live.values()),
            gradients(live),
            [m["first"] for m in moments],
            [m["second"] for m in moments],
            [],
            steps,
            amsgrad=False,
            lr=self.rate,
            beta1=BETAS[0],
            beta2=BETAS[1],
            weight_decay=self.options.weight_decay,
            eps=EPSILON,
            maximize=False,
        )

    def restore(self, moments: Mapping[str, Mapping[str, Tensor]]) -> None:
        """Continue with stored moments, each laid out in memory as its parameter is: that is the order the
        kernels walk in."""
        for name, stored in moments.items():
            p = self.named[name]
            self.moments[name] = {
                key: torch.empty_like(p).copy_(value)
                if value.shape == p.shape and key != "steps"
                else value.clone().to(p.device)
                for key, value in stored.items()
            }


def gradients(live: Mapping[str, nn.Parameter]) -> list[Tensor]:
    """The gradients of parameters that have one."""
    return [p.grad for p in live.values() if p.grad is not None]
