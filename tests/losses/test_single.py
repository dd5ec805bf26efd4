from __future__ import annotations

import math

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
from tests.losses import composed

from equipoise.losses import single

Z = torch.tensor([[1.0, 0.0, -1.0], [0.5, 2.0, 0.0]], dtype=torch.float64)
Y = torch.tensor([0, 2])
COUNTS = torch.tensor([8, 2, 0])
PRIOR = torch.tensor([0.8, 0.2, 0.0], dtype=torch.float64)

ALL = {
    "cross_entropy": lambda z, y, r: F.cross_entropy(z, y, reduction=r),
    "balanced_softmax": lambda z, y, r: composed.balanced_softmax(z, y, PRIOR, r),
    "logit_adjustment": lambda z, y, r: composed.logit_adjustment(z, y, PRIOR, 0.5, r),
    "focal": lambda z, y, r: single.focal(z, y, 2.0, r),
    "focal below one": lambda z, y, r: single.focal(z, y, 0.5, r),
    "class_balanced": lambda z, y, r: single.class_balanced(z, y, COUNTS, 0.9, r),
    "ldam": lambda z, y, r: single.ldam(z, y, COUNTS, reduction=r),
    "ldam re-weighted": lambda z, y, r: single.ldam(
        z, y, COUNTS, weight=single.effective_weight(COUNTS, 0.9), reduction=r
    ),
    "fedlc": lambda z, y, r: composed.fedlc(z, y, COUNTS, 0.5, reduction=r),
    "fedlc strict": lambda z, y, r: composed.fedlc(z, y, COUNTS, 0.5, True, r),
    "fedrs": lambda z, y, r: composed.fedrs(z, y, COUNTS, 0.3, reduction=r),
    "fedrs proportional": lambda z, y, r: composed.fedrs(z, y, COUNTS, 0.3, "proportional", r),
}


def ce(row, y):
    """Cross-entropy of one row of plain numbers."""
    return math.log(sum(math.exp(v) for v in row)) - row[y]


def both(rows, ys):
    return sum(ce(row, y) for row, y in zip(rows, ys, strict=True)) / len(rows)


def value_and_gradient(loss, *args, **kwargs):
    z = Z.clone().requires_grad_()
    value = loss(z, *args, **kwargs)
    value.backward()
    return value.detach(), z.grad


def same_as_cross_entropy(loss, *args, tolerance=1e-12, **kwargs):
    value, gradient = value_and_gradient(loss, *args, **kwargs)
    expected, expected_gradient = value_and_gradient(F.cross_entropy, Y)
    torch.testing.assert_close(value, expected, atol=tolerance, rtol=0)
    torch.testing.assert_close(gradient, expected_gradient, atol=tolerance, rtol=0)


def test_balanced_softmax_by_hand():
    logs = [math.log(p + 1e-9) for p in (0.8, 0.2, 0.0)]
    rows = [[z + b for z, b in zip(row, logs, strict=True)] for row in Z.tolist()]
    assert composed.balanced_softmax(Z, Y, PRIOR).item() == pytest.approx(both(rows, [0, 2]), abs=1e-12)


def test_balanced_softmax_of_counts_and_of_frequencies_agree():
    counts = torch.tensor([8.0, 2.0, 5.0], dtype=torch.float64)
    a, b = composed.balanced_softmax(Z, Y, counts), composed.balanced_softmax(Z, Y, counts / 15)
    torch.testing.assert_close(a, b, atol=1e-8, rtol=0)


def test_balanced_softmax_leaves_the_logit_of_an_absent_class_alone():
    z = Z.clone().requires_grad_()
    composed.balanced_softmax(z, torch.tensor([0, 1]), PRIOR).backward()
    assert z.grad[:, 2].abs().max() < 1e-8
    assert z.grad[:, :2].abs().min() > 1e-3


def test_logit_adjustment_by_hand():
    logs = [0.5 * math.log(p + 1e-9) for p in (0.8, 0.2, 0.0)]
    rows = [[z + b for z, b in zip(row, logs, strict=True)] for row in Z.tolist()]
    assert composed.logit_adjustment(Z, Y, PRIOR, 0.5).item() == pytest.approx(both(rows, [0, 2]), abs=1e-12)


