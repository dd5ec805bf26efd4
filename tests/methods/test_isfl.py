"""ISFL: water-filling, smoothness and draws by explicit loops; what sites keep and send."""

from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from equipoise.exchange import decode_upload
from equipoise.methods.isfl import ISFL, water_filling
from equipoise.nets import Net, state
from equipoise.running import run
from equipoise.seeds import generator
from equipoise.testing import Bench

NAME = "isfl"


def doubles(*values: float) -> Tensor:
    return torch.tensor(values, dtype=torch.float64)


# Water-filling ----------------------------------------------------------------------------------------------


def filled(p: list[float], own: list[float], smooth: list[float], sigma: float) -> list[float]:
    """By loops, the step being the first candidate that brings a class to its floor."""
    square = sum(x * x for x in smooth)
    gamma = [1 - len(p) * x * x / square for x in smooth]
    norm = math.sqrt(sum(g * g for g in gamma))
    a = [g / norm for g in gamma]
    step = min((p[c] - sigma * own[c]) / -a[c] for c in range(len(p)) if a[c] < 0)
    return [p[c] + step * a[c] for c in range(len(p))]


@pytest.mark.parametrize("sigma", [0.02, 0.5])
def test_water_filling_by_hand(sigma: float) -> None:
    p, own, smooth = [0.5, 0.3, 0.2], [0.2, 0.3, 0.5], [1.0, 2.0, 0.5]
    q = water_filling(doubles(*p), doubles(*own), doubles(*smooth), sigma)
    assert q.tolist() == pytest.approx(filled(p, own, smooth, sigma), rel=1e-12)
    assert q.sum().item() == pytest.approx(1)
    assert q[1].item() == pytest.approx(sigma * 0.3)  # the class with the fastest gradients reaches its floor
    assert (q > sigma * doubles(*own) - 1e-12).all()


def test_water_filling_where_there_is_nothing_to_move() -> None:
    p, own = doubles(0.5, 0.3, 0.2), doubles(0.2, 0.3, 0.5)
    for smooth in (doubles(0, 0, 0), doubles(2, 2, 2)):
        torch.testing.assert_close(water_filling(p, own, smooth, 0.02), p)
    # a class already below its floor stops the step at once
    torch.testing.assert_close(
        water_filling(doubles(0.001, 0.999), doubles(1, 0), doubles(3, 1), 0.02), doubles(0.001, 0.999)
    )


def test_water_filling_leaves_out_classes_nobody_has() -> None:
    q = water_filling(doubles(0.6, 0.4, 0), doubles(0.5, 0.5, 0), doubles(1, 2, 9), 0.02)
    assert q.tolist() == pytest.approx([*filled([0.6, 0.4], [0.5, 0.5], [1, 2], 0.02), 0])


# At a site --------------------------------------------------------------------------------------------------


def place(labels: Tensor, x: Tensor | None = None, mine: Any = None, **down: Tensor) -> Any:
    single = labels.dim() == 1
    member = F.one_hot(labels, 3) if single else labels
    train = SimpleNamespace(
        labels=labels,
        take=lambda rows, views, draws: SimpleNamespace(x=x[rows], y=labels[rows]) if x is not None else None,
    )
    return SimpleNamespace(
        **{
            "train": train,
            "counts": member.sum(0).double(),
            "samples": len(labels),
            "classes": ("a", "b", "c"),
            "mine": mine or {},
        },
        **{"down": down, "task": "single" if single else "multi", "view": lambda name: None, "scratch": {}},
        generator=lambda *purpose: generator(0, *purpose),
        objective=F.cross_entropy if single else F.binary_cross_entropy_with_logits,
    )


