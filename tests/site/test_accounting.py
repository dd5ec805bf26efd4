"""ε against dp-accounting called directly, and the noise that a wanted ε takes."""

from __future__ import annotations

import math
import sys

import pytest

from equipoise.errors import ConfigError
from equipoise.site import accounting
from equipoise.site.accounting import Spent, epsilon, noise_for

DELTA = 1e-5
TRIPLES = [
    *((8.0, 0.2, 50), (4.0, 0.5, 20), (6.0, 0.05, 100)),
    *((2.0, 0.1, 100), (2.0, 0.01, 500), (1.5, 0.02, 200), (1.2, 0.05, 50), (1.0, 0.01, 300)),
    *((1.0, 0.1, 10), (1.0, 0.001, 1000), (3.0, 1.0, 10), (5.0, 1.0, 40), (0.8, 0.01, 100)),
    *((0.8, 0.002, 400), (0.7, 0.05, 20), (0.6, 0.01, 50), (1.1, 0.3, 5), (10.0, 0.25, 400)),
    *((2.5, 0.004, 2000), (0.9, 0.015, 150)),
]
"""noise, rate, steps"""


def check(noise: float, rate: float, steps: int) -> None:
    dp = accounting.accounting()
    direct = dp.pld.PLDAccountant()
    direct.compose(dp.PoissonSampledDpEvent(rate, dp.GaussianDpEvent(noise)), steps)
    ours, theirs = epsilon([Spent(noise=noise, rate=rate, steps=steps)], DELTA), direct.get_epsilon(DELTA)
    assert theirs <= ours <= 1.01 * theirs


@pytest.mark.parametrize("triple", TRIPLES[:2])
def test_epsilon_is_dp_accountings(triple: tuple[float, float, int]) -> None:
    check(*triple)


@pytest.mark.sweep
@pytest.mark.parametrize("triple", TRIPLES[2:])
def test_epsilon_is_dp_accountings_everywhere(triple: tuple[float, float, int]) -> None:
    """Within a hundredth of it and never below."""
    check(*triple)


def test_steps_add_up() -> None:
    half, whole = Spent(noise=8.0, rate=0.2, steps=25), Spent(noise=8.0, rate=0.2, steps=50)
    assert epsilon([half, half], DELTA) == epsilon([whole], DELTA) > epsilon([half], DELTA)
    assert epsilon([whole, Spent(noise=6.0, rate=0.2, steps=5)], DELTA) > epsilon([whole], DELTA)
    assert epsilon([], DELTA) == epsilon([whole.model_copy(update={"steps": 0})], DELTA) == 0


def test_no_noise_is_no_privacy() -> None:
    assert epsilon([Spent(noise=0.0, rate=0.2, steps=1)], DELTA) == math.inf


def test_the_noise_for_a_wanted_epsilon_spends_it() -> None:
    noise = noise_for(1.0, DELTA, 0.2, 20)
    assert 0.995 <= epsilon([Spent(noise=noise, rate=0.2, steps=20)], DELTA) <= 1.0
    assert noise_for(1.0, DELTA, 0.2, 0) == 0


def test_a_missing_package_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "dp_accounting.pld", None)
    monkeypatch.setitem(sys.modules, "dp_accounting", None)
    with pytest.raises(ConfigError, match="pip install dp-accounting"):
        accounting.accounting()


@pytest.mark.parametrize("slope", [0.7, 1.0, 1.94, 3.5])
def test_the_noise_is_found_in_a_few_tries(slope: float, monkeypatch: pytest.MonkeyPatch) -> None:
    """However fast ε falls: as the noise, as its square, or faster."""
    tried = list[float]()

    def falling(steps: tuple[tuple[float, float, int], ...], delta: float) -> float:
        ((noise, _, count),) = steps
        tried.append(noise)
        return count * float(noise**-slope)

    monkeypatch.setattr(accounting, "_epsilon", falling)
    for target in (0.5, 8.0, 50.0):
        tried.clear()
        noise = noise_for.__wrapped__(target, DELTA, 0.2, 20)
        assert 0.998 * target <= 20 * noise**-slope <= target and len(tried) < 12
