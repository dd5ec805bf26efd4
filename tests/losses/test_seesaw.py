"""PRR-Imb's class loss against the printed formula, image by image."""

from __future__ import annotations

import math

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from equipoise.losses.seesaw import mitigation, refinement, seesaw

COUNTS = torch.tensor([50.0, 10.0, 10.0, 2.0], dtype=torch.float64)


def logits() -> Tensor:
    return torch.randn(6, 4, generator=torch.Generator().manual_seed(1), dtype=torch.float64)


def test_loss_by_formula() -> None:
    z, y, weight = (
        logits(),
        torch.tensor([0, 0, 1, 2, 3, 3]),
        torch.tensor([1.0, 2.0, 0.5, 3.0], dtype=torch.float64),
    )
    total, weighed = 0.0, 0.0
    for i, c in enumerate(y.tolist()):
        below = math.exp(z[i, c])
        for j in range(4):
            if j != c:
                factor = float(COUNTS[j] / COUNTS[c]) ** 0.8 if COUNTS[c] > COUNTS[j] else 1.0
                below += factor * math.exp(z[i, j])
        loss = -math.log(math.exp(z[i, c]) / below)
        total, weighed = total + loss / 6, weighed + float(weight[c]) * loss / 6
    assert float(seesaw(z, y, COUNTS, 0.8)) == pytest.approx(total, rel=1e-12)
    assert float(seesaw(z, y, COUNTS, 0.8, weight)) == pytest.approx(weighed, rel=1e-12)


def test_without_mitigation_it_is_cross_entropy() -> None:
    y = torch.tensor([0, 0, 1, 2, 3, 3])
    torch.testing.assert_close(
        seesaw(logits(), y, COUNTS, 0.0), F.cross_entropy(logits(), y), rtol=1e-12, atol=0
    )


def test_class_nobody_has_is_finite_and_all_but_left_out() -> None:
    counts = torch.tensor([5.0, 3.0, 0.0, 1.0])
    assert float(mitigation(counts, 0.8)[0, 2]) == pytest.approx(1e-9)
    z = logits().requires_grad_()
    loss = seesaw(z, torch.tensor([0, 1, 3, 0, 1, 3]), counts, 0.8)
    (slope,) = torch.autograd.grad(loss, z)
    assert torch.isfinite(loss) and float(slope[:, 2].abs().max()) < 1e-8 < float(slope[:, 0].abs().min())


def test_refinement_by_formula() -> None:
    own = torch.tensor([[1.0, 0.0], [3.0, 4.0], [2.0, 0.0]], dtype=torch.float64)
    shared = torch.tensor([[5.0, 0.0], [0.0, 1.0], [-1.0, 0.0]], dtype=torch.float64)
    expected = torch.tensor([4 / 4, 4 / 3.8, 4 / 2], dtype=torch.float64)
    torch.testing.assert_close(refinement(own, shared, 3.0), expected, rtol=1e-9, atol=0)
