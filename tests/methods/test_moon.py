"""MOON: the contrast by explicit loops, its first round, and FedAvg with the same head."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from safetensors.torch import load_file
from torch import nn

from equipoise.config import Config
from equipoise.methods.base import Method
from equipoise.methods.moon import MOON, contrast, project
from equipoise.nets import Net, NetOptions, build, state
from equipoise.running import run
from equipoise.site import Batch

NAME = "moon"


class SameHead(Method):
    """FedAvg with MOON's head."""

    def make_head(self, width: int, classes: int) -> nn.Sequential:
        return MOON().make_head(width, classes)


@pytest.fixture
def net() -> Net:
    options = {"classes": 3, "image_size": 16, "base": Path.cwd()}
    return (
        build(NetOptions(name="small-cnn"), make_head=MOON(size=8).make_head, seed=5, **options)
        .double()
        .eval()
    )  # type: ignore[arg-type]


@pytest.fixture
def batch() -> Batch:
    x = torch.randn(5, 3, 16, 16, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    return Batch(views=(x,), y=torch.tensor([0, 1, 2, 1, 0]), index=torch.arange(5))


def shaken(net: Net, seed: int) -> dict[str, torch.Tensor]:
    draw = torch.Generator().manual_seed(seed)
    return {
        n: t + 0.1 * torch.randn(t.shape, generator=draw, dtype=t.dtype).abs() for n, t in state(net).items()
    }


def place(**mine: Any) -> Any:
    return SimpleNamespace(objective=F.cross_entropy, scratch={}, mine=mine)


def cosine(a: list[float], b: list[float]) -> float:
    dot = sum(x * y for x, y in zip(a, b, strict=True))
    return dot / math.sqrt(sum(x * x for x in a)) / math.sqrt(sum(y * y for y in b))


def test_contrast_by_hand() -> None:
    draw = torch.Generator().manual_seed(0)
    q, received, previous = (torch.randn(6, 4, generator=draw, dtype=torch.float64) for _ in range(3))
    total = 0.0
    for a, g, p in zip(q.tolist(), received.tolist(), previous.tolist(), strict=True):
        near, far = math.exp(cosine(a, g) / 0.4), math.exp(cosine(a, p) / 0.4)
        total -= math.log(near / (near + far))
    assert contrast(q, received, previous, 0.4).item() == pytest.approx(total / 6, rel=1e-12)


def test_head_has_the_projector_inside() -> None:
    shapes = [tuple(m.weight.shape) for m in MOON().make_head(64, 3) if isinstance(m, nn.Linear)]
    assert shapes == [(64, 64), (256, 64), (3, 256)]
    assert [type(m) for m in MOON().make_head(64, 3)] == [nn.Linear, nn.ReLU, nn.Linear, nn.Linear]
    assert MOON(**MOON.presets["fca"]).make_head(1280, 3)[0].out_features == 256  # type: ignore[union-attr]


def test_loss_is_the_base_plus_the_contrast_of_three_models(net: Net, batch: Batch) -> None:
    received, previous = ({n: t.clone() for n, t in state(net).items()}, shaken(net, 1))
    loc, method = place(previous=previous), MOON(mu=3.0, temperature=0.7, size=8)
    method.prepare(net, loc)
    net.load_state_dict(shaken(net, 2), strict=False)  # some steps later
    q, logits = project(net, batch.x)
    torch.testing.assert_close(logits, net(batch.x))
    others = []
    for tensors in (received, previous):
        other = build(
            NetOptions(name="small-cnn"),
            classes=3,
            make_head=method.make_head,
            image_size=16,
            seed=0,
            base=Path.cwd(),
        )
        other.double().eval().load_state_dict(tensors, strict=False)
        others.append(project(other, batch.x)[0].detach())
    expected = F.cross_entropy(logits, batch.y) + 3 * contrast(q, *others, temperature=0.7)
    loss = method.loss(net, batch, loc)
    torch.testing.assert_close(loss, expected, rtol=1e-10, atol=1e-12)
    found, wanted = (
        torch.autograd.grad(x, list(net.parameters()), retain_graph=True) for x in (loss, expected)
    )
    for mine, theirs in zip(found, wanted, strict=True):
        torch.testing.assert_close(mine, theirs, rtol=1e-8, atol=1e-11)
    assert (loss - F.cross_entropy(logits, batch.y)).item() > 0.1


def test_term_is_absent_at_the_first_participation(net: Net, batch: Batch) -> None:
    loc = place()
    MOON(mu=3.0, size=8).prepare(net, loc)
    assert torch.equal(MOON(mu=3.0, size=8).loss(net, batch, loc), F.cross_entropy(net(batch.x), batch.y))
    # with the received model in its place the term would be the constant log 2
    q = project(net, batch.x)[0]
    twice = contrast(q, q.detach(), q.detach(), 0.5)
    assert twice.item() == pytest.approx(math.log(2))
    assert max(float(g.abs().max()) for g in torch.autograd.grad(twice, list(net.body.parameters()))) < 1e-12


def with_same_head(config: Config) -> Config:
    return replace(config, method=SameHead(), method_name=f"{Path(__file__)}:SameHead")


@pytest.mark.parametrize(("mu", "rounds", "same"), [(0.0, 3, True), (1.0, 1, True), (1.0, 2, False)])
def test_fedavg_with_the_same_head(
    make_config: Callable[..., Any], tmp_path: Path, mu: float, rounds: int, same: bool
) -> None:
    config = make_config({"name": NAME, "mu": mu}, rounds=rounds, batch_size=16)
    mine = run(config, tmp_path / "moon").server["model"]
    plain = run(with_same_head(config), tmp_path / "plain").server["model"]
    assert set(mine) == set(plain)
    assert all(torch.equal(mine[n], plain[n]) for n in plain) == same
    kept = {name for path in (tmp_path / "moon" / "sites").rglob("*.safetensors") for name in load_file(path)}
    assert any(name.startswith("mine/previous") for name in kept) == (mu > 0)


def test_previous_is_the_last_local_model_and_not_the_global_one(
    make_config: Callable[..., Any], tmp_path: Path
) -> None:
    server = run(make_config({"name": NAME}, rounds=2), tmp_path / "run").server["model"]
    kept = {
        site: load_file(tmp_path / "run" / "sites" / site / "1.0.safetensors")
        for site in ("north", "south", "west")
    }
    sizes = {"north": 9, "south": 6, "west": 14}
    for name in ("head.fed.3.weight", "body.conv1.weight"):
        mean = sum(n / 29 * kept[site][f"mine/previous/{name}"].double() for site, n in sizes.items())
        torch.testing.assert_close(server[name].double(), mean, rtol=0, atol=1e-6)
        for site in sizes:
            assert not torch.allclose(kept[site][f"mine/previous/{name}"], server[name], rtol=0, atol=1e-5)


def test_a_site_that_misses_a_round_keeps_its_previous_model(
    make_config: Callable[..., Any], tmp_path: Path
) -> None:
    run(make_config({"name": NAME}, rounds=3, participation=0.34), tmp_path / "run")
    found = {path.parent.name: path.stem for path in (tmp_path / "run" / "sites").rglob("*.safetensors")}
    assert 1 < len(found) <= 3
    assert len(set(found.values())) == len(found)  # each from the round it took part in last
