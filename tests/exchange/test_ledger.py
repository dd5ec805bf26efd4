"""The ledger: entries of an answer, merging over sites, the line in force, rows for tables."""

from __future__ import annotations

import pytest
import torch

from equipoise.errors import MethodError
from equipoise.exchange import Ledger, Line
from equipoise.exchange.ledger import Entry, entries, merge
from equipoise.leaves import Each, Mean, Sum


def test_entries_say_kind_dtype_shape_and_weight() -> None:
    found = entries(
        {"d": Mean({"w": torch.ones(2, 3), "b": {"c": torch.ones(3)}}, 4.0), "n": Sum(torch.tensor([1, 2]))}
    )
    assert found == (
        Entry("d", "b/c", "mean", "float32", (3,), ()),
        Entry("d", "w", "mean", "float32", (2, 3)),
        Entry("n", "", "sum", "int64", (2,)),
    )
    assert [e.name for e in found] == ["d/b/c", "d/w", "n"]
    assert [e.bytes() for e in found] == [3 * 4 + 8, 6 * 4, 2 * 8]


def test_a_length_that_differs_from_site_to_site_is_open() -> None:
    merged = merge([entries({"s": Each(torch.ones(n, 3))}) for n in (4, 5)])
    assert merged == (Entry("s", "", "each", "float32", (None, 3)),)
    assert merged[0].bytes(rows=100) == 100 * 3 * 4


@pytest.mark.parametrize(
    "other", [Sum(torch.ones(4, 3)), Each(torch.ones(4, 3, dtype=torch.float64)), Each(torch.ones(4))]
)
def test_sites_must_give_the_same_leaves(other: Sum | Each) -> None:
    with pytest.raises(MethodError, match="'s' is not the same at every site"):
        merge([entries({"s": Each(torch.ones(4, 3))}), entries({"s": other})])


def test_sites_must_give_as_many_leaves() -> None:
    one, two = (
        entries({"s": Each(torch.ones(4))}),
        entries({"s": Each(torch.ones(4)), "t": Sum(torch.ones(1))}),
    )
    for pair in ([one, two], [two, one]):
        with pytest.raises(MethodError, match="different leaves"):
            merge(pair)


def test_the_newest_line_of_a_question_is_in_force() -> None:
    early, late = Line("train", 0, (), 1), Line("train", 5, (), 2)
    ledger = Ledger((early, late))
    assert ledger.line("train", 4) is early
    assert ledger.line("train", 5) is late
    assert ledger.line("evaluate", 5) is None


def test_rows_count_the_tensors_of_a_leaf_together() -> None:
    up = merge(
        [
            entries(
                {"d": Mean({"w": torch.ones(2, 3), "b": torch.ones(3)}, 4.0), "s": Each(torch.ones(n, 3))}
            )
            for n in (4, 5)
        ]
    )
    delta, scores = Ledger((Line("train", 0, up, 10),)).rows()
    assert (delta["leaf"], delta["kind"], delta["shape"], delta["bytes"], delta["varies"]) == (
        "d",
        "mean",
        "2 tensors",
        44,
        False,
    )
    assert (scores["shape"], scores["varies"]) == ("n×3", True)
    assert "own value" in scores["read_by"]
    assert "only" in delta["read_by"]
