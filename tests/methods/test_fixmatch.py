"""FedFixMatch: the loss against explicit loops."""

from __future__ import annotations

import math
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor

from equipoise.losses import make_objective, parse_objective
from equipoise.methods.fixmatch import FedFixMatch
from equipoise.site import Batch

WEAK = torch.tensor(
    [[0.3, 2.0, -2.0], [-1.0, 3.0, 0.1], [0.2, -4.0, 0.9], [1.0, -3.0, -1.6]], dtype=torch.float64
)
"""of classes 1 and 2, the first and the last image are sure of both, the second only of class 1, the third
only of class 1"""


def place(own: list[int]) -> Any:
    mask, counts = torch.tensor([c in own for c in range(3)]), torch.tensor([2.0, 1, 1], dtype=torch.float64)
    objective = make_objective(parse_objective("bce"), counts=counts, total=4, task="multi", labelled=mask)
    return SimpleNamespace(objective=objective)


def batch_of(*views: Tensor) -> Batch:
    """The first class alone is labelled."""
    y = torch.full((4, 3), torch.nan, dtype=torch.float64)
    y[:, 0] = torch.tensor([1.0, 0, 1, 0])
    return Batch(views=views, y=y, index=torch.arange(4))


def cell(z: float, y: int) -> float:
    return math.log1p(math.exp(-z)) if y else math.log1p(math.exp(z))


@pytest.mark.parametrize(
    ("every", "cells"),
    [
        (True, {(0, 1): 1, (0, 2): 0, (3, 1): 0, (3, 2): 0}),
        (False, {(0, 1): 1, (0, 2): 0, (1, 1): 1, (2, 1): 0, (3, 1): 0, (3, 2): 0}),
    ],
)
def test_loss_by_hand(every: bool, cells: dict[tuple[int, int], int]) -> None:
    strong = torch.randn(4, 3, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    y = batch_of(WEAK).y
    expected = sum(cell(float(WEAK[i, 0]), int(y[i, 0])) for i in range(4)) / 4
    pseudo = 0.5 * sum(cell(float(strong[i, c]), label) for (i, c), label in cells.items())
    for over, divisor in {"all": 8, "decided": len(cells)}.items():
        method = FedFixMatch(strength=0.5, every=every, over=over)  # type: ignore[arg-type]
        found = method.loss(lambda x: x, batch_of(WEAK, strong), place([0]))  # type: ignore[arg-type]
        assert float(found) == pytest.approx(expected + pseudo / divisor, rel=1e-10)


def test_preset_divides_by_the_decided_images_as_fedmlp_s_code() -> None:
    assert FedFixMatch.presets["fedmlp"]["over"] == "decided"
    unsure = torch.zeros(4, 3, dtype=torch.float64)
    for over in ("all", "decided"):  # nobody is decided: no pseudo-labels, and no division by zero
        found = FedFixMatch(over=over).loss(lambda x: x, batch_of(unsure, WEAK), place([0]))  # type: ignore[arg-type]
        assert float(found) == pytest.approx(math.log(2), rel=1e-10)


def test_pseudo_labels_move_the_strong_view_only() -> None:
    weak, strong = WEAK.clone().requires_grad_(), WEAK.flip(0).clone().requires_grad_()
    found = FedFixMatch().loss(lambda x: x, batch_of(weak, strong), place([0]))  # type: ignore[arg-type]
    by_weak, by_strong = torch.autograd.grad(found, [weak, strong])
    assert by_weak[:, 0].all() and not by_weak[:, 1:].any()
    assert not by_strong[:, 0].any()
    assert by_strong[[0, 3]][:, 1:].all() and not by_strong[1:3].any()


def test_bounds_decide_who_counts() -> None:
    strong = WEAK.flip(0)
    loss = {
        bounds: float(
            FedFixMatch(low=bounds[0], high=bounds[1]).loss(lambda x: x, batch_of(WEAK, strong), place([0]))
        )  # type: ignore[arg-type]
        for bounds in ((0.0, 1.0), (0.2, 0.8), (0.5, 0.8), (0.2, 0.5), (0.5, 0.5))
    }
    assert loss[0.0, 1.0] == float(place([0]).objective(WEAK, batch_of(WEAK).y))
    # The two unsure predictions lie between ½ and 0.8, so the upper bound alone decides about them.
    assert loss[0.2, 0.8] == loss[0.5, 0.8] != loss[0.2, 0.5] == loss[0.5, 0.5]
    assert loss[0.0, 1.0] != loss[0.2, 0.8]


def test_site_that_labels_everything_has_the_base_loss() -> None:
    loc, batch = place([0, 1, 2]), batch_of(WEAK)
    batch.y = batch.y.nan_to_num(0.0)
    assert torch.equal(FedFixMatch().loss(lambda x: x, batch, loc), loc.objective(WEAK, batch.y))  # type: ignore[arg-type]
    assert FedFixMatch(strength=0.0).loss(lambda x: x, batch_of(WEAK), place([0])).isfinite()  # type: ignore[arg-type]
