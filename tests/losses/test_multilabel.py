from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
from tests.losses import composed

from equipoise.losses import multilabel
from equipoise.losses.shaping import positive_prior

Z = torch.tensor([[1.0, -0.5, 2.0], [0.0, 0.3, -1.0]], dtype=torch.float64)
Y = torch.tensor([[1.0, 0.0, 0.0], [0.0, 1.0, 1.0]])
LABELLED = torch.tensor([True, False, True])


def bce(z, y, weight=1.0):
    p = 1 / (1 + math.exp(-z))
    return -weight * math.log(p) if y else -math.log(1 - p)


def cells(weight=(1.0, 1.0, 1.0)):
    return [
        [bce(z, y, w) for z, y, w in zip(*rows, weight, strict=True)]
        for rows in zip(Z.tolist(), Y.tolist(), strict=True)
    ]


def test_masked_bce_over_everything():
    assert multilabel.masked_bce(Z, Y).item() == pytest.approx(sum(map(sum, cells())) / 6, abs=1e-12)


def test_masked_bce_over_the_labels_a_site_knows():
    total = sum(row[0] + row[2] for row in cells())
    assert multilabel.masked_bce(Z, Y, LABELLED).item() == pytest.approx(total / 4, abs=1e-12)
    assert multilabel.masked_bce(Z, Y, LABELLED, over="all").item() == pytest.approx(total / 6, abs=1e-12)


def test_masked_bce_over_single_cells():
    mask = torch.tensor([[True, False, False], [False, True, True]])
    rows = cells()
    total = rows[0][0] + rows[1][1] + rows[1][2]
    assert multilabel.masked_bce(Z, Y, mask).item() == pytest.approx(total / 3, abs=1e-12)
    assert multilabel.masked_bce(Z, Y, mask, over="all").item() == pytest.approx(total / 6, abs=1e-12)


def test_an_empty_mask_gives_zero_with_a_gradient_of_zero():
    z = Z.clone().requires_grad_()
    loss = multilabel.masked_bce(z, Y, torch.zeros(3, dtype=torch.bool))
    loss.backward()
    assert loss.item() == 0.0
    assert z.grad.eq(0).all()


def test_unlabelled_columns_get_no_gradient():
    z = Z.clone().requires_grad_()
    multilabel.masked_bce(z, Y, LABELLED).backward()
    assert z.grad[:, 1].eq(0).all()
    assert z.grad[:, [0, 2]].ne(0).all()


def test_positive_weight_uses_observed_labels_only():
    weight = multilabel.positive_weight(torch.tensor([2, 5, 0]), 10, torch.tensor([True, False, True]))
    assert weight.tolist() == [5.0, 1.0, 1.0]
    assert multilabel.positive_weight(torch.tensor([2, 5, 0]), 10).tolist() == [5.0, 2.0, 1.0]


def test_masked_bce_with_positive_weight():
    weight = torch.tensor([5.0, 2.0, 1.5])
    expected = sum(map(sum, cells((5.0, 2.0, 1.5)))) / 6
    assert multilabel.masked_bce(Z, Y, pos_weight=weight).item() == pytest.approx(expected, abs=1e-12)


def test_adjusted_bce_equals_the_ratio_of_the_paper():
    prior = torch.tensor([0.1, 0.5, 0.7], dtype=torch.float64)
    p = torch.sigmoid(Z)
    adjusted = p * prior / (p * prior + (1 - p) * (1 - prior))
    expected = torch.nn.functional.binary_cross_entropy(adjusted, Y.double(), reduction="none")
    torch.testing.assert_close(composed.adjusted_bce(Z, Y, prior), expected.mean(), atol=1e-12, rtol=0)
    masked = expected[:, LABELLED].sum() / 6
    torch.testing.assert_close(
        composed.adjusted_bce(Z, Y, prior, LABELLED, "all"), masked, atol=1e-12, rtol=0
    )


def test_adjusted_bce_with_even_prior_is_bce():
    even = torch.full((3,), 0.5)
    torch.testing.assert_close(
        composed.adjusted_bce(Z, Y, even), multilabel.masked_bce(Z, Y), atol=1e-12, rtol=0
    )


def test_masked_focal_by_hand():
    rows = [[(1 - math.exp(-v)) ** 2 * v for v in row] for row in cells()]
    assert composed.masked_focal(Z, Y, 2.0).item() == pytest.approx(sum(map(sum, rows)) / 6, abs=1e-12)
    known = sum(row[0] + row[2] for row in rows)
    assert composed.masked_focal(Z, Y, 2.0, LABELLED).item() == pytest.approx(known / 4, abs=1e-12)


def test_masked_focal_without_focus_is_bce():
    torch.testing.assert_close(
        composed.masked_focal(Z, Y, 0.0), multilabel.masked_bce(Z, Y), atol=1e-12, rtol=0
    )


def test_fedlc_bce_by_hand():
    positives, negatives = torch.tensor([1, 16, 81]), torch.tensor([16, 16, 1])
    shift = [0.5 - 1.0, 0.0, 1.0 - 1 / 3]
    shifted = Z + torch.tensor(shift, dtype=torch.float64)
    expected = (
        sum(bce(z, y) for z, y in zip(shifted.flatten().tolist(), Y.flatten().tolist(), strict=True)) / 6
    )
    assert composed.fedlc_bce(Z, Y, positives, negatives).item() == pytest.approx(expected, abs=1e-12)
    torch.testing.assert_close(
        composed.fedlc_bce(Z, Y, positives, negatives, 0.0), multilabel.masked_bce(Z, Y)
    )


@settings(max_examples=50, deadline=None)
@given(
    z=hnp.arrays("float32", (3, 4), elements=st.floats(-80, 80, width=32)),
    y=hnp.arrays("bool", (3, 4)),
    mask=hnp.arrays("bool", (3, 4)),
    positives=hnp.arrays("int64", (4,), elements=st.integers(0, 9)),
)
def test_finite_whatever_is_absent(z, y, mask, positives):
    logits, labels, cells_that_count = (
        torch.from_numpy(z).requires_grad_(),
        torch.from_numpy(y),
        torch.from_numpy(mask),
    )
    counts = torch.from_numpy(positives)
    loss = (
        multilabel.masked_bce(logits, labels, cells_that_count, multilabel.positive_weight(counts, 9))
        + composed.adjusted_bce(logits, labels, positive_prior(counts, 9), cells_that_count)
        + composed.masked_focal(logits, labels, 0.5, cells_that_count)
        + composed.fedlc_bce(logits, labels, counts, 9 - counts, mask=cells_that_count)
    )
    loss.backward()
    assert loss.isfinite()
    assert logits.grad.isfinite().all()
