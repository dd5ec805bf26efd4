"""Masked runs in simulation: the same model as without masks, in one process and in several."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path

import pytest
from tests.light import LIGHTEST

from equipoise.config import Config, resolve
from equipoise.engine import Engine, Question, Serial
from equipoise.errors import ConfigError, SiteError
from equipoise.methods import METHODS
from equipoise.running import Result, run

MakeConfig = Callable[..., Config]
Once = Callable[[Config], Result]


def pair(tiny: MakeConfig, method: str, **sections: dict[str, object]) -> tuple[Config, Config]:
    """A plain run and the same one masked."""
    train = {"batch_size": 32, **sections.get("train", {})}
    sections = {"evaluate": {"exact": False, "every": 2}, **sections, "train": train}
    return tiny(method, **sections), tiny(method, exchange={"secure": True}, **sections)


@pytest.mark.parametrize("method", ["fedavg", "fca", "fediic", "climb"])
def test_a_masked_run_ends_as_a_plain_one(method: str, tiny: MakeConfig, once: Once) -> None:
    plain, masked = pair(tiny, method)
    assert run(masked).state_hash == once(plain).state_hash


def test_in_a_pool_too(tiny: MakeConfig, once: Once) -> None:
    plain, masked = pair(tiny, "fedavg")
    pool = masked.with_engine(kind="pool", workers=2)
    assert run(pool).state_hash == once(plain).state_hash


def test_sites_drawn_for_a_round(tiny: MakeConfig, once: Once) -> None:
    plain, masked = pair(tiny, "fedavg", partition={"kind": "iid", "sites": 5}, train={"participation": 0.6})
    assert run(masked).state_hash == once(plain).state_hash


class Lossy:
    """Loses some sites in round 1: `before` they hear of a question, `during` their answers are on their way,
    or `after` that, when the sum is to be unmasked."""

    def __init__(self, engine: Engine, lost: Sequence[str], moment: str) -> None:
        assert isinstance(engine, Serial)
        self.engine, self.lost, self.moment, self.run = engine, lost, moment, engine.run

    def ask(self, question: Question, sites: Sequence[str]) -> Iterator[tuple[str, bytes]]:
        away = set(self.lost) if question.round == 1 else set()
        if self.moment == "before":
            sites = [site for site in sites if site not in away]
        for site, data in self.engine.ask(question, sites):
            if not (site in away and self.moment == "during"):
                yield site, data

    def relay(self, step: str, letters: Mapping[str, bytes], round: int) -> Iterator[tuple[str, bytes]]:
        for site, data in self.engine.relay(step, letters, round):
            away = site in self.lost and round == 1
            silent = {"before": True, "during": False, "after": step == "unmask"}[self.moment]
            if not (away and silent):
                yield site, data

    def close(self) -> None:
        self.engine.close()


def check_drop_outs(plain: Config, masked: Config, lost: Sequence[str], once: Once) -> None:
    """Sites that are lost before or during masking: as a plain run without their answers. After it: as a
    plain run with them."""

    def end(config: Config, moment: str) -> str:
        return run(config, wrap=lambda engine: Lossy(engine, lost, moment)).state_hash

    without = end(plain, "during")
    assert end(plain, "before") == without
    assert end(masked, "before") == without
    assert end(masked, "during") == without
    assert end(masked, "after") == once(plain).state_hash != without


def test_drop_outs_change_nothing_for_the_others(tiny: MakeConfig, once: Once) -> None:
    check_drop_outs(*pair(tiny, "fedavg", partition={"kind": "iid", "sites": 4}), ["site-01"], once)


# Every method -----------------------------------------------------------------------------------------------


def whole(method: str, sites: int) -> tuple[Config, Config]:
    """Three rounds of a method, in all its phases, plain and masked."""
    multi = "single" not in METHODS[method].tasks
    table = {
        "data": {"kind": "phantom", "scale": 0.004, "image_size": 16, "task": "multi" if multi else "single"},
        "partition": {"kind": "iid", "sites": sites} | ({"missing": 1} if multi else {}),
        "method": {"name": method, **LIGHTEST.get(method, {})},
        "train": {"rounds": 3, "batch_size": 8},
        "evaluate": {"exact": False, "every": 3},
        "engine": {"device": "cpu"},
    }
    return resolve(table), resolve(table | {"exchange": {"secure": True}})


@pytest.mark.sweep
@pytest.mark.parametrize("method", sorted(set(METHODS) - {"centralised", "local"}))  # no sum; no model
def test_every_method_ends_as_without_masks(method: str, once: Once) -> None:
    """With all of its four sites, and with one lost at any moment."""
    plain, masked = whole(method, 4)
    assert run(masked).state_hash == once(plain).state_hash
    check_drop_outs(plain, masked, ["site-02"], once)


@pytest.mark.sweep
@pytest.mark.parametrize("lost", [1, 2])
@pytest.mark.parametrize("method", ["fedavg", "fca", "fediic"])
def test_of_seven_sites_two_may_be_lost(method: str, lost: int, once: Once) -> None:
    check_drop_outs(*whole(method, 7), [f"site-0{i}" for i in range(1, 1 + lost)], once)


def test_pooled_training_has_no_sites_to_mask(tiny: MakeConfig) -> None:
    with pytest.raises(ConfigError, match="no sum to mask"):
        run(pair(tiny, "centralised")[1])


def test_two_lost_of_four_stop_the_run(tiny: MakeConfig) -> None:
    _, masked = pair(tiny, "fedavg", partition={"kind": "iid", "sites": 4})
    with pytest.raises(SiteError, match="3 are needed"):
        run(masked, wrap=lambda engine: Lossy(engine, ["site-00", "site-01"], "during"))


def test_two_sites_are_too_few(tiny: MakeConfig) -> None:
    _, masked = pair(tiny, "fedavg", partition={"kind": "iid", "sites": 2})
    with pytest.raises(ConfigError, match="no fewer than 3 sites"):
        run(masked)


def test_a_run_that_is_killed_and_resumed(tiny: MakeConfig, once: Once, tmp_path: Path) -> None:
    plain, masked = pair(tiny, "fedavg")

    class Killed(Exception):
        pass

    class Dying(Lossy):
        def ask(self, question: Question, sites: Sequence[str]) -> Iterator[tuple[str, bytes]]:
            if question.round == 1:
                raise Killed
            return super().ask(question, sites)

    with pytest.raises(Killed):
        run(masked, tmp_path, wrap=lambda engine: Dying(engine, [], "during"))
    assert run(masked, tmp_path).state_hash == once(plain).state_hash


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
        run(masked, wrap=lambda engine: Swapping(engine, [], "during"))
