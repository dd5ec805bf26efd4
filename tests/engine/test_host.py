"""The host: every error names site, round and question; what a question depends on is set anew; the global
generator is left."""

from __future__ import annotations

import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from equipoise.config import Config
from equipoise.engine import Host, Question
from equipoise.engine.host import isolated
from equipoise.errors import MethodError, SiteError, StorageError
from equipoise.exchange import decode_upload, pack
from equipoise.running import run
from equipoise.setup import make_host, material
from equipoise.tree import flatten

MakeConfig = Callable[..., Config]


def host_of(config: Config, folder: Path) -> Host:
    return make_host(config, material(config), folder)


@pytest.fixture(scope="module")
def host(tiny: MakeConfig, tmp_path_factory: pytest.TempPathFactory) -> Host:
    return host_of(tiny("fca"), tmp_path_factory.mktemp("private"))


def ask(host: Host, name: str, site: str, round: int = 0, **facts: Any) -> bytes:
    """One answer to a broadcast of the first server tree."""
    first = {name: host.initial[name] for name in host.shared}
    question = Question(name, round, pack({}, flatten({"model": first})), **facts)
    return host.answer(question.call(site), question.payload)


def test_an_unknown_question_is_refused(host: Host) -> None:
    with pytest.raises(MethodError, match=r"unknown question 'trian': did you mean 'train'"):
        ask(host, "trian", "site-00")
    for hook in ("init_site", "prepare", "loss", "round", "__init__", "model_dump"):
        with pytest.raises(MethodError, match="unknown question"):
            ask(host, hook, "site-00")


def test_an_unknown_site_is_refused(host: Host) -> None:
    with pytest.raises(SiteError, match=r"unknown site 'site-0': did you mean 'site-0\d'"):
        ask(host, "train", "site-0")


def test_the_same_question_gets_the_same_bytes_whatever_came_before(host: Host) -> None:
    first = ask(host, "train", "site-00")
    ask(host, "train", "site-01", round=3)
    ask(host, "train", "site-02")
    assert ask(host, "train", "site-00") == first
    assert ask(host, "train", "site-00", round=1) != first


def test_the_header_says_whose_answer_it_is_and_whether_something_was_kept(host: Host) -> None:
    header, upload = decode_upload(ask(host, "train", "site-01", write="0.0"))
    assert {key: header[key] for key in ("site", "round", "question", "wrote")} == {
        "site": "site-01",
        "round": 0,
        "question": "train",
        "wrote": True,
    }
    assert not any(
        "head.own" in name
        for leaf in upload.values()
        if isinstance(leaf.value, dict)
        for name in flatten(leaf.value)
    )
    assert decode_upload(ask(host, "train", "site-01"))[0]["wrote"] is False
    assert all(name.startswith("head.own.") for name in host.private)
    assert host.private


def test_a_site_goes_on_from_the_version_it_is_told_to_read(host: Host) -> None:
    ask(host, "train", "site-02", write="0.0")
    ask(host, "train", "site-02", round=1, read={"site-02": "0.0"}, write="1.0")
    once = host.store.read("site-02", "1.0")
    ask(host, "train", "site-02", round=1, read={"site-02": "0.0"}, write="1.0")
    again = host.store.read("site-02", "1.0")
    assert all(torch.equal(once[name], again[name]) for name in once)
    assert any(
        not torch.equal(once[name], value)
        for name, value in host.store.read("site-02", "0.0").items()
        if "own" in name
    )


def test_a_version_that_is_not_there_is_a_storage_error(host: Host) -> None:
    with pytest.raises(StorageError, match=r"private state '7\.0' of site 'site-00'"):
        ask(host, "train", "site-00", round=8, read={"site-00": "7.0"})


def test_layers_draw_from_a_seeded_generator_and_the_global_one_is_as_before() -> None:
    def drawn() -> list[float]:
        return [*torch.rand(3).tolist(), *np.random.rand(3).tolist(), random.random()]

    def states() -> tuple[Any, ...]:
        return torch.get_rng_state().tolist(), repr(np.random.get_state(legacy=False)), random.getstate()

    before = states()
    with isolated(5, torch.device("cpu")):
        first = drawn()
    with isolated(5, torch.device("cpu")):
        assert drawn() == first
    with pytest.raises(ZeroDivisionError), isolated(5, torch.device("cpu")):
        drawn()[0] / (1 // 0)
    assert states() == before


FAILING = """
from equipoise.methods import Method

class Failing(Method):
    '''Fails at one site in one round.'''
    def train(self, net, loc):
        if loc.site == "site-01" and loc.round == 1:
            raise ZeroDivisionError("nothing to divide by")
        return super().train(net, loc)

class Asks(Method):
    '''Asks in round 1 what it did not ask in round 0.'''
    def extra(self, net, loc):
        return {}
    def round(self, server, ask):
        if ask.round == 1:
            ask(self.extra, model=server["model"])
        return super().round(server, ask)
"""


@pytest.mark.parametrize("kind", ["serial", pytest.param("pool", marks=pytest.mark.slow)])
def test_a_method_s_error_names_site_round_and_question(kind: str, tiny: MakeConfig, tmp_path: Path) -> None:
    (tmp_path / "failing.py").write_text(FAILING)
    config = tiny("failing.py:Failing", base=tmp_path, engine={"kind": kind})
    with pytest.raises(SiteError) as caught:
        run(config, tmp_path / "run")
    assert (
        str(caught.value)
        == "site 'site-01' failed in round 2 at 'train': ZeroDivisionError: nothing to divide by"
    )


def test_a_question_outside_the_ledger_is_refused(tiny: MakeConfig, tmp_path: Path) -> None:
    (tmp_path / "asks.py").write_text(FAILING)
    with pytest.raises(MethodError, match=r"'extra' of round 1 is not in the ledger.*phases\(\)"):
        run(tiny("asks.py:Asks", base=tmp_path), tmp_path / "run")
