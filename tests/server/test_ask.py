"""One conversation: guarded, reduced, journalled; a site that falls out stays out, and its private state is
not committed."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol

import pytest
import torch

from equipoise.engine import Question
from equipoise.errors import MethodError, SiteError
from equipoise.exchange import ExchangeOptions, Ledger, Line, encode_upload, unpack
from equipoise.exchange.ledger import entries
from equipoise.leaves import Each, Mean, Upload
from equipoise.server import Exchange, Journal

SITES = ("a", "b", "c")


def upload(x: float) -> Upload:
    return {
        "delta": Mean({"w": torch.tensor([x])}, 1.0),
        "loss": Mean(torch.tensor(x, dtype=torch.float64), 1.0),
    }


class Scripted:
    """Answers from a table (question, site) → bytes; a site that is not in it does not answer."""

    def __init__(self, answers: Mapping[tuple[str, str], bytes]) -> None:
        self.answers, self.asked = answers, list[tuple[Question, tuple[str, ...]]]()

    def ask(self, question: Question, sites: Sequence[str]) -> Iterator[tuple[str, bytes]]:
        self.asked.append((question, tuple(sites)))
        for site in sites:
            if (question.name, site) in self.answers:
                yield site, self.answers[question.name, site]

    def close(self) -> None:
        pass


def train() -> None: ...


def again() -> None: ...


def good(x: float, wrote: bool = True) -> bytes:
    return encode_upload(upload(x), {"wrote": wrote})


class Talk(Protocol):
    def __call__(
        self,
        answers: Mapping[tuple[str, str], bytes],
        versions: Mapping[str, str] | None = None,
        **facts: Any,
    ) -> tuple[Exchange, Scripted]: ...


@pytest.fixture
def talk(tmp_path: Path) -> Iterator[Talk]:
    """talk(answers, versions, …) → a conversation of round 5 and its engine."""
    journal = Journal(tmp_path / "journal.jsonl")

    def make(
        answers: Mapping[tuple[str, str], bytes], versions: Mapping[str, str] | None = None, **facts: Any
    ) -> tuple[Exchange, Scripted]:
        engine = Scripted(answers)
        lines = tuple(Line(name, 0, entries(upload(0.0)), 0) for name in ("train", "again"))
        options: dict[str, Any] = {
            "ledger": Ledger(lines),
            "limits": ExchangeOptions(),
            "rounds": 9,
            "seed": 0,
            "round": 5,
            "sites": SITES,
        }
        return Exchange(engine=engine, journal=journal, versions=versions or {}, **(options | facts)), engine

    yield make
    journal.close()


def events(folder: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (folder / "journal.jsonl").read_text().splitlines()]


def test_answers_are_reduced_and_numbers_kept(talk: Talk, tmp_path: Path) -> None:
    told: list[tuple[str, str]] = []
    sent = {("train", s): good(x) for s, x in zip(SITES, (1.0, 2.0, 6.0), strict=True)}
    ask, engine = talk(sent, progress=lambda *facts: told.append(facts))
    answers = ask(train, model={"w": torch.zeros(1)}, each={"b": {"x": torch.ones(2)}})
    assert answers["delta"]["w"].tolist() == [3.0]
    assert ask.numbers == {"train.loss": 3.0}
    question = engine.asked[0][0]
    assert list(unpack(question.payload)[1]) == ["model/w"]
    assert list(question.each) == ["b"]
    assert ask.bytes_up == sum(map(len, sent.values()))
    assert ask.bytes_down == 3 * len(question.payload) + len(question.each["b"])
    assert told == [("train", site) for site in SITES]
    assert events(tmp_path) == []


def test_a_bad_answer_is_journalled_and_the_site_stays_out(talk: Talk, tmp_path: Path) -> None:
    sent = {("train", "a"): good(1.0), ("train", "b"): good(float("nan")), ("train", "c"): good(3.0)}
    ask, engine = talk(sent | {("again", s): good(1.0) for s in SITES}, versions={"b": "4.0"})
    assert ask(train, model={})["delta"]["w"].tolist() == [2.0]
    assert ask.sites == ("a", "c")
    rejected, missing = events(tmp_path)
    assert (rejected["event"], rejected["site"], rejected["round"], rejected["question"]) == (
        "rejected",
        "b",
        6,
        "train",
    )
    assert "site 'b' was left out of 'train'" in rejected["reason"]
    assert (missing["event"], missing["sites"]) == ("missing", ["b"])
    ask(again, model={})
    assert engine.asked[1][1] == ("a", "c")
    assert ask.versions == {"a": "5.1", "b": "4.0", "c": "5.1"}


def test_private_versions_are_read_written_and_kept(talk: Talk) -> None:
    sent = {(q, s): good(1.0, wrote=s != "c") for q in ("train", "again") for s in SITES}
    committed = {"a": "4.0", "b": "2.1"}
    ask, engine = talk(sent, versions=committed)
    ask(train, model={})
    ask(again, model={})
    first, second = (question for question, _ in engine.asked)
    assert (first.write, second.write) == ("5.0", "5.1")
    assert first.read == committed
    assert second.read == {"a": "5.0", "b": "5.0"}
    assert second.keep == {"a": ("4.0",), "b": ("2.1",)}
    assert ask.versions == {"a": "5.1", "b": "5.1"}
    assert committed == {"a": "4.0", "b": "2.1"}


def test_a_question_to_everyone_reaches_all_and_keeps_nothing(talk: Talk, tmp_path: Path) -> None:
    sent = {("train", s): good(1.0) for s in "ac"} | {
        ("again", s): good(x) for s, x in (("a", 1.0), ("b", 2.0), ("c", 6.0))
    }
    ask, engine = talk(sent, {"a": "4.0", "b": "2.1"}, sites=("a", "c"), everyone=SITES, tuned=True)
    ask(train, model={})
    answers = ask(again, everyone=True, model={})
    assert answers["delta"]["w"].tolist() == [3.0] and answers.sites == SITES
    question, sites = engine.asked[1]
    assert sites == SITES and question.write is None and question.tuned is False
    assert question.read == {"a": "5.0", "b": "2.1", "c": "5.0"}
    assert ask.sites == ("a", "c")  # who only looked did not join the round
    assert ask.versions == {"a": "5.0", "b": "2.1", "c": "5.0"}
    assert events(tmp_path) == []
    ask(train, model={})
    assert engine.asked[2][1] == ("a", "c") and engine.asked[2][0].write == "5.2"


def test_who_fell_out_is_not_asked_again_with_everyone(talk: Talk, tmp_path: Path) -> None:
    sent = {
        ("train", "a"): good(1.0),
        ("again", "a"): good(1.0),
        ("again", "c"): good(3.0),
        ("again", "d"): good(5.0),
    }
    ask, engine = talk(sent, sites=("a", "c"), everyone=(*SITES, "d"))
    ask(train, model={})
    assert ask(again, everyone=True, model={}).sites == ("a", "d")
    assert engine.asked[1][1] == ("a", "b", "d")
    assert [line["sites"] for line in events(tmp_path)] == [["c"], ["b"]]
    assert ask.sites == ("a",)
    with pytest.raises(SiteError, match=r"only 2 of 2 sites gave a usable answer to 'again', 3 are needed"):
        talk(sent, sites=("a",), everyone=("a", "d"), limits=ExchangeOptions(min_sites=3))[0](
            again, everyone=True, model={}
        )


def test_a_listener_writes_nothing(talk: Talk) -> None:
    ask, engine = talk({("train", s): good(1.0, wrote=False) for s in SITES}, {"a": "4.0"}, writes=False)
    ask(train, model={})
    assert engine.asked[0][0].write is None
    assert ask.versions == {"a": "4.0"}


@pytest.mark.parametrize(("needed", "enough"), [(1, True), (2, True), (3, False)])
def test_too_few_usable_answers_stop_the_run(needed: int, enough: bool, talk: Talk, tmp_path: Path) -> None:
    sent = {("train", "a"): good(1.0), ("train", "b"): good(1.0)}
    ask, _ = talk(sent, limits=ExchangeOptions(min_sites=needed))
    if enough:
        assert ask(train, model={}).sites == ("a", "b")
        return
    with pytest.raises(
        SiteError, match=r"round 6: only 2 of 3 sites gave a usable answer to 'train', 3 are needed"
    ):
        ask(train, model={})
    assert events(tmp_path)[0]["sites"] == ["c"]


def test_no_answer_at_all_stops_the_run(talk: Talk) -> None:
    with pytest.raises(SiteError, match="only 0 of 3 sites"):
        talk({})[0](train, model={})


def test_a_question_outside_the_ledger_is_refused(talk: Talk) -> None:
    def other() -> None: ...

    with pytest.raises(MethodError, match="the question 'other' of round 5 is not in the ledger"):
        talk({})[0](other, model={})


def test_a_leaf_that_only_a_simulation_may_see_keeps_the_order(talk: Talk) -> None:
    sent = {
        ("train", s): encode_upload({"head": Each(torch.tensor([float(i)]))}) for i, s in enumerate(SITES)
    }
    ledger = Ledger((Line("train", 0, entries({"head": Each(torch.ones(1))}), 0),))
    ask, _ = talk(sent, ledger=ledger, sites=("c", "a", "b"))
    assert list(ask(train, model={})["head"]) == ["c", "a", "b"]


def test_the_coordinator_draws_by_round_and_purpose(talk: Talk) -> None:
    one, other = talk({})[0], talk({}, round=6)[0]
    draws = [
        torch.rand(1, generator=g).item()
        for g in (one.generator("x"), one.generator("x"), one.generator("y"), other.generator("x"))
    ]
    assert draws[0] == draws[1]
    assert len(set(draws)) == 3


def test_a_question_says_who_is_asked(talk: Talk) -> None:
    """Each site sees the others' names, and who fell out is not asked again."""
    ask, engine = talk(
        {
            ("train", "a"): good(1.0),
            ("train", "c"): good(2.0),
            ("again", "a"): good(1.0),
            ("again", "c"): good(2.0),
        }
    )
    ask(train)
    ask(again)
    assert [question.call(sites[0]).asked for question, sites in engine.asked] == [
        ("a", "b", "c"),
        ("a", "c"),
    ]
