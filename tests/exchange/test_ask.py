"""One `ask` for all: what a question holds, and what becomes of its answers, whoever answers."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import torch
from torch import Tensor

from equipoise.engine.probe import Trial
from equipoise.exchange import Ask, Question, unpack
from equipoise.leaves import Each, Mean, Upload
from equipoise.server import Exchange


class Echo(Ask):
    """Every site but the last answers with a number, and remembers something."""

    def __init__(self, **facts: Any) -> None:
        super().__init__(**{"sites": ("a", "b", "c"), "round": 5, "rounds": 9, "seed": 0} | facts)
        self.asked: list[Question] = []
        self.sent: list[Mapping[str, Tensor]] = []

    def _answers(self, asked: Question, sent: Mapping[str, Tensor]) -> Iterator[tuple[str, bool, Upload]]:
        self.asked.append(asked)
        self.sent.append(sent)
        for i, site in enumerate(reversed(asked.asked[:-1])):
            yield (
                site,
                i == 0,
                {"loss": Mean(torch.tensor(float(i)), 1.0), "site": Each(torch.tensor(ord(site)))},
            )


def look() -> Upload:
    raise AssertionError


def test_what_is_sent_and_what_comes_back() -> None:
    ask = Echo(versions={"a": "3.0", "x": "1.0"}, durable={"a": "2.0"}, pinned=[{"a": "1.0", "b": "1.1"}])
    answers = ask(look, model={"w": torch.ones(2)}, each={"b": {"head": {"v": torch.zeros(1)}}, "x": {}})
    question = ask.asked[0]
    assert (question.name, question.round, question.asked) == ("look", 5, ("a", "b", "c"))
    assert list(unpack(question.payload)[1]) == ["model/w"] and list(question.each) == ["b"]
    assert list(unpack(question.each["b"])[1]) == ["head/v"]
    assert set(ask.sent[0]) == {"w", "v"}
    assert question.call("a").read == "3.0" and question.call("b").read is None
    assert question.keep == {"a": ("1.0", "2.0", "3.0"), "b": ("1.1",)} and question.write == "5.0"
    assert list(answers["site"]) == ["a", "b"]  # the federation's order, whatever the order of arrival
    assert float(answers["loss"]) == 0.5 and ask.numbers == {"look.loss": 0.5}
    assert ask.versions == {"a": "3.0", "x": "1.0", "b": "5.0"}
    ask(look)
    assert ask.asked[1].write == "5.1" and ask.asked[1].call("b").read == "5.0"


def test_a_question_to_everyone_only_looks() -> None:
    ask = Echo(sites=("b",), everyone=("a", "b", "c"), tuned=True)
    ask(look, everyone=True)
    assert ask.asked[0].asked == ("a", "b", "c") and ask.asked[0].write is None and not ask.asked[0].tuned
    assert ask.versions == {} and ask.sites == ("b",)


def test_a_run_and_the_probe_ask_in_the_same_way() -> None:
    for kind in (Exchange, Trial):
        assert issubclass(kind, Ask)
        assert not {"__call__", "generator"} & set(vars(kind))
