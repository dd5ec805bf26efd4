"""A site's privacy budget: over runs and restarts, counted before anything leaves, and not to be talked out
of."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from equipoise.config import Config
from equipoise.deploy import apps
from equipoise.deploy.budget import FILE, Account, Budget
from equipoise.deploy.policy import Policy, Refused
from equipoise.deploy.site import SiteClient
from equipoise.engine.flower.wire import unwrap
from equipoise.errors import SiteError, StorageError
from equipoise.server import Journal
from equipoise.server.journal import read as read_journal
from equipoise.site import accounting
from equipoise.site.accounting import Spent
from equipoise.site.noise import Secret

MakeConfig = Callable[..., Config]
SITE = "site-00"
NET = {"name": "small-cnn", "batch_norm": "group"}


@pytest.fixture(autouse=True)
def _cheap(monkeypatch: pytest.MonkeyPatch) -> None:
    """An ε that is the number of steps."""
    monkeypatch.setattr(accounting, "_epsilon", lambda steps, delta: float(sum(one[2] for one in steps)))


@pytest.fixture
def account(tmp_path: Path) -> Any:
    made = list[Journal]()

    def make() -> Account:
        while made:
            made.pop().close()
        made.append(Journal(tmp_path / "journal.jsonl"))
        return Account(tmp_path, made[0])

    yield make
    made[0].close()


def steps(count: int, noise: float = 1.0) -> Spent:
    return Spent(noise=noise, rate=0.5, steps=count)


def test_spending_adds_up_over_runs_and_restarts(account: Any, tmp_path: Path) -> None:
    first = account()
    first.spend("one", steps(3))
    first.spend("one", steps(2))
    first.spend("two", steps(4, noise=2.0))
    again = account()
    assert again.read() == (3, {"one": [steps(5)], "two": [steps(4, noise=2.0)]})
    assert again.epsilon(1e-5) == 9
    policy = Policy(privacy=Budget(epsilon=10.0))
    policy.affords(again, steps(1))
    with pytest.raises(Refused, match=r"policy rule 'privacy'.*ε = 11 at δ = 1e-05, and its budget is 10"):
        policy.affords(again, steps(2))
    Policy().affords(again, steps(1000))
    assert again.epsilon(1e-5) == 9, "a refusal spends nothing"


def test_a_list_that_is_gone_changed_or_old_is_noticed(account: Any, tmp_path: Path) -> None:
    file = tmp_path / FILE
    account().spend("one", steps(3))
    old = file.read_bytes()
    account().spend("one", steps(3))
    newest = file.read_bytes()
    for damage in (old, newest.replace(b'"steps": 6', b'"steps": 1'), None):
        file.unlink() if damage is None else file.write_bytes(damage)
        with pytest.raises(StorageError, match="nobody knows what this site has spent"):
            account().spend("one", steps(1))
    file.write_bytes(newest)
    account().spend("one", steps(1))


def test_what_was_written_before_a_crash_counts(account: Any, tmp_path: Path) -> None:
    """The list is on disk before the journal's line, and the line before the steps."""
    made = account()
    made.spend("one", steps(3))
    made.journal.write = lambda *given, **facts: (_ for _ in ()).throw(OSError("power cut"))
    with pytest.raises(OSError):
        made.spend("one", steps(4))
    assert account().epsilon(1e-5) == 7


def test_a_policy_with_a_budget_wants_private_runs(tiny: MakeConfig) -> None:
    policy = Policy(privacy=Budget(epsilon=8.0), min_sites=1, batch_size=1)
    told = list(policy.terms(tiny()))
    assert any("trains with differential privacy only" in text for text in told)
    told = list(policy.terms(tiny(net=NET, privacy={"noise": 1.0})))
    assert not any("'privacy'" in text for text in told)
    policy.covers("train", {"class counts", "test images"})
    with pytest.raises(Refused, match="computed from training images without noise"):
        policy.covers("class_loss", {"train images"})
    Policy().covers("class_loss", {"train images"})


def test_a_site_whose_budget_is_spent_trains_no_more(tiny: MakeConfig, town: Any) -> None:
    """Also after a restart; the others go on, and noise is nobody's to repeat."""
    train = {"rounds": 2, "batch_size": 8}
    config = tiny(net=NET, privacy={"noise": 1.0}, train=train, evaluate={"every": 2})
    # Its 25 images make 4 steps a round: the second round is one too many.
    there = town(config, {SITE: {"privacy": {"epsilon": 7.0}}})
    asked: list[Any] = []

    def tap(message: Any, reply: Any) -> Any:
        if message.metadata.message_type == "train.train":
            asked.append(unwrap(message.content))
        return reply

    there.wire.change = tap
    result = there.go()
    assert result.privacy is not None and set(result.privacy["epsilon"]) == set(there.sites)
    assert [SITE in row["sites"] for row in result.history] == [True, False]
    lines, _ = read_journal(there.sites[SITE] / "journal.jsonl")
    assert [line["event"] for line in lines if line["event"] in ("spent", "refused")] == ["spent", "refused"]
    assert "policy rule 'privacy'" in next(line for line in lines if line["event"] == "refused")["reason"]
    kept = json.loads((there.sites[SITE] / FILE).read_text())
    assert [one["steps"] for run in kept["runs"].values() for one in run] == [4]

    table, data = next(one for one in asked if one[0]["site"] == SITE)
    apps.desk(str(there.sites[SITE])).close()
    again = SiteClient(there.sites[SITE])
    echo, answer = again.reply("train.train", table | {"ticket": table["ticket"] + 10**12}, data)
    assert answer is None and "policy rule 'privacy'" in echo["refused"]
    again.close()

    other = apps.desk(str(there.sites["site-01"]))
    table, data = next(one for one in asked if one[0]["site"] == "site-01")
    answers = [
        other.reply("train.train", table | {"ticket": table["ticket"] + 10**12 + i}, data)[1] for i in (1, 2)
    ]
    assert None not in answers and answers[0] != answers[1]
    (joined,) = other._joined.values()
    assert joined.host.source is Secret


def test_a_site_finds_the_noise_for_its_own_images(tiny: MakeConfig, town: Any) -> None:
    """And stops nobody: coordinator and site come to the same noise by themselves."""
    config = tiny(net=NET, privacy={"epsilon": 16.0}, train={"rounds": 1, "batch_size": 8})
    there = town(config)
    monkey = pytest.MonkeyPatch()
    monkey.setattr(accounting, "_epsilon", lambda steps, delta: sum(one[2] / one[0] for one in steps))
    try:
        accounting.noise_for.cache_clear()
        result = there.go()
        assert result.privacy is not None
        assert all(15.9 <= value <= 16.0 for value in result.privacy["epsilon"].values())
        kept = json.loads((there.sites[SITE] / FILE).read_text())
        (spent,) = (one for run in kept["runs"].values() for one in run)
        assert 15.9 <= spent["steps"] / spent["noise"] <= 16.0
    finally:
        monkey.undo()
        accounting.noise_for.cache_clear()


def test_nobody_left_to_train_stops_the_run(tiny: MakeConfig, town: Any) -> None:
    config = tiny(net=NET, privacy={"noise": 1.0}, train={"rounds": 1, "batch_size": 8})
    policies = {f"site-{i:02}": {"privacy": {"epsilon": 1.0}} for i in range(3)}
    with pytest.raises(SiteError, match="only 0 of 3 sites"):
        town(config, policies).go()
