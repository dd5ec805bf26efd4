"""Batches: every row once, no lone last batch while training, and no label a site does not have."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from equipoise.data.samples import Samples, Task
from equipoise.partition import Holding
from equipoise.site import SiteData
from equipoise.site.batches import Rows
from equipoise.site.views import ViewOptions, make_view

CPU = torch.device("cpu")
PLAIN = make_view("eval", ViewOptions(), (0.0,), (1.0,))


def samples(n: int, task: Task = "single") -> Samples:
    """Image i is of one colour, i; its label follows from i."""
    images = np.broadcast_to(np.arange(n, dtype=np.uint8)[:, None, None, None], (n, 2, 2, 1)).copy()
    y = np.arange(n) % 3
    labels = (
        y.astype(np.int64)
        if task == "single"
        else np.stack([np.ones(n), y == 1, y == 2], 1).astype(np.float32)
    )
    return Samples(
        images,
        labels,
        ("a", "b", "c"),
        task,
        np.arange(n).astype(str),
        "",
        attributes={"sex": np.array(["f", "m"] * n)[:n]},
    )


def rows(n: int) -> Rows:
    return Rows(samples(n), np.arange(n), None, CPU)


def sizes(n: int, size: int, lone: bool = False) -> list[int]:
    draw = torch.Generator()
    return [len(batch) for batch in rows(n).batches(torch.arange(n), size, [PLAIN], [draw], lone)]


@pytest.mark.parametrize(
    ("n", "size", "lone", "expected"),
    [
        (10, 4, False, [4, 4, 2]),
        (9, 4, False, [4, 5]),
        (9, 4, True, [4, 4, 1]),
        (8, 4, False, [4, 4]),
        (3, 4, False, [3]),
        (1, 4, False, [1]),
        (5, 4, False, [5]),
        (3, 1, False, [1, 2]),
        (3, 1, True, [1, 1, 1]),
        (0, 4, False, []),
        (0, 4, True, [0]),
    ],
)
def test_a_last_batch_of_one_joins_the_one_before(n: int, size: int, lone: bool, expected: list[int]) -> None:
    assert sizes(n, size, lone) == expected


@given(st.integers(1, 60), st.integers(1, 20), st.booleans(), st.integers(0, 2**32))
@settings(max_examples=60, deadline=None)
def test_every_row_comes_once_in_the_order_given(n: int, size: int, lone: bool, seed: int) -> None:
    order = torch.randperm(n, generator=torch.Generator().manual_seed(seed))
    batches = list(rows(n).batches(order, size, [PLAIN], [torch.Generator()], lone))
    assert torch.cat([batch.index for batch in batches]).tolist() == order.tolist()
    shown = torch.cat([batch.x[:, 0, 0, 0] for batch in batches]) * 255
    assert shown.round().long().tolist() == order.tolist()
    assert torch.cat([batch.y for batch in batches]).tolist() == (order % 3).tolist()
    assert all(len(batch) <= size + 1 for batch in batches)


def test_an_empty_split_is_an_empty_batch_with_a_shape() -> None:
    (batch,) = rows(5).batches(torch.arange(0), 4, [PLAIN], [torch.Generator()], lone=True)
    assert batch.x.shape == (0, 1, 2, 2)
    assert batch.y.shape == (0,)


def test_every_view_shows_the_same_rows() -> None:
    (batch,) = rows(4).batches(
        torch.tensor([2, 0, 3, 1]), 9, [PLAIN, PLAIN], [torch.Generator(), torch.Generator()]
    )
    assert len(batch.views) == 2
    assert batch.x is batch.views[0]
    assert torch.equal(batch.views[0], batch.views[1])


def test_labels_a_site_does_not_have_are_gone() -> None:
    known = np.array([False, True, False])
    holding = Holding("a", np.arange(6), np.array([6, 7]), np.array([8]), known)
    data = SiteData(samples(9, "multi"), holding, CPU)
    assert data.splits["train"].labels[:, [0, 2]].isnan().all()
    assert data.splits["train"].labels[:, 1].tolist() == [0, 1, 0, 0, 1, 0]
    assert data.counts.tolist() == [0, 2, 0]
    batch = next(data.splits["train"].batches(torch.arange(6), 6, [PLAIN], [torch.Generator()]))
    assert batch.known.tolist() == [known.tolist()] * 6
    assert not data.splits["train"].complete and data.labelled.tolist() == known.tolist()
    assert data.total.tolist() == [6, 6, 6]
    # Tests are complete: partial labelling is about training.
    assert data.splits["test"].labels.tolist() == [[1, 0, 1]]
    assert data.splits["test"].complete


def test_a_site_holds_its_own_rows() -> None:
    data = SiteData(samples(9), Holding("a", np.array([1, 4, 5]), np.array([6]), np.array([8, 7])), CPU)
    assert {split: len(rows) for split, rows in data.splits.items()} == {
        "train": 3,
        "validation": 1,
        "test": 2,
    }
    assert data.counts.tolist() == [0, 2, 1]
    assert data.counts.dtype == torch.float64
    assert data.labelled is None
    assert data.attributes["sex"]["test"].tolist() == ["f", "m"]
