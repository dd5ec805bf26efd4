"""Masked answers over Flower's messages: the same model as without, and nothing but sums to read."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest
import torch
from flwr.app import Message
from tests.flower.conftest import Town
from tests.light import LIGHTEST

from equipoise.config import Config
from equipoise.deploy.coordinator import federated
from equipoise.deploy.keys import new_keys
from equipoise.deploy.policy import Policy
from equipoise.deploy.rehearse import allowed, rehearse, simulate
from equipoise.deploy.roster import fingerprint, read_roster, write_roster
from equipoise.engine.flower.wire import unwrap
from equipoise.errors import ConfigError, SiteError
from equipoise.exchange import decode_upload
from equipoise.exchange.secure.masks import MASKED
from equipoise.methods import METHODS
from equipoise.running import Result
from equipoise.server.journal import read as read_journal

MakeConfig = Callable[..., Config]
MakeTown = Callable[..., Town]
PlainHash = Callable[..., str]
SELDOM = {"exact": False, "every": 2}


def with_keys(town: Town) -> Town:
    """A town whose sites have keys and a roster, handed out as `equipoise keys new` does."""
    folder = town.run.parent / "federation"
    new_keys(folder, [], sorted(town.sites))
    write_roster(folder)
    for name, home in town.sites.items():
        shutil.copytree(folder / "hand-out" / name, home / "keys")
    return town


def light(config: Config) -> Config:
    name = config.method_name
    return replace(config, method=METHODS[name](**LIGHTEST.get(name, {})))


def masked(tiny: MakeConfig, method: str = "fedavg", sites: int = 3, **sections: dict[str, Any]) -> Config:
    exchange = {"secure": True} | sections.pop("exchange", {})
    partition = {"kind": "iid", "sites": sites}
    return light(tiny(method, partition=partition, exchange=exchange, **{"evaluate": SELDOM} | sections))


@pytest.fixture(scope="module")
def plain_hash(tiny: MakeConfig, once: Callable[[Config], Result]) -> PlainHash:
    """What a simulation without masks comes to."""

    def make(method: str = "fedavg", sites: int = 3) -> str:
        partition = {"kind": "iid", "sites": sites}
        return once(light(tiny(method, partition=partition, evaluate=SELDOM))).state_hash

    return make


def journal(town: Town, *events: str) -> list[dict[str, Any]]:
    return [line for line in read_journal(town.run / "journal.jsonl")[0] if line["event"] in events]


@pytest.mark.parametrize(
    "method", ["fediic", *(pytest.param(m, marks=pytest.mark.sweep) for m in ("fedavg", "climb"))]
)
def test_a_masked_run_ends_as_a_plain_one(
    method: str, tiny: MakeConfig, town: MakeTown, plain_hash: PlainHash
) -> None:
    made = with_keys(town(masked(tiny, method)))
    assert made.go().state_hash == plain_hash(method)
    assert not journal(made, "refused", "failed", "rejected", "missing")


def test_small_cells_are_withheld_before_an_answer_is_masked(
    tiny: MakeConfig, town: MakeTown, tmp_path: Path
) -> None:
    """The same model as where every site leaves them out and nothing is masked."""
    rare = {"data": {"scale": 0.02, "split": {"test": 0.3}}, "train": {"rounds": 1, "batch_size": 64}}
    config = masked(tiny, "fedproc", **rare)
    config = replace(config, evaluate=config.evaluate.model_copy(update={"per_site": False}))
    made = with_keys(town(config, {f"site-0{i}": {"small_cell": 5} for i in range(3)}))
    found = made.go()
    policy = Policy(each=tuple(allowed(federated(config))), min_sites=1, batch_size=1)
    assert found.state_hash == simulate(federated(config), tmp_path / "here", policy)
    assert not journal(made, "refused", "failed", "rejected", "missing") and journal(made, "withheld")
    assert found.metrics["test"]["withheld"]
    answered = read_journal(made.sites["site-00"] / "journal.jsonl")[0]
    assert any(line.get("rule") == "small_cell" for line in answered)


@dataclass
class Told:
    """A masked run that is done: its town, and the answers to `train`."""

    town: Town
    answers: list[bytes]


@pytest.fixture(scope="module")
def told(tiny: MakeConfig, town: MakeTown) -> Told:
    seen = list[bytes]()

    def watch(asked: Message, reply: Message) -> Message:
        if asked.metadata.message_type == "train.train":
            seen.append(unwrap(reply.content)[1]["answer"])
        return reply

    made = with_keys(town(masked(tiny, evaluate={"exact": False})))
    made.wire.change = watch
    made.go()
    return Told(made, seen)


def test_only_masked_words_cross_the_wire(told: Told) -> None:
    assert len(told.answers) == 6
    for data in told.answers:
        upload = decode_upload(data)[1]
        assert set(upload) == {MASKED}
        value = upload[MASKED].value
        assert isinstance(value, torch.Tensor)
        words = value.view(torch.int64).double() / 2.0**63
        assert abs(float(words.mean())) < 0.05 and abs(float(words.std()) - 3**-0.5) < 0.02


def test_a_question_costs_one_message_more(told: Told) -> None:
    kinds = [kind for kind, _ in told.town.wire.down]
    questions = sum(kind in ("train.train", "query.evaluate") for kind in kinds)
    letters = kinds.count("query.masks")
    assert questions == 2 * 2 * 3
    assert letters == questions + 2 * 3  # and twice at the start: keys, shares


@pytest.mark.parametrize(
    "moment", ["between", *(pytest.param(m, marks=pytest.mark.sweep) for m in ("before", "within"))]
)
def test_a_site_may_drop_out_at_any_moment(
    moment: str, tiny: MakeConfig, town: MakeTown, plain_hash: PlainHash
) -> None:
    """Of four sites one is lost in the second round: before its masked answer, between that and unmasking,
    or its part in unmasking alone."""
    made = with_keys(town(masked(tiny, sites=4), deadline=0.3, retries=0))
    lost = sorted(made.sites)[1]

    def lose(asked: Message, reply: Message) -> Message | None:
        table = unwrap(asked.content)[0]
        kind, step = asked.metadata.message_type, table.get("step")
        if table["round"] != 1 or table["site"] != lost:
            return reply
        if moment == "before" and kind == "train.train":
            return None
        if moment == "between" and (step == "unmask" or kind == "query.evaluate"):
            return None
        if moment == "within" and step == "unmask":
            return None
        return reply

    made.wire.change = lose
    result = made.go()
    answered = result.history[-1]["sites"]
    assert len(answered) == (3 if moment == "before" else 4)
    if moment != "before":
        assert result.state_hash == plain_hash(sites=4)


def test_too_many_lost_and_nothing_is_known(tiny: MakeConfig, town: MakeTown) -> None:
    made = with_keys(town(masked(tiny, sites=4), deadline=0.3, retries=0))
    lost = sorted(made.sites)[:2]

    def lose(asked: Message, reply: Message) -> Message | None:
        table = unwrap(asked.content)[0]
        return None if table["site"] in lost and table.get("step") == "unmask" else reply

    made.wire.change = lose
    with pytest.raises(SiteError, match="only 2 of 4 sites helped to unmask"):
        made.go()


def test_a_run_that_is_resumed_unmasks_the_same_sums(
    tiny: MakeConfig, town: MakeTown, plain_hash: PlainHash
) -> None:
    """The coordinator dies after round 1 was unmasked and before it was kept; the sites still answer."""
    made = with_keys(town(masked(tiny)))

    class Killed(Exception):
        pass

    def kill(asked: Message, reply: Message) -> Message:
        table = unwrap(asked.content)[0]
        if table["round"] == 1 and asked.metadata.message_type == "query.evaluate":
            raise Killed
        return reply

    made.wire.change = kill
    with pytest.raises(Killed):
        made.go()
    made.wire.change = lambda asked, reply: reply
    made.wire.pending.clear()
    assert made.go().state_hash == plain_hash()


def test_a_site_that_requires_masks_refuses_a_plain_run(tiny: MakeConfig, town: MakeTown) -> None:
    policy = {f"site-0{i}": {"secure": "required"} for i in range(3)}
    made = town(tiny(), policy)
    assert set(made.sites) == set(policy)
    with pytest.raises(SiteError, match="0 of 3 sites joined"):
        made.go()
    assert all("policy rule 'secure'" in line["reason"] for line in journal(made, "refused"))


def test_a_site_without_a_roster_takes_part_in_no_masked_run(tiny: MakeConfig, town: MakeTown) -> None:
    made = with_keys(town(masked(tiny, sites=4, train={"rounds": 1}), deadline=0.3, retries=0))
    poor = sorted(made.sites)[0]
    (made.sites[poor] / "keys" / "roster.json").unlink()
    result = made.go()
    assert poor not in result.history[0]["sites"]


def test_a_false_roster_is_found_out(tiny: MakeConfig, town: MakeTown) -> None:
    made = with_keys(town(masked(tiny)))
    home = next(iter(made.sites.values())) / "keys"
    sites = read_roster(home / "roster.json", home / "ca.crt")
    assert len(fingerprint(sites).split()) == 8
    table = json.loads((home / "roster.json").read_text())
    first, second, *_ = table["sites"]
    table["sites"][first] = table["sites"][second]
    (home / "roster.json").write_text(json.dumps(table))
    with pytest.raises(ConfigError, match="not signed by the authority"):
        read_roster(home / "roster.json", home / "ca.crt")


def test_a_roster_grows_with_the_federation(tmp_path: Path) -> None:
    new_keys(tmp_path, [], ["north", "south", "west"])
    assert {path.parent.name for path in write_roster(tmp_path)} == {"keys", "north", "south", "west"}
    assert write_roster(tmp_path) == []
    new_keys(tmp_path, [], ["east"])
    write_roster(tmp_path)
    found = read_roster(tmp_path / "hand-out" / "north" / "roster.json", tmp_path / "keys" / "ca.crt")
    assert sorted(found) == ["east", "north", "south", "west"]


def test_a_site_that_requires_masks_takes_part_where_only_means_are_told(
    tiny: MakeConfig, town: MakeTown, plain_hash: PlainHash
) -> None:
    """Nothing is read for one site: own predictors by their mean. With results site by site it refuses."""
    policy = {f"site-0{i}": {"secure": "required", "each": []} for i in range(3)}
    config = tiny(exchange={"secure": True}, evaluate=SELDOM | {"per_site": False})
    made = with_keys(town(config, policy))
    result = made.go()
    assert result.state_hash == plain_hash()
    assert not journal(made, "refused", "rejected", "missing")
    assert result.metrics["test"]["sites"] == {}
    assert result.metrics["test"]["specialisation"]["balanced_accuracy"] is not None
    made = with_keys(town(masked(tiny, train={"rounds": 1}), policy))
    with pytest.raises(SiteError, match="evaluate"):
        made.go()
    assert {"policy rule 'secure'" in line["reason"] for line in journal(made, "refused")} == {True}


@pytest.mark.hospitals
@pytest.mark.parametrize("method", ["fedavg", "fediic", "fca"])
def test_over_real_processes_with_tls(method: str, tiny: MakeConfig, tmp_path: Path) -> None:
    found = rehearse(masked(tiny, method), tmp_path / "run")
    assert found["same"]  # as a simulation that masks nothing, with the policy of a new site
