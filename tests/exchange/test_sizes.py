"""How large answers are beside each other: one that is far larger is left out, and none that is not."""

from __future__ import annotations

import itertools

import pytest
import torch

from equipoise.exchange import Bounds, Line, Sizes, smaller
from equipoise.exchange.ledger import Entry
from equipoise.leaves import Each, Limit, Mean, Sum, Upload

RATIO = 30.0
SENT = {"w": torch.full((4,), 5.0)}
LINE = Line("train", 0, (Entry("delta", "w", "mean", "float32", (4,), ()),), 0)
"""the model has norm 10, so a change of norm 1 is harmless"""


def delta(norm: float) -> Upload:
    return {"delta": Mean({"w": torch.tensor([norm, 0.0, 0.0, 0.0])}, 1.0)}


def left_out(norms: dict[str, float], known: float = 0.0) -> set[str]:
    """Who is left out; the same in every order of arrival, and nobody is said to pass at once who would not
    in the end."""
    found = []
    for order in itertools.islice(itertools.permutations(norms), 24):
        sizes = Sizes(LINE, Bounds(), RATIO, {"train.delta": known} if known else {}, SENT)
        at_once = {site for site in order if sizes.measure(site, delta(norms[site]))}
        out = {site for site in order if site not in at_once and sizes.problem(site)}
        assert not any(sizes.problem(site) for site in at_once)
        found.append(out)
    assert all(out == found[0] for out in found)
    return found[0]


@pytest.mark.parametrize(
    ("norms", "expected"),
    [
        ({"a": 2, "b": 3, "c": 4, "d": 3}, set()),
        ({"a": 2, "b": 3, "c": 4, "d": 89}, set()),  # the median of the others is 3, times 30
        ({"a": 2, "b": 3, "c": 4, "d": 91}, {"d"}),
        ({"a": 2, "b": 3, "c": 1e5, "d": 1e4}, {"c", "d"}),
        ({"a": 2, "b": 2, "c": 2, "d": 1e5, "e": 1e4}, {"d", "e"}),
        (
            {"a": 0.5, "b": 1e-6, "c": 1e-6, "d": 1e-6},
            set(),
        ),  # harmless, however much larger than the others'
        ({"a": 2, "b": 1e-6, "c": 1e-6, "d": 1e-6}, {"a"}),
        ({"a": 2, "b": 0, "c": 0, "d": 0}, set()),  # nothing to compare with but the model itself
        ({"a": 2, "b": 299}, set()),  # of two nobody can say which, unless one is 30 times the model
        ({"a": 2, "b": 301}, {"b"}),
        ({"a": 299}, set()),
        ({"a": 301}, {"a"}),
        ({"a": 2, "b": 3, "c": 0}, set()),  # a site that sends nothing cannot have an honest one left out
        ({"a": 2, "b": 3, "c": 1e5}, {"c"}),
    ],
)
def test_what_is_far_larger_than_the_others_is_left_out(norms: dict[str, float], expected: set[str]) -> None:
    assert left_out(norms) == expected


def test_what_earlier_rounds_have_shown_counts() -> None:
    converged = {"a": 1e-6, "b": 1e-6, "c": 1e-6, "hard": 2.0}
    assert left_out(converged) == {"hard"}
    assert left_out(converged, known=0.1) == set()
    assert left_out({"a": 2, "b": 1e5}, known=2.0) == {"b"}
    assert left_out({"a": 1e5}, known=2.0) == {"a"}
    assert left_out({"a": 200, "b": 300, "c": 200}, known=2.0) == set()  # all of them have become larger


def test_one_site_cannot_move_what_is_remembered() -> None:
    def remembered(**norms: float) -> dict[str, float]:
        sizes = Sizes(LINE, Bounds(), RATIO, {"train.delta": 1.5}, SENT)
        for site, norm in norms.items():
            sizes.measure(site, delta(norm))
        return sizes.remembered(norms)

    assert remembered(a=2, b=3, c=1e4) == {"train.delta": 3.0}
    assert remembered(a=2, b=3, c=4, d=1e4) == {"train.delta": 3.0}
    assert remembered(a=0.1, b=0.1, c=0.1) == {"train.delta": 1.5}
    assert remembered(a=2, b=1e4) == {} and remembered(a=1e4) == {}


def test_what_runs_ahead_is_slowed_to_a_third_of_what_is_left_out() -> None:
    """The median of the others is 3: up to 10 times that is taken as it is, up to 30 times made 10 times,
    more left out."""
    line = Line("train", 0, (*LINE.up, Entry("delta", "n.running_mean", "mean", "float32", (2,))), 0)
    sizes = Sizes(line, Bounds(), RATIO, {}, SENT | {"n.running_mean": torch.ones(2)})
    for site, norm, mean in (
        ("a", 3, 5),
        ("b", 3, 5),
        ("c", 29, 5),
        ("d", 60, 5),
        ("e", 60, 100),
        ("f", 3, 5),
        ("g", 3, 5),
    ):
        upload: Upload = {
            "delta": Mean(
                {"w": delta(norm)["delta"].value["w"], "n.running_mean": torch.tensor([mean, 0.0])}, 2.0
            )
        }
        sizes.measure(site, upload)
    assert not any(sizes.problem(site) for site in "abcdefg")
    assert not any(sizes.slowed(site) for site in "abcfg")
    assert sizes.slowed("d") == {("delta", ""): 0.5}
    assert sizes.slowed("e") == {("delta", ""): 0.5, ("delta", "running_"): 0.5}
    half = smaller(upload | {"loss": Sum(torch.tensor(7.0))}, {("delta", ""): 0.5})
    assert half["delta"].value["w"].tolist() == [1.5, 0.0, 0.0, 0.0]
    assert half["delta"].value["n.running_mean"].tolist() == [5.0, 0.0]
    assert half["delta"].weight == 2.0 and half["loss"].value == 7.0
    assert smaller({"head": Each(torch.ones(2))}, {("head", ""): 0.25})["head"].value.tolist() == [0.25, 0.25]


def test_only_real_numbers_that_no_limit_bounds_are_judged() -> None:
    entries = (
        Entry("loss", "", "mean", "float64", (), ()),
        Entry("total", "", "sum", "float64", (4,)),
        Entry("count", "", "each", "int64", (4,)),
        Entry("scores", "", "each", "float32", (None, 4)),
        Entry("bounded", "", "each", "float32", (4,)),
        Entry("prototypes", "", "mean", "float32", (4,), ()),
        Entry("head", "", "each", "float32", (4,)),
    )

    def upload(scale: float) -> Upload:
        x = torch.tensor([scale, 0.0, 0.0, 0.0])
        return {
            "loss": Mean(torch.tensor(scale, dtype=torch.float64), 1.0),
            "total": Sum(x.double()),
            "count": Each(x.long()),
            "scores": Each(x[None]),
            "bounded": Each(x),
            "prototypes": Mean(x, 1.0),
            "head": Each(x),
        }

    def reasons(**scales: float) -> str | None:
        sizes = Sizes(
            Line("train", 0, entries, 0), Bounds({"train.bounded": Limit(plain=1e9)}), RATIO, {}, SENT
        )
        for site, scale in scales.items():
            sizes.measure(site, upload(scale))
        return sizes.problem("d")

    assert reasons(a=3, b=3, c=3, d=80) is None
    assert "leaf 'head' is 200 times" in str(reasons(a=3, b=3, c=3, d=600))
    assert "leaf 'prototypes' is" in str(reasons(a=3, b=3, c=3, d=1000))  # ten times as lenient: 300 · 3
