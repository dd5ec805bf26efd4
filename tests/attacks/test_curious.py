"""A curious coordinator: every attack works without protection and fails with it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from tests.attacks import figures, kit
from tests.attacks.figures import MASKED, NOISY, NONE, Protection, noisy
from tests.flower.test_hostile_coordinator import ask, home, invite

from equipoise.config import Config
from equipoise.errors import SiteError

pytestmark = pytest.mark.audit
MakeConfig = Callable[..., Config]
__all__ = ["home"]


# Class counts from the bias of the head ---------------------------------------------------------------------


def test_counts_are_found() -> None:
    assert figures.counts_found(NONE) == 1.0


@pytest.mark.parametrize("protection", [figures.ADAPTIVE, NOISY, MASKED], ids=["adam", "dp", "secure"])
def test_counts_are_not_found(protection: Protection) -> None:
    assert figures.counts_found(protection) < 0.5


def test_a_site_can_refuse_plain_steps(home: Any, tiny: MakeConfig) -> None:
    told = invite(home(optimizers=["adam", "adamw"]), tiny(train={"optimizer": "sgd"}))
    assert "policy rule 'optimizers'" in told["refused"]


# Images from the gradient of one batch ----------------------------------------------------------------------


def test_images_are_found() -> None:
    assert figures.images_found(NONE) >= 0.8


@pytest.mark.parametrize("protection", [NOISY, MASKED], ids=["dp", "secure"])
def test_images_are_not_found(protection: Protection) -> None:
    assert figures.images_found(protection) == 0.0


def test_a_site_refuses_a_network_that_it_has_not_approved(home: Any, tiny: MakeConfig) -> None:
    told = invite(home(), tiny(net={"name": figures.LEAKY}))
    assert "policy rule 'parts'" in told["refused"] and "is not approved at this site" in told["refused"]


# Membership -------------------------------------------------------------------------------------------------


def test_members_are_found() -> None:
    """With 143 images on either side the AUC of a guess is nearly always within 0.07 of 0.5."""
    assert figures.members_found(NONE) > 0.62


def test_members_are_not_found() -> None:
    assert abs(figures.members_found(noisy(8.0)) - 0.5) < 0.07


# One site by the difference of two sums ---------------------------------------------------------------------


def test_one_site_is_found_by_difference() -> None:
    assert figures.site_found(NONE) > 0.999


def test_masked_sums_of_one_round_have_no_difference() -> None:
    """Whoever has answered for one set of sites answers for no other in that round."""
    with pytest.raises(SiteError, match="a sum of another set of sites was unmasked"):
        figures.by_difference(MASKED, later=0)


def test_masked_sums_of_two_rounds_do() -> None:
    """What docs/privacy.md says masks do not stop."""
    assert figures.site_found(MASKED, later=1) > 0.999


def test_a_site_can_refuse_to_be_asked_twice(home: Any, tiny: MakeConfig) -> None:
    """The second sum of a round is not given: of three sites that are in both, none answers again."""
    desk = home(questions_per_round=1)
    config = tiny()
    invite(desk, config)
    host = kit.host_of(config)
    model = {"model": {name: host.initial[name] for name in host.shared}}
    assert ask(desk, "train", model)[1] is not None
    again, answer = ask(desk, "train", model)
    assert answer is None and "policy rule 'questions_per_round'" in again["refused"]