def test_first_weights_are_global_over_local_shares() -> None:
    loc = place(torch.tensor([0, 0, 0, 1]), prior=doubles(0.5, 0.3, 0.2))
    assert ISFL().weights(loc).tolist() == pytest.approx([0.5 / 0.75] * 3 + [0.3 / 0.25])
    kept = place(
        torch.tensor([0, 0, 0, 1]), mine={"shares": doubles(0.1, 0.6, 0.3)}, prior=doubles(0.5, 0.3, 0.2)
    )
    assert ISFL().weights(kept).tolist() == pytest.approx([0.1 / 0.75] * 3 + [0.6 / 0.25])


def test_weights_of_several_labels_are_means_over_findings() -> None:
    labels = torch.tensor([[1.0, 0, 0], [1, 1, 0], [0, 0, 0]])
    u = (0.5 / (2 / 3), 0.3 / (1 / 3))
    found = ISFL().weights(place(labels, prior=doubles(0.5, 0.3, 0.2)))
    assert found.tolist() == pytest.approx([u[0], (u[0] + u[1]) / 2, 1.0])


def test_draws_follow_the_weights_and_the_ratio() -> None:
    loc = place(torch.tensor([0] * 30 + [1] * 10))
    weight = torch.cat([torch.full((30,), 1.0), torch.full((10,), 9.0)]).double()
    rows = ISFL(ratio=100.0)._drawn(weight, loc, 0)
    assert len(rows) == 4000
    assert (rows >= 30).double().mean().item() == pytest.approx(0.75, abs=0.03)
    assert len(ISFL(ratio=0.5)._drawn(weight, loc, 0)) == 20
    assert len(ISFL(ratio=0.001)._drawn(weight, loc, 0)) == 2
    assert not torch.equal(ISFL()._drawn(weight, loc, 0), ISFL()._drawn(weight, loc, 1))


@pytest.fixture
def two(double_net: Callable[..., Net]) -> tuple[Net, Net]:
    """A net and the one it was received as."""
    received, net = double_net("fed"), double_net("fed")
    draw = torch.Generator().manual_seed(3)
    with torch.no_grad():
        for tensor in state(net).values():
            tensor.add_(0.05 * torch.randn(tensor.shape, generator=draw, dtype=tensor.dtype).abs())
    return net, received


IMAGES = torch.randn(6, 3, 16, 16, generator=torch.Generator().manual_seed(1), dtype=torch.float64)


def test_smoothness_of_the_classifier_by_formula(two: tuple[Net, Net]) -> None:
    net, received = two
    y = torch.tensor([0, 1, 1, 0, 1, 0])
    heads = [torch.cat([m.head["fed"].weight, m.head["fed"].bias[:, None]], 1) for m in two]
    way = (heads[0] - heads[1]).norm()
    expected = [0.0, 0.0, 0.0]
    for i in range(6):
        slope = []
        for model in two:  # d CE / d (W, b) = (softmax − onehot) ⊗ (features, 1)
            z = torch.cat([model.body(IMAGES[i : i + 1])[0], torch.ones(1).double()])
            error = model(IMAGES[i : i + 1])[0].softmax(0) - F.one_hot(y[i], 3)
            slope.append(torch.outer(error, z))
        expected[int(y[i])] = max(expected[int(y[i])], ((slope[0] - slope[1]).norm() / way).item())
    found = ISFL().smoothness(net, received, place(y, IMAGES))
    assert found.tolist() == pytest.approx(expected, rel=1e-9)


def test_smoothness_of_the_whole_net_and_of_several_labels(two: tuple[Net, Net]) -> None:
    net, received = two
    y = torch.tensor(
        [[1.0, 0, 0], [1, 1, 0], [0, 0, 0], [0, 1, 0], [1, 0, 0], [0, 0, 0]], dtype=torch.float64
    )
    way = torch.sqrt(
        sum(((a - b) ** 2).sum() for a, b in zip(net.parameters(), received.parameters(), strict=True))
    )
    slope = []
    for i in range(6):
        pairs = []
        for model in two:
            loss = F.binary_cross_entropy_with_logits(model(IMAGES[i : i + 1]), y[i : i + 1])
            pairs.append(torch.autograd.grad(loss, list(model.parameters())))
        slope.append(
            (torch.sqrt(sum(((a - b) ** 2).sum() for a, b in zip(*pairs, strict=True))) / way).item()
        )
    expected = [max(slope[0], slope[1], slope[4]), max(slope[1], slope[3]), 0.0]
    found = ISFL(scope="all").smoothness(net, received, place(y, IMAGES))
    assert found.tolist() == pytest.approx(expected, rel=1e-8)


