"""CBAFed: thresholds, pseudo-labels, weights and the residual, each by hand."""

from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from equipoise.config import Config
from equipoise.exchange import Reduction, decode_upload
from equipoise.leaves import Mean, Sum, Upload
from equipoise.losses import make_objective, parse_objective
from equipoise.methods.cbafed import CBAFed
from equipoise.running import run
from equipoise.setup import material
from equipoise.site import Batch
from equipoise.testing import Tap

NAME = "cbafed"


def test_thresholds_are_shares_less_their_spread_within_bounds() -> None:
    share = np.array([0.1, 0.3, 0.05, 0.55])
    expected = np.clip(share + 0.45 - np.std(share, ddof=1), 0.55, 0.95)
    assert CBAFed().thresholds(torch.tensor(share)).tolist() == pytest.approx(expected.tolist(), rel=1e-12)
    wide = CBAFed(offset=0.9, floor=0.5, ceiling=0.9).thresholds(torch.tensor(share))
    assert wide.tolist() == pytest.approx(
        np.clip(share + 0.9 - np.std(share, ddof=1), 0.5, 0.9).tolist(), rel=1e-12
    )
    assert CBAFed().thresholds(torch.zeros(3, dtype=torch.float64)).tolist() == [0.55] * 3
    assert CBAFed(offset=0.2).thresholds(torch.tensor([0.6]).double()).tolist() == pytest.approx(
        [0.8]
    )  # one has no spread


TAU = torch.tensor([0.9, 0.75, 0.8], dtype=torch.float64)


def place(round: int = 9) -> Any:
    own, counts = torch.tensor([True, False, False]), torch.tensor([2.0, 0, 0], dtype=torch.float64)
    objective = make_objective(
        parse_objective({"name": "bce", "pos_weight": True}),
        counts=counts,
        total=6,
        task="multi",
        labelled=own,
    )
    scratch = {"used": torch.zeros(3, dtype=torch.float64)}
    return SimpleNamespace(objective=objective, round=round, scratch=scratch, down={"threshold": TAU})


def batch_of(logits: Tensor, y: Tensor) -> Batch:
    """A batch of a site that labels the first class alone."""
    y = torch.cat([y[:, :1], torch.full_like(y[:, 1:], torch.nan)], 1)
    return Batch(views=(logits,), y=y, index=torch.arange(6))


