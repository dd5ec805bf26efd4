"""What private training costs: ε by privacy loss distributions, and the noise that a wanted ε takes.

The figures are dp-accounting's. It is an extra and imported only where they are asked for.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from functools import cache
from typing import Any

from pydantic import Field

from equipoise.errors import ConfigError
from equipoise.options import Options

COARSE, FINE = 1e-3, 1e-4
"""intervals of the discretised privacy losses: a coarser one takes a tenth of the time, and only makes ε
larger"""
ENOUGH = 0.03
"""an ε above this times the root of the steps is within a hundredth with the coarse one"""
NEAR, TRIES = 0.998, 60
"""a noise is found when it spends this share of the wanted ε, or a little more, but never all"""


class Spent(Options):
    """Steps of one kind that a site has taken."""

    noise: float = Field(ge=0, allow_inf_nan=False)
    """standard deviation of the noise, over the largest norm of one image's gradient"""
    rate: float = Field(gt=0, le=1)
    """chance of each image to be in a step"""
    steps: int = Field(ge=0)


def accounting() -> Any:
    """The package dp-accounting."""
    try:
        import dp_accounting.pld
    except ImportError as error:
        raise ConfigError(
            "[privacy] counts ε with dp-accounting, which is not installed: run pip install dp-accounting"
        ) from error
    return dp_accounting


def epsilon(spent: Iterable[Spent], delta: float) -> float:
    """ε at this δ of all steps together, for one image more or less; infinite without noise."""
    steps: dict[tuple[float, float], int] = {}
    for one in spent:
        if one.steps:
            steps[one.noise, one.rate] = steps.get((one.noise, one.rate), 0) + one.steps
    return _epsilon(tuple(sorted((*kind, count) for kind, count in steps.items())), delta)


@cache
def _epsilon(steps: tuple[tuple[float, float, int], ...], delta: float) -> float:
    if not steps:
        return 0.0
    if any(noise == 0 for noise, _, _ in steps):
        return math.inf
    coarse = _discretised(steps, delta, COARSE)
    enough = ENOUGH * math.sqrt(sum(count for _, _, count in steps))
    return coarse if coarse > enough else _discretised(steps, delta, FINE)


def _discretised(steps: tuple[tuple[float, float, int], ...], delta: float, interval: float) -> float:
    dp = accounting()
    accountant = dp.pld.PLDAccountant(value_discretization_interval=interval)
    for noise, rate, count in steps:
        accountant.compose(dp.PoissonSampledDpEvent(rate, dp.GaussianDpEvent(noise)), count)
    return float(accountant.get_epsilon(delta))


@cache
def noise_for(target: float, delta: float, rate: float, steps: int) -> float:
    """The least noise, within a few thousandths, with which so many steps spend no more than the target."""
    if not steps:
        return 0.0
    least, most = math.log(1e-2), math.log(1e6)
    guess = 0.0
    for _ in range(TRIES):
        spent = epsilon([Spent(noise=math.exp(guess), rate=rate, steps=steps)], delta)
        if NEAR * target <= spent <= target:
            break
        if spent > target:
            least = guess
        else:
            most = guess
        # ε falls about as the noise rises: try that first, and halve where it leads astray.
        wanted = (1 + NEAR) / 2 * target
        guess = guess + math.log(max(spent, 1e-9) / wanted)
        if not least < guess < most:
            guess = (least + most) / 2
    else:
        guess = most
    return math.exp(guess)
