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
CLOSEST = 0.02
"""share of the interval in which a noise is looked for that every try takes off it"""


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
    # ε falls as the noise rises, smoothly on a logarithmic scale. `less` is the most noise known to be too
    # little, `more` the least known to be enough; the next try is on the line between the two.
    less, more = (math.log(1e-2), math.inf), (math.log(1e6), -math.inf)
    guess, wanted = 0.0, math.log((1 + NEAR) / 2 * target)
    for _ in range(TRIES):
        spent = epsilon([Spent(noise=math.exp(guess), rate=rate, steps=steps)], delta)
        if NEAR * target <= spent <= target:
            return math.exp(guess)
        point = guess, math.log(max(spent, 1e-9))
        less, more = (point, more) if spent > target else (less, point)
        guess = _between(less, more, point, wanted)
    return math.exp(more[0])


def _between(
    less: tuple[float, float], more: tuple[float, float], last: tuple[float, float], wanted: float
) -> float:
    """Where to look next: on the line between both ends, or, while one of them was not tried, as far as ε
    falls at least; never close to an end."""
    if math.isfinite(less[1]) and math.isfinite(more[1]):
        guess = less[0] + (more[0] - less[0]) * (less[1] - wanted) / (less[1] - more[1])
    else:
        guess = last[0] + last[1] - wanted
    margin = CLOSEST * (more[0] - less[0])
    return min(max(guess, less[0] + margin), more[0] - margin)
