"""With a fifth of the sites hostile the mean collapses, and every robust sum stays within three points."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.attacks.hostile_sites import ATTACKS, RULES, accuracy

pytestmark = pytest.mark.audit
STRONG = [name for name in ATTACKS if name.endswith("×10")]
ROBUST = [rule for rule in RULES if rule != "mean"]
NEAR, COLLAPSED = 3.0, 20.0
"""points below the run in which nobody attacks"""


@pytest.mark.parametrize("attack", ["nobody", *STRONG])
@pytest.mark.parametrize("rule", ROBUST)
def test_a_robust_sum_holds(rule: str, attack: str, shared_data: Path) -> None:
    clean = accuracy(shared_data, "mean", "nobody")
    assert clean > 90
    assert accuracy(shared_data, rule, attack) > clean - NEAR


@pytest.mark.parametrize("attack", [name for name in STRONG if "honest" not in name])
def test_the_mean_does_not(attack: str, shared_data: Path) -> None:
    assert accuracy(shared_data, "mean", attack) < accuracy(shared_data, "mean", "nobody") - COLLAPSED
