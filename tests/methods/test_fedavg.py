"""FedAvg against a plain PyTorch loop."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from equipoise.nets import load, state
from equipoise.running import run
from equipoise.seeds import generator

SIZES = {"north": 9, "south": 6, "west": 14}


def train_plainly(
    bare: Any, site: str, start: dict[str, Tensor], *, rounds: range, sgd: bool = False
) -> dict[str, Tensor]:
    """One site's local training, written out: batches of 4, a last one of one joined to the one before."""
    load(bare.net, start)
    x, y = bare.rows(site, "train")
    for number in rounds:
        make = torch.optim.SGD if sgd else torch.optim.Adam
        optimizer = make(bare.net.parameters(), lr=0.01)
        order = torch.randperm(len(y), generator=generator(3, number, site, "train", "shuffle", 0))
        parts = [part.tolist() for part in order.split(4)]
        if len(parts[-1]) == 1:
            parts[-2:] = [parts[-2] + parts[-1]]
        bare.net.train()
        for part in parts:
            optimizer.zero_grad()
            F.cross_entropy(bare.net(x[part]), y[part]).backward()
            optimizer.step()
        bare.net.eval()
    return {name: tensor.clone() for name, tensor in state(bare.net).items()}


def test_round_is_the_mean_of_separately_trained_models(
    make_config: Callable[..., Any], bare: Callable[..., Any], tmp_path: Path
) -> None:
    config = make_config({"name": "fedavg"}, rounds=1)
    model = run(config, tmp_path / "run").server["model"]
    plain = bare(config)
    trained = {site: train_plainly(plain, site, plain.first, rounds=range(1)) for site in SIZES}
    total = sum(SIZES.values())
    for name, tensor in model.items():
        mean = sum(SIZES[site] / total * trained[site][name].double() for site in SIZES)
        torch.testing.assert_close(tensor.double(), mean, rtol=0, atol=1e-6)
        assert not torch.equal(tensor, plain.first[name]), name


def test_reported_loss_is_the_mean_over_all_images(
    make_config: Callable[..., Any], bare: Callable[..., Any], tmp_path: Path
) -> None:
    # One batch per site and no step worth the name: the loss of the first weights, in train mode.
    config = make_config({"name": "fedavg"}, rounds=1, batch_size=64, lr=0.0)
    reported = run(config, tmp_path / "run").history[0]["train.loss"]
    plain = bare(config)
    load(plain.net, plain.first)
    plain.net.train()
    losses = [
        F.cross_entropy(plain.net(x), y).item() * len(y)
        for x, y in (plain.rows(site, "train") for site in SIZES)
    ]
    assert reported == pytest.approx(sum(losses) / sum(SIZES.values()), rel=1e-6)


@pytest.mark.parametrize(
    "method",
    [
        {"name": "fedavg"},
        {"name": "fedprox", "mu": 0.0},
        {"name": "fca", "lambda_own": 0.0, "consistency": False},
    ],
    ids=lambda method: method["name"],
)
def test_one_site_alone_is_local_training(
    make_config: Callable[..., Any], bare: Callable[..., Any], tmp_path: Path, method: dict[str, Any]
) -> None:
    config = make_config(method, ["west"], rounds=2, optimizer="sgd", objective="cross_entropy")
    model = run(config, tmp_path / "run").server["model"]
    plain = bare(config)
    trained = train_plainly(plain, "west", plain.first, rounds=range(2), sgd=True)
    for name, tensor in model.items():
        torch.testing.assert_close(tensor, trained[name], rtol=0, atol=1e-6)
