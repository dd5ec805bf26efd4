"""A federation with rare classes under the policy of a new site: it trains on them, and tells nothing of
those of which a site has fewer than five images."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import tomli_w
from tests import doctored

from equipoise.config import Config
from equipoise.deploy.card import Card
from equipoise.deploy.coordinator import federated
from equipoise.deploy.policy import Policy, approved
from equipoise.deploy.rehearse import allowed, simulate
from equipoise.deploy.site import Watched
from equipoise.engine.flower.wire import unwrap
from equipoise.exchange import decode_upload
from equipoise.report import write_report
from equipoise.running import Result
from equipoise.server.journal import read as read_journal
from equipoise.setup import make_host, material

MakeConfig = Callable[..., Config]
Once = Callable[[Config], Result]
NAMES = ("site-00", "site-01", "site-02")
FIVE = {name: {"small_cell": 5} for name in NAMES}


def events(folder: Path, event: str) -> list[dict[str, Any]]:
    return [line for line in read_journal(folder / "journal.jsonl")[0] if line["event"] == event]


@pytest.fixture
def rare(tiny: MakeConfig) -> MakeConfig:
    """Three sites that have some classes, and a few images of the others."""

    def make(method: str, task: str = "single", **sections: Any) -> Config:
        data = {"scale": 0.02, "task": task, "split": {"test": 0.3, "validation": 0.2}}
        return tiny(method, data=data, **({"train": {"rounds": 1, "batch_size": 64}} | sections))

    return make


def here(config: Config, folder: Path) -> str:
    """What a simulation comes to whose sites have the policy of a new one."""
    config = replace(config, exchange=config.exchange.model_copy(update={"min_sites": 1}))
    return simulate(federated(config), folder, Policy(each=tuple(allowed(federated(config)))))


def counts(config: Config) -> dict[str, dict[str, list[int]]]:
    """By site and split: how many images of each class there really are."""
    census = material(config).facts.census
    return {
        site: {split: [n or 0 for n in held.counts] for split, held in splits.items()}
        for site, splits in census.sites.items()
    }


@pytest.mark.parametrize(
    ("method", "task"),
    [
        ("fedsdc+", "single"),
        ("fedproc", "multi"),
        *(
            pytest.param(method, task, marks=pytest.mark.sweep)
            for method, task in (
                ("fca", "single"),
                ("fediic", "single"),
                ("creff", "single"),
                ("prr-imb", "single"),
                ("isfl", "single"),
                ("fedproc", "single"),
                ("isfl", "multi"),
                ("fedmlp", "multi"),
                ("cbafed", "multi"),
                ("fedirm", "multi"),
            )
        ),
    ],
)
def test_it_trains_to_the_bits_of_a_simulation_with_the_same_policy(
    method: str, task: str, rare: MakeConfig, town: Any, tmp_path: Path
) -> None:
    config = rare(method, task)
    there = town(config, FIVE)
    found = there.go()
    assert found.state_hash == here(config, tmp_path / "here")
    assert not events(there.run, "refused") and not events(there.run, "rejected")
    assert not events(there.run, "missing")
    told = events(there.run, "withheld")
    assert {line["site"] for line in told} == set(NAMES) and {line["rule"] for line in told} == {"small_cell"}
    assert "fewer than 5 images" in told[0]["reason"] and "'site-00'" in told[0]["reason"]
    withheld = found.metrics["test"]["withheld"]
    really = counts(config)
    for number, name in enumerate(found.classes):
        few = [site for site in NAMES if 0 < really[site]["test"][number] < 5]
        assert withheld.get(name, []) == few
    support = found.metrics["test"]["generalisation"]["support"]
    for number, seen in enumerate(support):
        assert seen == sum(n for site in NAMES if (n := really[site]["test"][number]) >= 5)


@pytest.mark.parametrize("task", ["single", "multi"])
def test_no_message_tells_of_a_small_cell(task: str, rare: MakeConfig, town: Any) -> None:
    config = rare("fedproc", task)
    there, seen = town(config, FIVE), list[tuple[dict[str, Any], dict[str, bytes]]]()

    def tap(asked: Any, reply: Any) -> Any:
        seen.append(unwrap(reply.content))
        return reply

    there.wire.change = tap
    there.go()
    really = counts(config)
    for table, data in seen:
        own = really[table["site"]]
        if "card" in table:
            card = Card.model_validate(table["card"])
            for split, told in card.counts.items():
                small = [0 < n < 5 for n in own[split]]
                assert all(n is None for n, gone in zip(told, small, strict=True) if gone)
                assert card.withheld.get(split, ()) == tuple(i for i, gone in enumerate(small) if gone)
                left = card.images[split] - sum(n or 0 for n in told)
                assert task == "multi" or left == 0 or told.count(None) > sum(small)
            continue
        upload = decode_upload(data["answer"])[1]
        if table["question"] == "train":
            few = [i for i, n in enumerate(own["train"]) if 0 < n < 5]
            assert few and upload["counts"].value[few].count_nonzero() == 0
            assert upload["sums"].value[few].count_nonzero() == 0
            assert upload["delta"].weight == sum(own["train"]) or task == "multi"  # it trains on all of them
        else:
            few = [i for i, n in enumerate(own["test"]) if 0 < n < 5]
            stats = upload["pooled"].value["test"]["global.fed"]
            decided = stats["confusion" if task == "single" else "binary"]
            assert few and decided[few].count_nonzero() == 0
            assert stats["scores"][few].sum() == (0 if task == "multi" else decided.sum() * len(few))
            assert stats["calibration"][:, 0].sum() == decided.sum()
    answered = events(there.sites["site-00"], "answered")
    assert answered[0]["rule"] == "small_cell" and set(answered[0]["withheld"]) == {"sums", "counts"}


def test_counts_that_are_not_told_at_all_name_no_class_either(rare: MakeConfig, town: Any) -> None:
    strict = {name: {"small_cell": 5, "each": ["evaluate.own"]} for name in NAMES}
    there = town(rare("fedavg"), strict)
    there.go()
    cards = doctored.table(there.run / "roster.json")["sites"].values()
    assert all(card["withheld"] == {} and card["small_cell"] == 5 for card in cards)
    assert not events(there.run, "withheld")


def test_a_rule_that_becomes_stricter_refuses_what_was_agreed_to_be_tested(
    rare: MakeConfig, town: Any
) -> None:
    """What is tested stays the same through a run; a site that no longer tells it is left out by name."""
    there = town(rare("fedavg"))

    def stricter(asked: Any, reply: Any) -> Any:
        if asked.metadata.message_type == "train.train":
            policy = {"small_cell": 5, "min_sites": 1, "batch_size": 1, "methods": approved(["fedavg"])}
            (there.sites["site-01"] / "policy.toml").write_text(tomli_w.dumps(policy))
        return reply

    there.wire.change = stricter
    found = there.go()
    (line,) = events(there.run, "refused")
    assert (line["site"], line["question"]) == ("site-01", "evaluate")
    assert "policy rule 'small_cell': 'evaluate.own' cannot be reported without" in line["reason"]
    assert set(found.metrics["test"]["sites"]) == {"site-00", "site-02"}


def test_it_is_resumed_with_what_it_told_when_it_joined(rare: MakeConfig, town: Any) -> None:
    """A looser rule does not bring untested images into the middle of a run."""
    there = town(rare("fedavg", train={"rounds": 2, "batch_size": 64}, evaluate={"every": 1}), FIVE)

    def looser(asked: Any, reply: Any) -> Any:
        if asked.metadata.message_type == "train.train":
            for folder in there.sites.values():
                policy = {"small_cell": 0, "min_sites": 1, "batch_size": 1, "methods": approved(["fedavg"])}
                (folder / "policy.toml").write_text(tomli_w.dumps(policy))
        return reply

    there.wire.change = looser
    found = there.go()
    tested = [sum(row["test"]["generalisation"]["support"]) for row in found.history]
    assert tested[0] == tested[1] and not events(there.run, "rejected")


@pytest.mark.parametrize("task", ["single", "multi"])
def test_sites_that_can_tell_nothing_of_a_test_still_train(
    task: str, tiny: MakeConfig, town: Any, once: Once
) -> None:
    config = tiny(data={"task": task}, train={"rounds": 1})
    there = town(config, {name: {"small_cell": 1000} for name in NAMES})
    found = there.go()
    assert found.state_hash == once(config).state_hash
    assert found.metrics["test"]["generalisation"]["balanced_accuracy"] is None
    assert "leave them out of the test" in write_report(there.run).read_text()
    assert (there.run / "model-card.md").exists()


def test_who_asks_for_class_counts_has_looked_at_the_training_images(
    tiny: MakeConfig, tmp_path: Path
) -> None:
    """So a question that scans other images is held to those, and one that tells counts to these."""
    config = tiny()
    host = make_host(config, material(config), tmp_path)
    site = host.sites["site-00"]
    site.splits = splits = Watched(site.splits)
    len(dict.__getitem__(splits, "train"))
    assert splits.read == set()
    splits["validation"]
    assert splits.read == {"validation"}
    assert site.counts.sum() == len(dict.__getitem__(splits, "train")) and "train" in splits.read
