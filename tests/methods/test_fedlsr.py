"""FedLSR: the loss against explicit loops, for one and for several labels per image."""

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

from equipoise.config import Config
from equipoise.losses import make_objective, parse_objective
from equipoise.methods.fedlsr import FedLSR, jensen_shannon, mix, mix_odds
from equipoise.running import run
from equipoise.site import Batch

OWN = torch.tensor([True, False, True])


def logits(seed: int, n: int = 4) -> Tensor:
    return 1.5 * torch.randn(n, 3, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def place(task: Any, round: int = 5, rounds: int = 20) -> Any:
    counts = torch.tensor([2.0, 1, 1], dtype=torch.float64)
    name, labelled = ("cross_entropy", None) if task == "single" else ("bce", OWN)
    objective = make_objective(parse_objective(name), counts=counts, total=4, task=task, labelled=labelled)
    draw = torch.Generator().manual_seed(9)
    return SimpleNamespace(objective=objective, task=task, round=round, rounds=rounds, scratch={"draw": draw})


def drawn() -> float:
    return float(torch.rand((), generator=torch.Generator().manual_seed(9)))


def softmax(z: list[float]) -> list[float]:
    total = sum(math.exp(v) for v in z)
    return [math.exp(v) / total for v in z]


def js(p: list[float], q: list[float]) -> float:
    middle = [(a + b) / 2 for a, b in zip(p, q, strict=True)]
    return 0.5 * sum(a * math.log(a / m) + b * math.log(b / m) for a, b, m in zip(p, q, middle, strict=True))


def shannon(p: list[float]) -> float:
    return -sum(a * math.log(a) for a in p)


@pytest.mark.parametrize("variant", ["paper", "released"])
def test_single_label_loss_by_hand(variant: Any) -> None:
    a, b, y, m = logits(0), logits(1), torch.tensor([0, 2, 1, 0]), drawn()
    total = 0.0
    for i in range(4):
        one, two = a[i].tolist(), b[i].tolist()
        p = [m * s + (1 - m) * t for s, t in zip(softmax(one), softmax(two), strict=True)]
        sharp = [v**2 / sum(u**2 for u in p) for v in p]
        if variant == "released":
            sharp = softmax(sharp)
        q1, q2 = (softmax([3 * v for v in z]) for z in (one, two))
        agree = js(q1, q2) / (3 if variant == "released" else 1)
        total += -math.log(sharp[int(y[i])]) + 0.2 * agree + 0.6 * (shannon(q1) + shannon(q2)) / 2
    batch = Batch(views=(a, b), y=y, index=torch.arange(4))
    method = FedLSR(gamma=0.4, warmup=10, entropy=0.6, variant=variant)
    found = method.loss(lambda x: x, batch, place("single"))  # type: ignore[arg-type]
    assert float(found) == pytest.approx(total / 4, rel=1e-6)


@pytest.mark.parametrize("variant", ["paper", "released"])
def test_several_labels_by_hand(variant: Any) -> None:
    a, b, m = logits(0), logits(1), drawn()
    y = torch.tensor([[1.0, 0, 0], [0, 0, 1], [1, 0, 1], [0, 0, 0]], dtype=torch.float64)

    def sigmoid(z: float) -> float:
        return 1 / (1 + math.exp(-z))

    total = agree = 0.0
    for i in range(4):
        for c in range(3):
            one, two = float(a[i, c]), float(b[i, c])
            p = m * sigmoid(one) + (1 - m) * sigmoid(two)
            sharp = p**2 / (p**2 + (1 - p) ** 2)
            if variant == "released":
                sharp = sigmoid(sharp)
            if OWN[c]:
                total -= math.log(sharp if y[i, c] else 1 - sharp) / 8
            q1, q2 = ([sigmoid(3 * z), sigmoid(-3 * z)] for z in (one, two))
            agree += (js(q1, q2) if variant == "paper" else js(q1[:1], q2[:1])) / 12
    batch = Batch(views=(a, b), y=y.masked_fill(~OWN, torch.nan), index=torch.arange(4))
    found = FedLSR(gamma=0.4, warmup=5, variant=variant).loss(lambda x: x, batch, place("multi"))  # type: ignore[arg-type]
    assert float(found) == pytest.approx(total + 0.4 * agree, rel=1e-6)


@pytest.mark.parametrize("task", ["single", "multi"])
def test_released_agreement_is_kl_div_with_its_mean_over_elements(task: Any) -> None:
    """So FedLSR's repository, and FedMLP's with sigmoids, of which it takes the positive side alone."""
    a, b = logits(0), logits(1)
    p, q = (((3 * z).softmax(1) if task == "single" else (3 * z).sigmoid()).clamp_min(1e-6) for z in (a, b))
    middle = ((p + q) / 2).log()
    expected = (F.kl_div(middle, p, reduction="none") + F.kl_div(middle, q, reduction="none")).mean() / 2
    found = FedLSR(variant="released").agreement(a, b, task == "single")
    assert float(found) == pytest.approx(float(expected), rel=1e-9)


def test_equal_views_without_sharpening_are_the_base_loss() -> None:
    z, y = logits(0), torch.tensor([0, 2, 1, 0])
    batch = Batch(views=(z, z), y=y, index=torch.arange(4))
    found = FedLSR(sharpen=1.0).loss(lambda x: x, batch, place("single"))  # type: ignore[arg-type]
    torch.testing.assert_close(found, F.cross_entropy(z, y), rtol=1e-6, atol=1e-9)
    y = (logits(3) > 0).double().masked_fill(~OWN, torch.nan)
    batch = Batch(views=(z, z), y=y, index=torch.arange(4))
    found = FedLSR(sharpen=1.0).loss(lambda x: x, batch, place("multi"))  # type: ignore[arg-type]
    torch.testing.assert_close(found, place("multi").objective(z, y), rtol=1e-6, atol=1e-9)


def test_extreme_logits_and_shares_stay_finite() -> None:
    far = torch.tensor([[400.0, -400.0], [-400.0, 400.0]], requires_grad=True)
    for share in (0.0, 0.5):
        for mixed in (mix, mix_odds):
            value = mixed(far, -far, torch.tensor(share))
            assert value.isfinite().all()
            assert torch.autograd.grad(value.sum(), far)[0].isfinite().all()
    p, q = torch.tensor([[1.0, 1e-6]]), torch.tensor([[1e-6, 1.0]])
    assert float(jensen_shannon(p, q)) == pytest.approx(math.log(2), rel=1e-4)


@pytest.mark.parametrize(
    ("warmup", "round", "share"),
    [(None, 0, 0), (None, 2, 0.5), (None, 4, 1), (None, 9, 1), (0, 0, 1), (40, 10, 0.25)],
)
def test_agreement_rises(warmup: int | None, round: int, share: float) -> None:
    assert FedLSR(gamma=0.4, warmup=warmup).strength(place("single", round)) == pytest.approx(0.4 * share)


def test_it_is_not_fedavg(make_config: Callable[..., Config], tmp_path: Path) -> None:
    views = ["weak", "weak"]
    plain = run(make_config({"name": "fedavg"}, views=views), tmp_path / "plain").server["model"]
    model = run(make_config({"name": "fedlsr"}, views=views), tmp_path / "run").server["model"]
    assert any((model[name] - plain[name]).abs().max() > 1e-4 for name in plain)
