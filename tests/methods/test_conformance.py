"""Every method keeps every rule; what the rules are stands in `equipoise.testing`."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest
from tests.light import ALIKE, LEARNING, one_of_a_kind

from equipoise.methods import METHODS
from equipoise.testing import Bench, method_checks

SLOW = {"pool"}
"""starts worker processes"""
OF_THE_ENGINE = {"pool", "resume", "dropout", "other_seed"}
"""what a method could break only by what it asks, sends or keeps"""


def cases() -> Iterator[object]:
    for method in METHODS:
        for name, check in method_checks(method, LEARNING.get(method)):
            marks = [pytest.mark.slow] if name in SLOW else []
            if method in ALIKE and name in OF_THE_ENGINE:
                marks.append(pytest.mark.sweep)
            yield pytest.param(check, id=f"{method}-{name}", marks=marks)


@pytest.mark.parametrize("check", list(cases()))
def test_method(check: Callable[[], None]) -> None:
    check()


@pytest.mark.slow
@pytest.mark.parametrize(
    "method",
    [
        *("fca", "fedsdc"),
        *(pytest.param(name, marks=pytest.mark.sweep) for name in ("fediic", "fedmas", "creff", "fednoro")),
    ],
)
def test_four_workers_give_what_one_process_gives(method: str) -> None:
    """More workers than sites, for methods with everything that could differ; the rule 'pool' has two workers
    for all."""
    bench = Bench(method, LEARNING.get(method))
    assert bench.ordinary.difference(bench.run(bench.config().with_engine(kind="pool", workers=4))) is None


BOTH = [name for name, cls in METHODS.items() if {"single", "multi"} <= set(cls.tasks)]
TASK_MATTERS = ("ledger", "odd_sites", "neutral", "overfits")


@pytest.mark.slow
@pytest.mark.parametrize("method", one_of_a_kind(BOTH, but=["fedavgm", "fedrep", "local", "isfl", "climb"]))
def test_method_for_several_labels(method: str) -> None:
    for _, check in method_checks(method, LEARNING.get(method), task="multi", only=TASK_MATTERS):
        check()
