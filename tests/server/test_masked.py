"""Masked runs in simulation: the same model as without masks, in one process and in several."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path

import pytest

from equipoise.config import Config
from equipoise.engine import Engine, Question, Serial
from equipoise.errors import ConfigError, SiteError
from equipoise.methods import METHODS
from equipoise.running import run

MakeConfig = Callable[..., Config]


def pair(tiny: MakeConfig, method: str, **sections: dict[str, object]) -> tuple[Config, Config]:
    """A plain run and the same one masked."""
    sections = {"evaluate": {"exact": False}, **sections}
    return tiny(method, **sections), tiny(method, exchange={"secure": True}, **sections)


@pytest.mark.parametrize("method", ["fedavg", "fca", "fediic", "climb"])
def test_a_masked_run_ends_as_a_plain_one(method: str, tiny: MakeConfig) -> None:
    plain, masked = pair(tiny, method)
    assert run(masked).state_hash == run(plain).state_hash


@pytest.mark.sweep
@pytest.mark.parametrize("method", sorted(METHODS))
def test_every_method_does(method: str, tiny: MakeConfig) -> None:
    task = {} if "single" in METHODS[method].tasks else {"data": {"labels": "multi"}}
    plain, masked = pair(tiny, method, **task)
    assert run(masked).state_hash == run(plain).state_hash


def test_in_a_pool_too(tiny: MakeConfig) -> None:
    plain, masked = pair(tiny, "fedavg")
    pool = masked.with_engine(kind="pool", workers=2)
    assert run(pool).state_hash == run(plain).state_hash


def test_sites_drawn_for_a_round(tiny: MakeConfig) -> None:
    plain, masked = pair(tiny, "fedavg", partition={"kind": "iid", "sites": 5}, train={"participation": 0.6})
    assert run(masked).state_hash == run(plain).state_hash


class Lossy:
    """Loses the answers of some sites to `train`, or their part in unmasking it, in round 1."""

    def __init__(self, engine: Engine, lost: Sequence[str], moment: str) -> None:
        assert isinstance(engine, Serial)
        self.engine, self.lost, self.moment, self.run = engine, lost, moment, engine.run
        self.last = ""

    def ask(self, question: Question, sites: Sequence[str]) -> Iterator[tuple[str, bytes]]:
        self.last = question.name
        for site, data in self.engine.ask(question, sites):
            away = site in self.lost and (question.round, question.name) == (1, "train")
            if not (away and self.moment == "before"):
                yield site, data

    def relay(self, step: str, letters: Mapping[str, bytes], round: int) -> Iterator[tuple[str, bytes]]:
        for site, data in self.engine.relay(step, letters, round):
            away = site in self.lost and (round, self.last, step) == (1, "train", "unmask")
            if not (away and self.moment == "after"):
                yield site, data

    def close(self) -> None:
        self.engine.close()


@pytest.mark.parametrize("moment", ["before", "after"])
def test_drop_outs_change_nothing_for_the_others(moment: str, tiny: MakeConfig) -> None:
    """Lost before masking: as a plain run without that answer. Lost afterwards: as one with it."""
    lost = ["site-01"]
    plain, masked = pair(tiny, "fedavg", partition={"kind": "iid", "sites": 4})
    found = run(masked, wrap=lambda engine: Lossy(engine, lost, moment)).state_hash
    if moment == "before":
        expected = run(plain, wrap=lambda engine: Lossy(engine, lost, moment)).state_hash
    else:
        expected = run(plain).state_hash
    assert found == expected


def test_two_lost_of_four_stop_the_run(tiny: MakeConfig) -> None:
    _, masked = pair(tiny, "fedavg", partition={"kind": "iid", "sites": 4})
    with pytest.raises(SiteError, match="3 are needed"):
        run(masked, wrap=lambda engine: Lossy(engine, ["site-00", "site-01"], "before"))


def test_two_sites_are_too_few(tiny: MakeConfig) -> None:
    _, masked = pair(tiny, "fedavg", partition={"kind": "iid", "sites": 2})
    with pytest.raises(ConfigError, match="no fewer than 3 sites"):
        run(masked)


def test_a_run_that_is_killed_and_resumed(tiny: MakeConfig, tmp_path: Path) -> None:
    plain, masked = pair(tiny, "fedavg")

    class Killed(Exception):
        pass

    class Dying(Lossy):
        def ask(self, question: Question, sites: Sequence[str]) -> Iterator[tuple[str, bytes]]:
            if question.round == 1:
                raise Killed
            return super().ask(question, sites)

    with pytest.raises(Killed):
        run(masked, tmp_path, wrap=lambda engine: Dying(engine, [], ""))
    assert run(masked, tmp_path).state_hash == run(plain).state_hash


class Swapping(Lossy):
    """A coordinator that sends one site another model in round 1."""

    def ask(self, question: Question, sites: Sequence[str]) -> Iterator[tuple[str, bytes]]:
        from dataclasses import replace

        for site in sites:
            one = question
            if (question.round, question.name, site) == (1, "train", "site-02"):
                changed = bytearray(question.payload)
                changed[-5] ^= 1
                one = replace(question, payload=bytes(changed))
            yield from self.engine.ask(one, [site])


def test_a_site_that_is_sent_another_model_makes_the_sum_noise(tiny: MakeConfig) -> None:
    _, masked = pair(tiny, "fedavg")
    with pytest.raises(SiteError, match="a site was sent other tensors than the others"):
        run(masked, wrap=lambda engine: Swapping(engine, [], ""))
