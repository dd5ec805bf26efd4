"""Every method keeps every rule, and its numbers are those on file; what the rules are stands in
`equipoise.testing`."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial

import pytest
from tests.golden.figures import compare
from tests.light import ALIKE, LEARNING, OWN

from equipoise.methods import METHODS
from equipoise.testing import Bench, bench_checks, method_checks

OF_A_RUN = {"same_seed", "frozen", "ending", "global_rng", "site_order", "private"}
"""what a method could break only by questions or a server of its own, which those in ALIKE have not"""
OF_THE_ENGINE = {"pool", "dropout", "other_seed", "overfits"}
"""what a method could break only by what it asks, sends or keeps; and its loss has tests of its own"""
LEARNERS = ("fedavg", "fca", "fediic", "fedmlp")
"""with these alone: another seed, and learning by heart; golden numbers show that others learn as before"""
WITH_STATE = (
    *("fca", "fediic", "fedmas", "fedmlp", "fedsdc+", "equipoise"),
    *("fedavgm", "moon", "creff", "fedbabu", "cbafed", "rscfed"),
)
"""each keeps something else from round to round: what a resumed run must have again"""
IN_A_POOL = ("fediic", "fedmas", "fedmlp", "fedsdc+", "equipoise")
"""with two workers; fca has four of them, and fedavg and fedsdc send nothing that these do not"""
WITH_FOUR = ("fca", "fedsdc", "fediic", "fedmas", "creff", "fednoro")
"""with four workers, more than there are sites: methods with everything that could differ; the first in every
`make test`"""

PER_IMAGE = ("fedavg-pl", "fedprox", "fedfocal", "fedadam", "fedyogi", "fedadagrad")
"""what they add knows neither the classes of a site nor the other images of a batch: odd sites are nothing to
them that they are not to fedavg"""


def left_to_the_sweep(method: str, rule: str) -> bool:
    if rule == "odd_sites":
        return method in PER_IMAGE
    if rule in ("other_seed", "overfits"):
        return method not in LEARNERS
    if rule in OF_A_RUN:
        return method in ALIKE
    wanted = {"resume": WITH_STATE, "pool": IN_A_POOL}.get(rule, OWN)
    return method not in wanted and rule in {*OF_THE_ENGINE, "resume"}


def four_workers(bench: Bench) -> None:
    """Four workers give what one process gives."""
    assert bench.ordinary.difference(bench.run(bench.config().with_engine(kind="pool", workers=4))) is None


def cases() -> Iterator[object]:
    """All of one method side by side: they look at one run of it, and so do the numbers on file."""
    for method in METHODS:
        bench = Bench(method, LEARNING.get(method))
        yield pytest.param(partial(compare, method, bench), id=f"{method}-numbers")
        for name, check in bench_checks(bench):
            marks = [pytest.mark.sweep] if left_to_the_sweep(method, name) else []
            yield pytest.param(check, id=f"{method}-{name}", marks=marks)
        if method in WITH_FOUR:
            marks = [pytest.mark.sweep] if method != WITH_FOUR[0] else []
            yield pytest.param(partial(four_workers, bench), id=f"{method}-four_workers", marks=marks)


@pytest.mark.parametrize("check", list(cases()))
def test_method(check: Callable[[], None]) -> None:
    check()


BOTH = [name for name, cls in METHODS.items() if {"single", "multi"} <= set(cls.tasks)]
TASK_MATTERS = ("ledger", "odd_sites", "neutral")


@pytest.mark.slow
@pytest.mark.parametrize(
    "method",
    [pytest.param(name, marks=[] if name in ("fedavg", "fednoro") else pytest.mark.sweep) for name in BOTH],
)
def test_method_for_several_labels(method: str) -> None:
    for _, check in method_checks(method, LEARNING.get(method), task="multi", only=TASK_MATTERS):
        check()


@pytest.mark.sweep
@pytest.mark.parametrize("method", BOTH)
def test_method_for_several_labels_learns(method: str) -> None:
    """Of the methods for several labels alone, fedmlp does on every run. FedProc begins with prototypes only,
    and with its ramp over all three rounds it is as good as the rule asks or not, by the processor."""
    options = LEARNING.get(method, {}) | ({"ramp": 1} if method == "fedproc" else {})
    for _, check in method_checks(method, options, task="multi", only=["overfits"]):
        check()
