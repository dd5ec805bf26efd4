"""FedIRM: relations and their mismatch against explicit loops, phases, and what the coordinator keeps."""

from __future__ import annotations

import math
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from equipoise.config import Config
from equipoise.exchange import Reduction
from equipoise.leaves import Mean, Upload
from equipoise.losses import make_objective, parse_objective
from equipoise.methods.fedirm import FedIRM
from equipoise.nets import state
from equipoise.site import Batch


def sigmoid(z: float) -> float:
    return 1 / (1 + math.exp(-z))


def logits_of(n: int = 9, seed: int = 2) -> Tensor:
    return 3 * torch.randn(n, 3, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


KNOWN = torch.tensor([[0.8, 0.3, 0.2], [0.4, 0.7, 0.1], [0.0, 0.0, 0.0]], dtype=torch.float64)
"""nobody has shown the last row"""


def by_loops(logits: Tensor, method: FedIRM) -> tuple[float, int]:
    """The mismatch as printed, and how many rows count."""
    chosen = []
    for row in logits.tolist():
        p = [sigmoid(z) for z in row]
        nats = sum(-q * math.log(q) - (1 - q) * math.log(1 - q) for q in p)
        if all(q < method.low or q > method.high for q in p) and nats < method.entropy:
            chosen.append(row)
    gaps = []
    for c in range(3):
        positives = [row for row in chosen if row[c] > 0]
        if not positives or not KNOWN[c].any():
            continue
        gap = 0.0
        for j in range(3):
            a = float(KNOWN[c, j])
            b = sigmoid(sum(row[j] for row in positives) / len(positives) / method.temperature)
            pairs = [(a, b), (1 - a, 1 - b)] if method.kl == "bernoulli" else [(a, b)]
            gap += 0.5 * sum(x * math.log(x / y) + y * math.log(y / x) for x, y in pairs)
        gaps.append(gap)
    return sum(gaps) / 3, len(gaps)


@pytest.mark.parametrize("kl", ["bernoulli", "released"])
@pytest.mark.parametrize(
    "options", [{}, {"temperature": 1.0}, {"entropy": 0.6}, {"low": 0.2, "high": 0.9}, {"low": 0.1}]
)
def test_mismatch_by_explicit_loops(kl: Any, options: dict[str, Any]) -> None:
    method = FedIRM(kl=kl, **options)
    expected, rows = by_loops(logits_of(60), method)
    assert float(method.mismatch(logits_of(60), KNOWN)) == pytest.approx(expected, rel=1e-9, abs=1e-12)
    assert rows > 0


def test_mismatch_is_zero_where_relations_agree_or_nobody_is_sure() -> None:
    z = torch.tensor([[2.0, -3.0, -4.0], [4.0, -1.0, -2.0]], dtype=torch.float64, requires_grad=True)
    same = torch.tensor([[1.5, -1.0, -1.5], [0, 0, 0], [0, 0, 0]], dtype=torch.float64).sigmoid()
    for known in (same, torch.zeros(3, 3, dtype=torch.float64)):
        found = FedIRM(entropy=9).mismatch(z, known)
        assert abs(found.item()) < 1e-12
        assert torch.autograd.grad(found, z)[0].abs().max() < 1e-12
    unsure = torch.zeros(2, 3, dtype=torch.float64, requires_grad=True)
    assert FedIRM().mismatch(unsure, KNOWN).item() == 0
    far = 300 * torch.sign(logits_of())
    assert FedIRM().mismatch(far, KNOWN).isfinite()


def place(round: int, **more: Any) -> Any:
    own, counts = torch.tensor([True, True, False]), torch.tensor([3.0, 2, 0], dtype=torch.float64)
    objective = make_objective(parse_objective("bce"), counts=counts, total=9, task="multi", labelled=own)
    scratch = {"teacher": lambda x: 0.5 * x.detach()}
    facts = {
        "objective": objective,
        "scratch": scratch,
        "round": round,
        "down": {"relation": KNOWN},
    }
    return SimpleNamespace(**(facts | more))


@pytest.mark.parametrize(
    ("round", "share"), [(3, None), (4, math.exp(-5 * (1 - 0.4) ** 2)), (10, 1.0), (30, 1.0)]
)
def test_loss_by_hand(round: int, share: float | None) -> None:
    first, second = logits_of(), logits_of(seed=3)
    y = (logits_of(seed=4) > 0).double()
    y[:, 2] = torch.nan
    method, loc = FedIRM(warmup=4, ramp=10, strength=2.0), place(round)
    expected = float(loc.objective(first, y) + loc.objective(second, y))
    if share is not None:
        apart = 0.0
        for i in range(9):
            for c in range(3):
                apart += (sigmoid(float(first[i, c])) - sigmoid(0.5 * float(second[i, c]))) ** 2 / 9
        expected += 2 * share * (apart + by_loops(first, method)[0])
    batch = Batch(views=(first, second), y=y, index=torch.arange(9))
    assert float(method.loss(lambda x: x, batch, loc)) == pytest.approx(expected, rel=1e-9)  # type: ignore[arg-type]


def published(
    first: Tensor, second: Tensor, y: Tensor, teacher: Tensor, known: Tensor, share: float
) -> Tensor:
    """The loss as FedMLP's repository adds it up, for a site that labels the first two of three classes."""
    total = torch.zeros((), dtype=torch.float64)
    for z in (first, second):
        total = total + F.binary_cross_entropy_with_logits(z[:, :2], y[:, :2], reduction="sum") / (len(z) * 2)
    total = total + share * ((first.sigmoid() - teacher.sigmoid()) ** 2).sum() / len(first)
    p = first.detach().sigmoid()
    nats = -(p * p.log() + (1 - p) * (1 - p).log()).sum(1)
    sure = first[((p > 0.7) | (p < 0.3)).all(1) & (nats < 2)]
    positive = (sure > 0).double()
    rows = (
        positive.T @ sure / (positive.sum(0) + 1e-8)[:, None] / 2
    ).sigmoid()  # ½ in a row without positives
    both = F.kl_div(rows.log(), known, reduction="batchmean") + F.kl_div(
        known.log(), rows, reduction="batchmean"
    )
    return total + share * both / 2


def test_preset_has_the_gradients_of_the_published_loss() -> None:
    """Its value differs by what rows without pseudo-positives add: they are constants there and 0 here."""
    known = torch.tensor([[0.8, 0.3, 0.2], [0.4, 0.7, 0.1], [0.2, 0.6, 0.9]], dtype=torch.float64)
    y = (logits_of(seed=4) > 0).double()
    y[:, 2] = torch.nan
    rowless = logits_of() - torch.tensor([0.0, 9, 0], dtype=torch.float64)  # nobody has the second class
    for logits in (logits_of(), rowless):
        first, second = logits.clone().requires_grad_(), logits_of(seed=3).requires_grad_()
        loc = place(25, down={"relation": known})
        batch = Batch(views=(first, second), y=y, index=torch.arange(9))
        method = FedIRM(**FedIRM.presets["fedmlp"])
        found = method.loss(lambda x: x, batch, loc)  # type: ignore[arg-type]
        expected = published(
            first, second, y, 0.5 * second.detach(), known, math.exp(-5 * (1 - 25 / 30) ** 2)
        )
        for mine, theirs in zip(
            torch.autograd.grad(found, (first, second)),
            torch.autograd.grad(expected, (first, second)),
            strict=True,
        ):
            torch.testing.assert_close(mine, theirs, rtol=1e-6, atol=1e-9)
    assert not (rowless[:, 1] > 0).any() and (logits_of() > 0).any(0).all()


def test_teacher_starts_from_the_model_received_when_warm_up_ends(
    make_findings: Callable[..., Config], visit: Callable[..., Any]
) -> None:
    config = make_findings({"name": "fedirm", "warmup": 2})
    for round in (0, 1):
        net, loc = visit(config, "north", {"relation": KNOWN}, round=round)
        config.method.train(net, loc)
        assert "teacher" not in loc.mine
    net, loc = visit(config, "north", {"relation": KNOWN}, round=2)
    start = {name: tensor.clone() for name, tensor in state(net).items()}
    config.method.prepare(net, loc)
    assert all(torch.equal(tensor, start[name]) for name, tensor in loc.mine["teacher"].items())


def relation(n: int, own: list[int], seed: int) -> tuple[Upload, Tensor, Tensor]:
    logits, mask = logits_of(n, seed), torch.tensor([c in own for c in range(3)])
    y = (logits_of(n, seed + 1) > 1).double().masked_fill(~mask, torch.nan)
    scan = [SimpleNamespace(x=logits[: n // 2]), SimpleNamespace(x=logits[n // 2 :])]
    total = torch.full((3,), float(n), dtype=torch.float64)
    loc = SimpleNamespace(scan=lambda: scan, train=SimpleNamespace(labels=y), total=total)
    return {"relation": FedIRM(temperature=3.0)._relation(lambda x: x, loc)}, logits, y  # type: ignore[arg-type]


def test_shared_rows_are_means_over_the_sites_that_label_the_class() -> None:
    sites = {"a": (8, [0, 1]), "b": (11, [0]), "c": (20, [0, 2])}
    found = {site: relation(n, own, seed=10 * n) for site, (n, own) in sites.items()}
    reduction = Reduction()
    for site, (upload, *_) in found.items():
        reduction.add(site, upload)
    answers = reduction.result(tuple(sites))
    for c in range(3):
        weights, rows = [], []
        for site, (n, own) in sites.items():
            _, logits, y = found[site]
            positives = [logits[i] for i in range(n) if y[i, c]]
            if c in own and positives:
                weights.append(n)
                rows.append(
                    [sigmoid(float(sum(z[j] for z in positives)) / len(positives) / 3) for j in range(3)]
                )
        assert float(answers.weight["relation"][c]) == sum(weights) > 0
        for j in range(3):
            expected = sum(w * row[j] for w, row in zip(weights, rows, strict=True)) / sum(weights)
            assert float(answers["relation"][c, j]) == pytest.approx(expected, abs=1e-7)


def test_row_nobody_shows_stays_as_it_was() -> None:
    upload: Upload = {
        "delta": Mean({"w": torch.ones(2)}, 3),
        "relation": Mean(torch.full((3, 3), 0.5), 3 * torch.tensor([1.0, 0, 0], dtype=torch.float64)),
    }

    def ask(question: Any, **down: Any) -> Any:
        reduction = Reduction()
        reduction.add("a", upload)
        return reduction.result(("a",))

    ask.round = 1  # type: ignore[attr-defined]
    server = {"model": {"w": torch.zeros(2)}, "relation": torch.full((3, 3), 0.25)}
    after = FedIRM(warmup=2).round(server, ask)  # type: ignore[arg-type]
    assert after["relation"].tolist() == [[0.5] * 3, [0.25] * 3, [0.25] * 3]
    assert after["model"]["w"].tolist() == [1, 1]
    del upload["relation"]
    assert FedIRM(warmup=3).round(server, ask)["relation"] is server["relation"]  # type: ignore[arg-type]


@pytest.mark.parametrize(("warmup", "phases"), [(0, [0]), (1, [0]), (5, [0, 4]), (9, [0, 8]), (50, [0])])
def test_phases_are_within_the_run(warmup: int, phases: list[int]) -> None:
    assert list(FedIRM(warmup=warmup).phases(9)) == phases