def draws(seed: int) -> Tensor:
    return 1.5 * torch.randn(6, 3, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


@pytest.mark.parametrize("pseudo", ["fixed", "batch"])
def test_loss_is_one_mean_over_labels_and_pseudo_labels(pseudo: Any) -> None:
    logits, loc = draws(0), place()
    score = draws(1).sigmoid() if pseudo == "fixed" else logits.sigmoid()
    loc.scratch["score"] = draws(1).sigmoid()
    y = torch.tensor(
        [[1.0, 0, 0], [0, 0, 0], [1, 0, 0], [0, 0, 0], [0, 0, 0], [0, 0, 0]], dtype=torch.float64
    )
    total, used = 0.0, [0, 0, 0]
    for i in range(6):
        for c in range(3):
            p, z = float(score[i, c]), float(logits[i, c])
            if c == 0:
                label, weight = int(y[i, 0]), 3.0  # two of six are positive
            elif p > TAU[c]:
                label, weight = 1, 1.0
            elif p < 1 - TAU[c]:
                label, weight = 0, 1.0
            else:
                continue
            used[c] += 1
            total += weight * math.log1p(math.exp(-z)) if label else math.log1p(math.exp(z))
    batch = batch_of(logits, y)
    found = CBAFed(warmup=9, pseudo=pseudo).loss(lambda x: x, batch, loc)  # type: ignore[arg-type]
    assert float(found) == pytest.approx(total / sum(used), rel=1e-9)
    assert loc.scratch["used"].tolist() == used
    assert used[0] == 6 and 0 < used[1] < 6 and 0 < used[2] < 6


def test_preset_has_the_gradients_of_the_published_loss() -> None:
    """FedMLP's repository: the mean over labels, and for every missing class the mean over its pseudo-labels,
    weighted anew."""
    logits = draws(0)
    logits[:, 2] = -logits[:, 2].abs()  # no pseudo-positive of the last class
    logits.requires_grad_()
    y = torch.tensor(
        [[1.0, 0, 0], [0, 0, 0], [1, 0, 0], [0, 0, 0], [0, 0, 0], [0, 0, 0]], dtype=torch.float64
    )
    own = torch.nn.BCEWithLogitsLoss(pos_weight=torch.tensor(3.0))
    expected = own(logits[:, 0], y[:, 0])
    for c in (1, 2):
        p = logits[:, c].detach().sigmoid()
        yes, no = p > TAU[c], p < 1 - TAU[c]
        sides = F.binary_cross_entropy_with_logits(logits[:, c], yes.double(), reduction="none")
        weight = (yes.sum() + no.sum()) / yes.sum().clamp_min(1) if yes.any() else torch.ones(())
        expected = expected + (sides[yes].sum() * weight + sides[no].sum()) / (yes.sum() + no.sum())
    batch = batch_of(logits, y)
    method = CBAFed(**CBAFed.presets["fedmlp"])
    found = method.loss(lambda x: x, batch, place(60))  # type: ignore[arg-type]
    assert found.item() == pytest.approx(expected.item(), rel=1e-9)
    torch.testing.assert_close(
        *(torch.autograd.grad(x, logits)[0] for x in (found, expected)), rtol=1e-9, atol=1e-12
    )
    p = logits.detach().sigmoid()
    assert ((p > TAU) | (p < 1 - TAU))[:, 1:].any(0).all() and (p > TAU)[:, 1:].any(0).tolist() == [
        True,
        False,
    ]


@pytest.mark.parametrize(("options", "round"), [({"warmup": 9}, 8), ({"warmup": 0, "pseudo": "none"}, 8)])
def test_without_pseudo_labels_it_is_the_base_loss(options: dict[str, Any], round: int) -> None:
    logits, loc = draws(0), place(round)
    batch = batch_of(logits, torch.zeros(6, 3, dtype=torch.float64))
    found = CBAFed(**options).loss(lambda x: x, batch, loc)  # type: ignore[arg-type]
    assert torch.equal(found, loc.objective(logits, batch.y))
    assert loc.scratch["used"].tolist() == [6, 0, 0]


def ask_with(upload: Upload, round: int, heard: dict[str, Any]) -> Any:
    def ask(question: Any, **down: Any) -> Any:
        heard.update(down)
        reduction = Reduction()
        reduction.add("a", upload)
        return reduction.result(("a",))

    ask.round = round
    return ask


def play(method: CBAFed, rounds: int) -> list[Any]:
    """The server tree after every round, in which the sites add 1 to the only weight; it starts at 100."""
    net = SimpleNamespace(classes=1)
    server = method.init(net, {"head.fed.weight": torch.tensor([[100.0]])})  # type: ignore[arg-type]
    found = []
    for round in range(rounds):
        upload: Upload = {
            "delta": Mean({"head.fed.weight": torch.tensor([[1.0]])}, 3.0),
            "used": Sum(torch.tensor([3.0], dtype=torch.float64)),
        }
        server = method.round(server, ask_with(upload, round, {}))
        found.append(server)
    return found


def residual(rounds: int, warmup: int, every: int, warm: float, late: float) -> list[float]:
    """By hand: a phase's first round is its first snapshot, every so many rounds after it the snapshot is
    mixed in."""
    w, past, found = 100.0, math.nan, list[float]()
    for round in range(rounds):
        w += 1
        start, share = (0, warm) if round < warmup else (warmup, late)
        if round == start:
            past = w
        elif (round - start) % every == 0:
            w = past = (1 - share) * w + share * past
        found.append(w)
    return found


@pytest.mark.parametrize(("warmup", "every"), [(0, 2), (4, 2), (5, 2), (7, 3), (3, 1), (50, 5)])
def test_residual_is_a_trained_model_and_is_taken_anew_when_warm_up_ends(warmup: int, every: int) -> None:
    method = CBAFed(warmup=warmup, every=every, warm_residual=0.8, residual=0.25)
    found = [float(server["model"]["head.fed.weight"]) for server in play(method, 12)]
    assert found == pytest.approx(residual(12, warmup, every, 0.8, 0.25), rel=1e-6)


def test_the_first_mixing_has_nothing_of_the_untrained_model() -> None:
    """FedMLP's schedule: round 5 (the sixth) has 0.2 · 106 + 0.8 · 101, and none of 100."""
    found = [
        float(server["model"]["head.fed.weight"]) for server in play(CBAFed(**CBAFed.presets["fedmlp"]), 6)
    ]
    assert found == pytest.approx([101, 102, 103, 104, 105, 0.2 * 106 + 0.8 * 101], rel=1e-6)
    assert "past" not in play(CBAFed(every=0), 1)[0]


@pytest.mark.parametrize("pseudo", ["fixed", "none"])
def test_shares_are_of_images_in_warm_up_and_of_labels_after_it(pseudo: Any) -> None:
    """Three sites of 10, 20 and 30 images: 40 have the first label, 60 the second, 10 the third."""
    used = torch.tensor([40.0, 60.0, 10.0], dtype=torch.float64)
    server = {
        "model": {"w": torch.tensor([2.0])},
        "share": torch.tensor([0.5, 0.75, 1.0], dtype=torch.float64),
    }
    method, shares = CBAFed(warmup=4, every=0, pseudo=pseudo), {}
    for round, images in ((3, 60.0), (4, 110 / 3 if pseudo == "fixed" else 60.0)):
        heard = dict[str, Any]()
        upload: Upload = {"delta": Mean({"w": torch.tensor([1.0])}, images), "used": Sum(used)}
        shares[round] = method.round(server, ask_with(upload, round, heard))["share"].tolist()
        assert torch.equal(heard["threshold"], method.thresholds(server["share"]))
    assert shares[3] == pytest.approx([40 / 60, 1.0, 10 / 60], rel=1e-6)
    assert shares[4] == pytest.approx(
        [40 / 110, 60 / 110, 10 / 110] if pseudo == "fixed" else shares[3], rel=1e-6
    )


@pytest.mark.parametrize("pseudo", ["fixed", "batch"])
def test_sites_count_by_the_labels_they_used(
    make_findings: Callable[..., Config], tmp_path: Path, pseudo: str
) -> None:
    taps = list[Tap]()

    def wrap(engine: Any) -> Any:
        taps.append(Tap(engine))
        return taps[0]

    config = make_findings({"name": NAME, "warmup": 1, "pseudo": pseudo, "floor": 0.6}, epochs=2)
    result = run(config, tmp_path / "run", wrap=wrap)
    own = {h.name: torch.from_numpy(h.labelled) for h in material(config).holdings}
    total = torch.zeros(3, dtype=torch.float64)
    for answer in (a for a in taps[0].answers if a.question.name == "train"):
        up = decode_upload(answer.data)[1]
        used, n = up["used"].value, {"north": 12, "south": 8, "west": 10}[answer.site]
        assert up["used"].kind == "sum" and (used[own[answer.site]] == n).all()
        if answer.question.round == 0:
            assert float(up["delta"].weight) == n and not used[~own[answer.site]].any()
        else:
            assert float(up["delta"].weight) == pytest.approx(float(used.sum()) / 3)
            assert 0 <= float(used[~own[answer.site]]) <= n
            total += used
    assert result.server["share"].tolist() == pytest.approx((total / total.sum()).tolist())
    assert 30 + 20 < float(total.sum()) <= 90


def test_first_thresholds_come_from_labelled_images(
    make_findings: Callable[..., Config], tmp_path: Path
) -> None:
    config = make_findings({"name": NAME, "warmup": 1, "pseudo": "batch"}, rounds=1, epochs=2)
    sizes = {"north": 12, "south": 8, "west": 10}
    own = {h.name: torch.from_numpy(h.labelled) for h in material(config).holdings}
    expected = sum(sizes[site] * own[site].double() for site in sizes) / 30
    share = run(config, tmp_path / "run").server["share"]
    torch.testing.assert_close(share, expected, rtol=1e-6, atol=0)
    assert float(share.sum()) == pytest.approx(2.0)  # every site labels two of three findings
