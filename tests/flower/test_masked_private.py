"""Masks and differential privacy together over Flower's messages: noisy answers are masked like any other,
and a site whose budget is spent drops out of a masked sum without spoiling it."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest
import torch
from flwr.app import Message
from tests.flower.conftest import Town
from tests.flower.test_secure import journal, with_keys

from equipoise.config import Config
from equipoise.deploy import site as deployed
from equipoise.deploy.budget import FILE
from equipoise.engine.flower.wire import unwrap
from equipoise.exchange import decode_upload
from equipoise.exchange.secure.masks import MASKED
from equipoise.running import run
from equipoise.site import accounting
from equipoise.site.noise import Seeded

MakeConfig = Callable[..., Config]
MakeTown = Callable[..., Town]
POOR = "site-01"


@pytest.fixture(autouse=True)
def _cheap(monkeypatch: pytest.MonkeyPatch) -> None:
    """An ε that is the number of steps."""
    monkeypatch.setattr(accounting, "_epsilon", lambda steps, delta: float(sum(one[2] for one in steps)))


@pytest.fixture
def seeded(monkeypatch: pytest.MonkeyPatch) -> None:
    """Sites draw their noise as a simulation does, so that models can be compared."""
    monkeypatch.setattr(deployed, "Secret", Seeded)


def private(tiny: MakeConfig, secure: bool, sites: int = 3, **exchange: Any) -> Config:
    return tiny(
        "fca",
        net={"name": "small-cnn", "batch_norm": "group"},
        privacy={"noise": 1.0},
        train={"batch_size": 8},
        partition={"kind": "iid", "sites": sites},
        evaluate={"exact": False, "per_site": False, "every": 2},
        exchange={"secure": secure, **exchange},
    )


def watched(town: Town) -> list[bytes]:
    """The answers to `train` as they cross the wire."""
    seen = list[bytes]()

    def watch(asked: Message, reply: Message) -> Message:
        contents = unwrap(reply.content)[1]
        if asked.metadata.message_type == "train.train" and "answer" in contents:
            seen.append(contents["answer"])
        return reply

    town.wire.change = watch
    return seen


def test_a_masked_private_run_ends_as_a_plain_one(tiny: MakeConfig, town: MakeTown, seeded: None) -> None:
    """Clipped updates of noisy training, masked, over Flower: the model of a simulation without masks."""
    made = with_keys(town(private(tiny, True, clip=0.05)))
    seen = watched(made)
    result = made.go()
    assert result.state_hash == run(private(tiny, False, clip=0.05)).state_hash
    assert result.state_hash != run(private(tiny, False)).state_hash
    assert not journal(made, "refused", "failed", "rejected", "missing")
    assert [set(decode_upload(data)[1]) for data in seen] == [{MASKED}] * 6
    assert result.privacy is not None and set(result.privacy["epsilon"]) == set(made.sites)


@pytest.mark.sweep
def test_noise_of_a_hospital_is_nobodys_to_repeat(tiny: MakeConfig, town: MakeTown) -> None:
    """Two runs of the same config and seed: other noise, so another model; finite, and as much spent."""
    results = [with_keys(town(private(tiny, True))).go() for _ in range(2)]
    assert results[0].state_hash != results[1].state_hash
    assert results[0].privacy == results[1].privacy
    assert all(torch.isfinite(x).all() for one in results for x in one.server["model"].values())


def test_a_spent_budget_drops_out_of_a_masked_sum(tiny: MakeConfig, town: MakeTown, seeded: None) -> None:
    """Of four sites one can afford the first round alone. The sum of the others is that of a plain run."""
    policy = {POOR: {"privacy": {"epsilon": 3.0}}}  # two or three steps make a round
    masked, plain = with_keys(town(private(tiny, True, 4), policy)), town(private(tiny, False, 4), policy)
    found, expected = masked.go(), plain.go()
    for made, result in ((masked, found), (plain, expected)):
        assert [POOR in row["sites"] for row in result.history] == [True, False]
        kept = json.loads((made.sites[POOR] / FILE).read_text())
        assert len([one for steps in kept["runs"].values() for one in steps]) == 1
        assert any("policy rule 'privacy'" in line["reason"] for line in journal(made, "refused"))
    assert found.state_hash == expected.state_hash
