"""What is told class by class, told without some classes: sums stay exact, and nothing of those is left."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from equipoise.exchange import Reduction
from equipoise.exchange.ledger import entries
from equipoise.exchange.withhold import by_class, withhold
from equipoise.leaves import Each, Mean, Sum

PARAMETERS = ("body.conv.weight", "head.fed.bias")
GONE = torch.tensor([False, True, False])


def told(upload: dict[str, Any]) -> tuple[dict[str, Any], list[str]]:
    return withhold(upload, lambda entry: GONE, 3, PARAMETERS)


def test_what_counts_as_told_by_class() -> None:
    (entry,) = entries({"x": Sum(torch.ones(2, 3))})
    assert by_class(entry, 3, ()) and not by_class(entry, 4, ())


def test_sums_lose_the_cells_and_nothing_else() -> None:
    upload = {"count": Sum(torch.tensor([9.0, 4.0, 7.0])), "sums": Sum({"a": torch.ones(2, 3, 5)})}
    made, changed = told(upload)
    assert changed == ["count", "sums"]
    assert made["count"].value.tolist() == [9, 0, 7]
    assert made["sums"].value["a"][:, 1].count_nonzero() == 0
    assert bool((made["sums"].value["a"][:, [0, 2]] == 1).all())
    assert upload["count"].value.tolist() == [9, 4, 7]  # what the site itself has is as it was


def test_means_are_over_the_sites_that_tell() -> None:
    """The coordinator's mean of a withheld class is that of the other site, to the last bit."""
    one = {"prototypes": Mean(torch.full((3, 4), 0.25), torch.ones(3))}
    other = {"prototypes": Mean(torch.full((3, 4), 0.75), torch.ones(3))}
    both = Reduction()
    both.add("north", told(one)[0])
    both.add("south", other)
    answers = both.result(("north", "south"))
    assert answers["prototypes"][:, 0].tolist() == [0.5, 0.75, 0.5]
    assert answers.weight["prototypes"].tolist() == [2, 1, 2]


def test_a_tree_with_one_weight_loses_the_same_row_everywhere() -> None:
    value = {"weight": torch.ones(3, 3, 8), "bias": torch.ones(3, 3)}
    made, changed = told({"gradient": Mean(value, torch.ones(3))})
    assert changed == ["gradient"] and made["gradient"].weight.tolist() == [1, 0, 1]
    for x in made["gradient"].value.values():
        assert x[1].count_nonzero() == 0 and bool((x[[0, 2]] == 1).all())


@pytest.mark.parametrize(
    "leaf",
    [
        Mean(torch.ones(3), 13.0),
        Each(torch.ones(3)),
        Sum(torch.ones(3, 3)),
        Mean(torch.ones(3, 3), torch.ones(3, 3)),
        Mean({"bias": torch.ones(3)}, 13.0),
        Sum(torch.ones(4)),
    ],
)
def test_what_cannot_be_told_in_part_is_left_to_be_refused(leaf: Any) -> None:
    made, changed = told({"x": leaf})
    assert not changed and made["x"] is leaf
