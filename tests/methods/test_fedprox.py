"""FedProx: the pull towards the received model, in double precision."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from equipoise.methods.fedprox import FedProx
from equipoise.nets import Net
from equipoise.running import run
from equipoise.site import Batch


@pytest.fixture
def moved(double_net: Callable[..., Net]) -> tuple[Net, Any, Batch, dict[str, Tensor]]:
    """A net some way from where it was received, and that way by parameter."""
    net, loc = double_net("fed"), SimpleNamespace(objective=F.cross_entropy, scratch={})
    FedProx().prepare(net, loc)  # type: ignore[arg-type]
    draw, way = torch.Generator().manual_seed(0), {}
    with torch.no_grad():
        for name, p in net.named_parameters():
            way[name] = 0.1 * torch.randn(p.shape, generator=draw, dtype=torch.float64)
            p.add_(way[name])
    x = torch.randn(5, 3, 16, 16, generator=draw, dtype=torch.float64)
    batch = Batch(views=(x,), y=torch.tensor([0, 1, 2, 1, 0]), index=torch.arange(5))
    return net, loc, batch, way


def gradients(net: Net, loss: Tensor) -> dict[str, Tensor]:
    return dict(
        zip(dict(net.named_parameters()), torch.autograd.grad(loss, list(net.parameters())), strict=True)
    )


def test_value_and_gradient_of_the_pull(moved: Any) -> None:
    net, loc, batch, way = moved
    base, full = F.cross_entropy(net(batch.x), batch.y), FedProx(mu=0.3).loss(net, batch, loc)
    expected = 0.15 * sum(float((w**2).sum()) for w in way.values())
    assert (full - base).item() == pytest.approx(expected, rel=1e-12)
    plain, pulled = gradients(net, base), gradients(net, full)
    for name in way:
        torch.testing.assert_close(pulled[name] - plain[name], 0.3 * way[name], rtol=1e-10, atol=1e-12)


def test_buffers_are_not_pulled(moved: Any) -> None:
    net, loc, batch, _ = moved
    before = FedProx(mu=1.0).loss(net, batch, loc) - F.cross_entropy(net(batch.x), batch.y)
    net.body.norm1.running_mean.add_(3.0)
    after = FedProx(mu=1.0).loss(net, batch, loc) - F.cross_entropy(net(batch.x), batch.y)
    assert after.item() == pytest.approx(before.item(), rel=1e-12)


def test_no_pull_is_the_base_loss_exactly(moved: Any) -> None:
    net, loc, batch, _ = moved
    assert torch.equal(FedProx(mu=0.0).loss(net, batch, loc), F.cross_entropy(net(batch.x), batch.y))


def test_a_stronger_pull_keeps_the_model_nearer(
    make_config: Callable[..., Any], bare: Callable[..., Any], tmp_path: Path
) -> None:
    def distance(mu: float) -> float:
        config = make_config({"name": "fedprox", "mu": mu}, ["south"], rounds=1, epochs=4, optimizer="sgd")
        model, first = run(config, tmp_path / f"mu-{mu}").server["model"], bare(config).first
        return sum(float((model[n] - first[n]).square().sum()) for n in first if "running" not in n)

    assert distance(10.0) < distance(1.0) < distance(0.0)
