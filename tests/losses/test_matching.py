"""CReFF's arithmetic at the coordinator: gradients against autograd, distances by loops, heads against
torch.optim."""

from __future__ import annotations

import math

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from equipoise.losses.matching import class_gradient, match, mismatch, train_head


def drawn(*shape: int, seed: int) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


HEAD = {"weight": drawn(3, 5, seed=0), "bias": drawn(3, seed=1)}


def by_autograd(z: Tensor, c: int) -> dict[str, Tensor]:
    weight, bias = (HEAD[name].clone().requires_grad_() for name in ("weight", "bias"))
    loss = F.cross_entropy(F.linear(z, weight, bias), torch.full((len(z),), c))
    found = torch.autograd.grad(loss, (weight, bias))
    return {"weight": found[0], "bias": found[1]}


def cosine(a: Tensor, b: Tensor) -> float:
    return float((a * b).sum()) / math.sqrt(float((a * a).sum()) * float((b * b).sum()))


def test_class_gradients_are_autograd_s() -> None:
    z = drawn(2, 4, 5, seed=2)
    found = class_gradient(z, HEAD, torch.tensor([2, 0]))
    for group, c in enumerate((2, 0)):
        for name, expected in by_autograd(z[group], c).items():
            torch.testing.assert_close(found[name][group], expected, rtol=1e-10, atol=1e-14)


def test_mismatch_is_one_minus_cosine_by_row_and_of_the_bias() -> None:
    a = {"weight": drawn(2, 3, 5, seed=3), "bias": drawn(2, 3, seed=4)}
    b = {"weight": drawn(2, 3, 5, seed=5), "bias": drawn(2, 3, seed=6)}
    for group, found in enumerate(mismatch(a, b).tolist()):
        rows = sum(1 - cosine(a["weight"][group, row], b["weight"][group, row]) for row in range(3))
        assert found == pytest.approx(rows + 1 - cosine(a["bias"][group], b["bias"][group]), rel=1e-9)
    assert float(mismatch(a, a).abs().max()) < 1e-9


def test_matching_steps_down_the_mismatch() -> None:
    """One step against a second-order gradient: the head's gradient is itself differentiated."""
    features, seen = drawn(3, 4, 5, seed=7), torch.tensor([True, False, True])
    wanted = class_gradient(drawn(3, 6, 5, seed=8), HEAD, torch.arange(3))
    expected = features.clone()
    for c in (0, 2):
        u = features[c].clone().requires_grad_()
        weight, bias = (HEAD[name].clone().requires_grad_() for name in ("weight", "bias"))
        loss = F.cross_entropy(F.linear(u, weight, bias), torch.full((4,), c))
        g = torch.autograd.grad(loss, (weight, bias), create_graph=True)
        distance = sum(1 - F.cosine_similarity(g[0][r], wanted["weight"][c, r], dim=0) for r in range(3))
        distance = distance + 1 - F.cosine_similarity(g[1], wanted["bias"][c], dim=0)
        expected[c] = features[c] - 0.1 * torch.autograd.grad(distance, u)[0]
    found = match(features, HEAD, wanted, seen, 1, 0.1)
    torch.testing.assert_close(found, expected, rtol=1e-9, atol=1e-12)
    many = match(features, HEAD, wanted, seen, 100, 0.1)
    assert torch.equal(many[1], features[1])

    def far(u: Tensor) -> float:
        return float(mismatch(class_gradient(u, HEAD, torch.arange(3)), wanted)[[0, 2]].sum())

    assert far(many) < 0.5 * far(features)


def test_nothing_seen_moves_nothing() -> None:
    features, wanted = drawn(3, 4, 5, seed=7), {"weight": torch.zeros(3, 3, 5), "bias": torch.zeros(3, 3)}
    assert torch.equal(match(features, HEAD, wanted, torch.zeros(3, dtype=torch.bool), 5, 0.1), features)


def test_head_is_trained_as_torch_optim_would() -> None:
    features = drawn(3, 4, 5, seed=9)
    layer = nn.Linear(5, 3).double()
    layer.load_state_dict(HEAD)
    optimizer = torch.optim.SGD(layer.parameters(), lr=0.1)
    x, y, draw = (
        features.reshape(12, 5),
        torch.arange(3).repeat_interleave(4),
        torch.Generator().manual_seed(4),
    )
    for _ in range(3):
        for some in torch.randperm(12, generator=draw).split(5):
            optimizer.zero_grad()
            F.cross_entropy(layer(x[some]), y[some]).backward()
            optimizer.step()
    found = train_head(HEAD, features, 3, 0.1, 5, torch.Generator().manual_seed(4))
    torch.testing.assert_close(found["weight"], layer.weight.detach(), rtol=1e-10, atol=1e-12)
    torch.testing.assert_close(found["bias"], layer.bias.detach(), rtol=1e-10, atol=1e-12)
