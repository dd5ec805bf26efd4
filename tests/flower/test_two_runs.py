"""Two runs at one coordinator at once: a site takes part in those that its policy approves, with the bits of
a run that has it for itself."""

from __future__ import annotations

import shutil
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from itertools import pairwise
from pathlib import Path
from threading import Condition
from typing import Any

import pytest
from flwr.app import Message
from tests.flower.conftest import Town, Wire
from tests.flower.test_hostile_coordinator import home, invite  # noqa: F401
from tests.flower.test_secure import with_keys

from equipoise.config import Config
from equipoise.deploy import site
from equipoise.deploy.coordinator import coordinate, plan
from equipoise.deploy.policy import approved
from equipoise.keeping import read_json
from equipoise.running import Result
from equipoise.server.journal import read as read_journal

MakeConfig = Callable[..., Config]
MakeTown = Callable[..., Town]


class Turns:
    """Who may go on: one run at a time, the next after every answer. Runs are always mixed in the same way,
    and nothing of one process is used by both at the same moment."""

    def __init__(self, runs: Sequence[str]) -> None:
        self._order, self._changed = list(runs), Condition()

    def wait(self, run: str) -> None:
        with self._changed:
            self._changed.wait_for(lambda: self._order[0] == run, timeout=300)

    def hand_on(self, run: str) -> None:
        with self._changed:
            self._order.append(self._order.pop(0))
            self._changed.notify_all()
        self.wait(run)

    def end(self, run: str) -> None:
        with self._changed:
            self._order.remove(run)
            self._changed.notify_all()


@dataclass
class Shared(Wire):
    """A wire whose sites answer other runs in between."""

    turns: Turns | None = None
    run: str = ""

    def pull_messages(self, message_ids: Sequence[str]) -> Iterator[Message]:
        assert self.turns is not None
        for number in message_ids:
            for reply in list(super().pull_messages([number])):
                yield reply
                self.turns.hand_on(self.run)


def folder_of(town: Town, run: str) -> Path:
    return town.run.parent / run


def at_once(town: Town, configs: dict[str, Config]) -> dict[str, Result]:
    """What runs come to that have the sites of a town at the same time."""
    turns = Turns(tuple(configs))
    for run, config in configs.items():
        # The coordinator's end as the town has it: engine and sums are the same in all.
        config = replace(config, engine=town.config.engine, exchange=town.config.exchange)
        plan(config, folder_of(town, run), {name: name.encode() for name in town.sites})

    def go(run: str) -> Result:
        turns.wait(run)
        try:
            wire = Shared(town.wire.nodes, turns=turns, run=run)
            return coordinate(wire, folder_of(town, run))
        finally:
            turns.end(run)

    with ThreadPoolExecutor(len(configs)) as pool:
        return dict(zip(configs, pool.map(go, configs), strict=True))


def names(town: Town, run: str) -> list[str]:
    """The sites of a run."""
    return list(read_json(folder_of(town, run) / "roster.json", "")["sites"])


def asked(folder: Path) -> list[str]:
    """The runs whose questions a site answered, one after the other."""
    lines, _ = read_journal(folder / "journal.jsonl")
    return [line["run"] for line in lines if line["event"] == "answered"]


@pytest.mark.parametrize("ready", [site.READY, 1])
def test_a_site_is_in_the_runs_that_it_approves(
    ready: int,
    tiny: MakeConfig,
    town: MakeTown,
    once: Callable[[Config], Result],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """With memory for one run only a site makes network and data ready anew each time, to the same bits."""
    taken = Counter[str]()

    def take_part(options: Any, config: Any, folder: Path, *others: Any) -> Any:
        taken[f"{options.name} {config.method_name}"] += 1
        return real(options, config, folder, *others)

    real = site.take_part
    monkeypatch.setattr(site, "take_part", take_part)
    monkeypatch.setattr(site, "READY", ready)
    configs = {method: tiny(method, evaluate={"every": 2}) for method in ("fca", "fedavg")}
    policy = {f"site-0{i}": {"methods": approved(configs)} for i in range(2)}
    policy["site-02"] = {"methods": approved(["fedavg"])}
    alone = {"fca": town(configs["fca"], policy).go().state_hash}
    alone["fedavg"] = once(configs["fedavg"]).state_hash
    made = town(configs["fca"], policy)
    taken.clear()
    found = at_once(made, configs)
    assert {method: result.state_hash for method, result in found.items()} == alone
    assert names(made, "fca") == ["site-00", "site-01"]
    assert names(made, "fedavg") == ["site-00", "site-01", "site-02"]
    lines, _ = read_journal(folder_of(made, "fca") / "journal.jsonl")
    refused = [(line["site"], line["reason"]) for line in lines if line["event"] == "refused"]
    assert refused == [("site-02", "policy rule 'methods': 'fca' is not approved at this site")]
    order = asked(made.sites["site-00"])
    assert len(set(order)) == 2 and sum(a != b for a, b in pairwise(order)) > 2, order
    assert len(set(asked(made.sites["site-02"]))) == 1
    if ready > 1:
        assert set(taken.values()) == {1}, taken
    else:
        assert taken["site-00 fca"] > 1


def test_two_masked_runs(tiny: MakeConfig, town: MakeTown) -> None:
    """The secrets of one are not lost for the other's."""
    told = {"exact": False}
    configs = {
        f"seed-{seed}": tiny(exchange={"secure": True}, evaluate=told, train={"rounds": 2, "seed": seed})
        for seed in (1, 2)
    }
    alone = {run: with_keys(town(config)).go().state_hash for run, config in configs.items()}
    made = with_keys(town(configs["seed-1"]))
    found = at_once(made, configs)
    assert {run: result.state_hash for run, result in found.items()} == alone
    for run in configs:
        lines, _ = read_journal(folder_of(made, run) / "journal.jsonl")
        events = {line["event"] for line in lines}
        assert not events & {"refused", "failed", "rejected", "missing", "asked again"}, lines


def test_a_run_that_was_left_is_joined_anew(home: Any, tiny: MakeConfig) -> None:  # noqa: F811
    """Whoever deletes a run's folder keeps nothing of it in memory either."""
    desk = home()
    assert "card" in invite(desk, tiny())
    (run,) = desk._joined
    shutil.rmtree(desk.folder / "runs" / run)
    assert "card" in invite(desk, tiny(), train={"rounds": 7})
    assert desk._joined[run].config.train.rounds == 7