def test_probe_is_spread_over_the_classes_a_site_has() -> None:
    y = torch.tensor([0] * 40 + [1] * 3)
    rows = ISFL(probe=10)._probe(place(y))
    assert torch.bincount(y[rows]).tolist() == [5, 3]
    assert len(ISFL(probe=1000)._probe(place(y))) == 43
    assert len(ISFL()._probe(place(torch.zeros(4, 3)))) == 0


def test_what_others_say_stands_in_for_absent_classes() -> None:
    labels, prior = torch.tensor([0, 0, 0, 1]), doubles(0.5, 0.3, 0.2)
    own = [0.75, 0.25, 0]
    for told, third in (
        ({"smoothness": doubles(9, 9, 4)}, 4.0),
        ({"smoothness": doubles(9, 9, 0)}, 1.5),
        ({}, 1.5),
    ):
        q = ISFL().shares(doubles(1, 2, 0), place(labels, prior=prior, **told))
        assert q.tolist() == pytest.approx(filled([0.5, 0.3, 0.2], own, [1, 2, third], 0.02), rel=1e-12)


# In a run ---------------------------------------------------------------------------------------------------


def test_uniform_mean_smoothness_by_class_and_shares_kept() -> None:
    bench = Bench(NAME)
    sites = {"whole": (0, 0, 0, 1, 1, 1, 2, 2), "without": (0, 0, 0, 0, 1, 1, 1, 1)}
    with bench.own_cache():
        trace = bench.run(bench.config(sites, rounds=1))
    up = {a.site: decode_upload(a.data)[1] for a in trace.answers if a.question.name == "train"}
    assert {float(leaves["delta"].weight) for leaves in up.values()} == {1.0}
    assert up["without"]["smoothness"].weight.tolist() == [1, 1, 0]
    smooth = {site: leaves["smoothness"].value for site, leaves in up.items()}
    assert smooth["without"][2] == 0 and (smooth["whole"] > 0).all()
    expected = [
        (smooth["whole"][0] + smooth["without"][0]) / 2,
        (smooth["whole"][1] + smooth["without"][1]) / 2,
    ]
    server = trace.result.server["smoothness"]
    assert server.tolist() == pytest.approx(
        [float(expected[0]), float(expected[1]), float(smooth["whole"][2])], abs=1e-7
    )
    prior, own = [7 / 16, 7 / 16, 2 / 16], [3 / 8, 3 / 8, 2 / 8]
    kept = trace.tensors["whole/mine/shares"]
    assert kept.tolist() == pytest.approx(filled(prior, own, smooth["whole"].tolist(), 0.02), rel=1e-6)


def test_another_method_than_fedavg(make_config: Callable[..., Any], tmp_path: Path) -> None:
    found = [
        run(make_config({"name": name}, rounds=1), tmp_path / name.rpartition(":")[2]).server["model"][
            "body.conv1.weight"
        ]
        for name in ("fedavg", NAME)
    ]
    assert not torch.allclose(*found, rtol=0, atol=1e-6)


def test_partial_participation_and_hidden_labels(make_findings: Callable[..., Any], tmp_path: Path) -> None:
    found = [
        run(
            make_findings({"name": NAME}, spoilt=kind, rounds=4, participation=0.5),
            tmp_path / str(kind),
        ).state_hash
        for kind in (False, True)
    ]
    assert found[0] == found[1]