def test_focal_by_hand():
    losses = [ce(row, y) for row, y in zip(Z.tolist(), [0, 2], strict=True)]
    expected = sum((1 - math.exp(-loss)) ** 2 * loss for loss in losses) / 2
    assert single.focal(Z, Y, 2.0).item() == pytest.approx(expected, abs=1e-12)


def test_focal_gradient_is_finite_where_the_probability_rounds_to_one():
    z = torch.tensor([[200.0, 0.0]], requires_grad=True)
    single.focal(z, torch.tensor([0]), 0.5).backward()
    assert z.grad.isfinite().all()


def test_effective_weight_by_hand():
    raw = [0.1 / (1 - 0.9**8), 0.1 / (1 - 0.9**2)]
    expected = torch.tensor([2 * raw[0] / sum(raw), 2 * raw[1] / sum(raw), 0.0], dtype=torch.float64)
    torch.testing.assert_close(single.effective_weight(COUNTS, 0.9), expected)


def test_effective_weight_limits():
    torch.testing.assert_close(single.effective_weight(COUNTS, 0.0), torch.tensor([1.0, 1.0, 0.0]).double())
    torch.testing.assert_close(single.effective_weight(COUNTS, 1.0), torch.tensor([0.4, 1.6, 0.0]).double())
    torch.testing.assert_close(
        single.effective_weight(COUNTS, 1 - 1e-7), torch.tensor([0.4, 1.6, 0.0]).double(), rtol=1e-5, atol=0
    )
    assert single.effective_weight(torch.zeros(3)).tolist() == [0.0, 0.0, 0.0]


def test_class_balanced_is_the_weighted_mean():
    y = torch.tensor([0, 1])
    weight = single.effective_weight(COUNTS, 0.9)
    expected = F.cross_entropy(Z, y, weight=weight)
    torch.testing.assert_close(single.class_balanced(Z, y, COUNTS, 0.9), expected)
    assert not torch.isclose(expected, F.cross_entropy(Z, y))


def test_a_batch_of_absent_classes_has_no_weight_and_no_loss():
    assert single.class_balanced(Z, torch.tensor([2, 2]), COUNTS).item() == 0.0


def test_ldam_by_hand():
    cosines = torch.tensor([[0.9, -0.2, 0.1], [0.3, 0.4, -0.5]], dtype=torch.float64)
    counts = torch.tensor([16, 1, 0])  # n^(-1/4) = 1/2 and 1
    rows = [[5 * (0.9 - 0.2), -1.0, 0.5], [1.5, 5 * (0.4 - 0.4), -2.5]]
    loss = single.ldam(5 * cosines, torch.tensor([0, 1]), counts, max_margin=0.4, scale=5.0)
    assert loss.item() == pytest.approx(both(rows, [0, 1]), abs=1e-12)


def test_ldam_margin_is_zero_for_an_absent_class():
    margin = single.ldam_margin(torch.tensor([16, 1, 0]), 0.5)
    assert margin.tolist() == pytest.approx([0.25, 0.5, 0.0])
    assert single.ldam_margin(torch.zeros(2)).tolist() == [0.0, 0.0]


def test_ldam_weight_is_the_weighted_mean():
    cosines, y = torch.tanh(Z), torch.tensor([0, 1])
    weight = single.effective_weight(COUNTS, 0.9)
    margin = single.ldam_margin(COUNTS, 0.5)
    shaped = 30 * (cosines - torch.diag(margin)[y])
    torch.testing.assert_close(
        single.ldam(30 * cosines, y, COUNTS, weight=weight), F.cross_entropy(shaped, y, weight=weight)
    )


def test_fedlc_by_hand():
    margins = [0.5 * 8**-0.25, 0.5 * 2**-0.25, 50.0]
    rows = [[z - m for z, m in zip(row, margins, strict=True)] for row in Z.tolist()]
    assert composed.fedlc(Z, Y, COUNTS, 0.5).item() == pytest.approx(both(rows, [0, 2]), abs=1e-10)


def test_fedlc_strict_leaves_the_true_class_out():
    counts = torch.tensor([16, 1, 81])
    a, b = [1.0 - 0.5, 0.0 - 1.0, -1.0 - 1 / 3], [0.5 - 0.5, 2.0 - 1.0, 0.0 - 1 / 3]
    first = math.log(math.exp(a[1]) + math.exp(a[2])) - a[0]
    second = math.log(math.exp(b[0]) + math.exp(b[1])) - b[2]
    assert composed.fedlc(Z, Y, counts, 1.0, strict=True).item() == pytest.approx(
        (first + second) / 2, abs=1e-12
    )


