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

NAME = "equipoise.methods.cbafed:CBAFed"


def test_thresholds_are_shares_less_their_spread_within_bounds() -> None:
    used = torch.tensor([100.0, 300, 50, 550], dtype=torch.float64)
    share = np.array([0.1, 0.3, 0.05, 0.55])
    expected = np.clip(share + 0.45 - np.std(share), 0.55, 0.95)
    assert CBAFed().thresholds(used).tolist() == pytest.approx(expected.tolist(), rel=1e-12)
    wide = CBAFed(offset=0.9, floor=0.5, ceiling=0.9).thresholds(used)
    assert wide.tolist() == pytest.approx(np.clip(share + 0.9 - np.std(share), 0.5, 0.9).tolist(), rel=1e-12)
    assert CBAFed().thresholds(torch.zeros(3, dtype=torch.float64)).tolist() == [0.55] * 3


TAU = torch.tensor([0.9, 0.75, 0.8], dtype=torch.float64)


def place(round: int = 9) -> Any:
    own, counts = torch.tensor([True, False, False]), torch.tensor([2.0, 0, 0], dtype=torch.float64)
    objective = make_objective(
        parse_objective({"name": "bce", "pos_weight": True}), counts=counts, total=6, task="multi", labelled=own
    )
    scratch = {"used": torch.zeros(3, dtype=torch.float64)}
    return SimpleNamespace(objective=objective, annotated=own, round=round, scratch=scratch, down={"threshold": TAU})


def draws(seed: int) -> Tensor:
    return 1.5 * torch.randn(6, 3, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


@pytest.mark.parametrize("pseudo", ["fixed", "batch"])
def test_loss_is_one_mean_over_labels_and_pseudo_labels(pseudo: Any) -> None:
    logits, loc = draws(0), place()
    score = draws(1).sigmoid() if pseudo == "fixed" else logits.sigmoid()
    loc.scratch["score"] = draws(1).sigmoid()
    y = torch.tensor([[1.0, 0, 0], [0, 0, 0], [1, 0, 0], [0, 0, 0], [0, 0, 0], [0, 0, 0]], dtype=torch.float64)
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
    batch = Batch(views=(logits,), y=y, index=torch.arange(6), mask=None)
    found = CBAFed(warmup=9, pseudo=pseudo).loss(lambda x: x, batch, loc)  # type: ignore[arg-type]
    assert float(found) == pytest.approx(total / sum(used), rel=1e-9)
    assert loc.scratch["used"].tolist() == used
    assert used[0] == 6 and 0 < used[1] < 6 and 0 < used[2] < 6


@pytest.mark.parametrize(("options", "round"), [({"warmup": 9}, 8), ({"warmup": 0, "pseudo": "none"}, 8)])
def test_without_pseudo_labels_it_is_the_base_loss(options: dict[str, Any], round: int) -> None:
    logits, loc = draws(0), place(round)
    batch = Batch(views=(logits,), y=torch.zeros(6, 3, dtype=torch.float64), index=torch.arange(6), mask=None)
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


@pytest.mark.parametrize(("round", "share"), [(0, None), (1, 0.8), (2, None), (3, 0.8), (4, None), (5, 0.25)])
def test_the_past_model_is_mixed_in_every_other_round(round: int, share: float | None) -> None:
    upload: Upload = {"delta": Mean({"w": torch.tensor([1.0])}, 3), "used": Sum(torch.tensor([3.0, 5.0]))}
    server = {"model": {"w": torch.tensor([2.0])}, "past": {"w": torch.tensor([7.0])}, "used": torch.tensor([1.0, 3.0])}
    heard = dict[str, Any]()
    method = CBAFed(warmup=4, every=2, residual=0.25)
    after = method.round(server, ask_with(upload, round, heard))
    mixed = 3.0 if share is None else (1 - share) * 3 + share * 7
    assert float(after["model"]["w"]) == pytest.approx(mixed, rel=1e-6)
    assert float(after["past"]["w"]) == pytest.approx(7 if share is None else mixed, rel=1e-6)
    assert after["used"].tolist() == [3, 5]
    assert torch.equal(heard["threshold"], method.thresholds(torch.tensor([1.0, 3.0])))


@pytest.mark.parametrize("pseudo", ["fixed", "batch"])
def test_sites_count_by_the_labels_they_used(make_findings: Callable[..., Config], tmp_path: Path, pseudo: str) -> None:
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
    assert result.server["used"].tolist() == pytest.approx(total.tolist())
    assert 30 + 20 < float(total.sum()) <= 90