def test_fedrs_by_hand():
    rows = [[1.0, 0.0, -0.3], [0.5, 2.0, 0.0]]
    assert composed.fedrs(Z, Y, COUNTS, 0.3).item() == pytest.approx(both(rows, [0, 2]), abs=1e-12)
    scale = [1.0, 0.3 + 0.7 * 0.25, 0.3]
    rows = [[s * z for s, z in zip(scale, row, strict=True)] for row in Z.tolist()]
    assert composed.fedrs(Z, Y, COUNTS, 0.3, "proportional").item() == pytest.approx(
        both(rows, [0, 2]), abs=1e-12
    )


def test_neutral_parameters_give_cross_entropy():
    same_as_cross_entropy(composed.balanced_softmax, Y, torch.full((3,), 1 / 3))
    same_as_cross_entropy(composed.logit_adjustment, Y, PRIOR, tau=0.0)
    same_as_cross_entropy(single.focal, Y, gamma=0.0)
    same_as_cross_entropy(single.class_balanced, Y, torch.tensor([5, 5, 5]))
    same_as_cross_entropy(single.ldam, Y, COUNTS, max_margin=0.0, scale=1.0)
    same_as_cross_entropy(composed.fedlc, Y, COUNTS, tau=0.0)
    same_as_cross_entropy(composed.fedrs, Y, COUNTS, alpha=1.0)
    same_as_cross_entropy(composed.fedrs, Y, COUNTS, alpha=1.0, mode="proportional")


def test_kl_by_hand():
    p = [math.exp(v) for v in (1.0, 0.0)]
    q = [math.exp(v) for v in (-1.0, 0.5)]
    p, q = [v / sum(p) for v in p], [v / sum(q) for v in q]
    expected = sum(a * math.log(a / b) for a, b in zip(p, q, strict=True)) / 2  # the second row agrees
    teacher = torch.tensor([[1.0, 0.0], [3.0, 1.0]], dtype=torch.float64)
    student = torch.tensor([[-1.0, 0.5], [3.0, 1.0]], dtype=torch.float64)
    assert single.kl(teacher, student).item() == pytest.approx(expected, abs=1e-12)


def test_kl_gradient_is_the_difference_of_the_distributions():
    teacher, student = torch.randn(4, 3, generator=torch.Generator().manual_seed(0)).double(), Z.repeat(2, 1)
    student.requires_grad_()
    single.kl(teacher, student).backward()
    torch.testing.assert_close(student.grad, (student.detach().softmax(1) - teacher.softmax(1)) / 4)


@pytest.mark.parametrize(
    "name", [name for name in ALL if "class_balanced" not in name and "weighted" not in name]
)
def test_mean_is_the_mean_of_each(name):
    torch.testing.assert_close(ALL[name](Z, Y, "none").mean(), ALL[name](Z, Y, "mean"))


@pytest.mark.parametrize("name", ["class_balanced", "ldam re-weighted"])
def test_weighted_mean_is_each_over_the_weights(name):
    y = torch.tensor([0, 1])
    weight = single.effective_weight(COUNTS, 0.9)[y]
    torch.testing.assert_close(ALL[name](Z, y, "none").sum() / weight.sum(), ALL[name](Z, y, "mean"))


@pytest.mark.parametrize("name", ALL)
def test_gradients_agree_with_differences(name):
    z = Z.clone().requires_grad_()
    assert torch.autograd.gradcheck(lambda v: ALL[name](v, torch.tensor([0, 1]), "mean"), (z,))


@settings(max_examples=25, deadline=None)
@given(
    z=hnp.arrays("float32", (4, 3), elements=st.floats(-80, 80, width=32)),
    y=hnp.arrays("int64", (4,), elements=st.integers(0, 2)),
)
def test_finite_for_any_logits_and_labels(z, y):
    for name, of in ALL.items():
        logits = torch.from_numpy(z).requires_grad_()
        loss = of(logits, torch.from_numpy(y), "mean")
        loss.backward()
        assert loss.dtype == torch.float32, name
        assert loss.isfinite(), name
        assert logits.grad.isfinite().all(), name
