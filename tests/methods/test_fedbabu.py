"""FedBABU: a head that never moves, a body that does, and fine-tuning that stays at the site."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from safetensors.torch import load_file
from sklearn.metrics import balanced_accuracy_score

from equipoise.exchange import decode_upload
from equipoise.nets import load, state
from equipoise.running import Result, run
from equipoise.seeds import generator
from equipoise.testing import Tap, same_bits

NAME = "fedbabu"
SIZES = {"north": 9, "south": 6, "west": 14}
HEAD = ("head.fed.weight", "head.fed.bias")


def tapped(config: Any, folder: Path) -> tuple[Result, Tap]:
    taps = list[Tap]()

    def wrap(engine: Any) -> Any:
        taps.append(Tap(engine))
        return taps[0]

    return run(config, folder, wrap=wrap), taps[0]


@pytest.mark.parametrize("uniform", [False, True])
def test_head_never_moves_and_bodies_are_averaged(
    uniform: bool, make_config: Callable[..., Any], bare: Callable[..., Any], tmp_path: Path
) -> None:
    config = make_config({"name": NAME, "uniform": uniform, "tune_epochs": 1}, rounds=1, weight_decay=0.1)
    result, tap = tapped(config, tmp_path / "run")
    first, server = bare(config).first, result.server["model"]
    assert all(same_bits(server[name], first[name]) for name in HEAD)
    sent = {
        a.site: decode_upload(a.data)[1]["delta"].value for a in tap.answers if a.question.name == "train"
    }
    for name, tensor in server.items():
        if name not in HEAD:
            share = {site: 1 / 3 if uniform else n / 29 for site, n in SIZES.items()}
            mean = sum(share[site] * sent[site][name].double() for site in SIZES)
            torch.testing.assert_close(tensor.double(), first[name].double() + mean, rtol=0, atol=1e-6)
    assert not [name for delta in sent.values() for name in delta if name.startswith("head")]
    for answer in tap.answers:
        if answer.question.name == "tune":
            assert set(decode_upload(answer.data)[1]) == {"loss"}


def test_local_training_is_of_the_body(
    make_config: Callable[..., Any], visit: Callable[..., Any], bare: Callable[..., Any]
) -> None:
    config = make_config({"name": NAME}, optimizer="sgd", lr=0.05, weight_decay=0.1)
    net, loc = visit(config, "south")
    config.method.train(net, loc)
    plain = bare(config)
    x, y = plain.rows("south", "train")
    optimizer = torch.optim.SGD(plain.net.body.parameters(), lr=0.05, weight_decay=0.1)
    plain.net.train()
    for some in torch.randperm(6, generator=generator(3, 0, "south", "train", "shuffle", 0)).split(4):
        optimizer.zero_grad()
        F.cross_entropy(plain.net(x[some]), y[some]).backward()
        optimizer.step()
    for name, tensor in state(plain.net).items():
        torch.testing.assert_close(state(net)[name], tensor, rtol=1e-4, atol=1e-6)
    assert same_bits(state(net)["head.fed.weight"], plain.first["head.fed.weight"])


@pytest.mark.parametrize(
    ("part", "moves"), [("all", {"body", "head"}), ("body", {"body"}), ("head", {"head"})]
)
def test_fine_tuned_part(
    part: str, moves: set[str], make_config: Callable[..., Any], visit: Callable[..., Any]
) -> None:
    # At the end of a cosine the rate would be 0; the last round's is taken.
    config = make_config({"name": NAME, "tune_part": part, "tune_epochs": 1}, schedule="cosine", rounds=4)
    net, loc = visit(config, "south", round=4, question="tune")
    assert config.train.rate(4) == 0
    config.method.tune(net, loc)
    moved = {
        name.partition(".")[0]
        for name, x in loc.down["model"].items()
        if not torch.equal(x, state(net)[name])
    }
    assert moved == moves


def test_metrics_by_hand(make_config: Callable[..., Any], bare: Callable[..., Any], tmp_path: Path) -> None:
    config = make_config({"name": NAME, "tune_epochs": 2}, rounds=1, lr=0.03)
    result, plain = run(config, tmp_path / "run"), bare(config)
    assert [row["round"] for row in result.history] == [1, 2]
    truth, said, own = {}, {}, []
    for site in SIZES:
        x, truth[site] = plain.rows(site, "test")
        with torch.no_grad():
            load(plain.net, result.server["model"])
            said[site] = plain.net(x).argmax(1)
            kept = load_file(tmp_path / "run" / "sites" / site / "1.0.safetensors")
            tuned = {
                name.removeprefix("tuned/"): tensor
                for name, tensor in kept.items()
                if name.startswith("tuned/")
            }
            assert not torch.equal(tuned["head.fed.weight"], result.server["model"]["head.fed.weight"])
            load(plain.net, tuned)
            own.append(balanced_accuracy_score(truth[site], plain.net(x).argmax(1)))
    union = balanced_accuracy_score(
        *(np.concatenate([part[site] for site in SIZES]) for part in (truth, said))
    )
    test = result.metrics["test"]
    assert test["generalisation"]["balanced_accuracy"] == pytest.approx(union, abs=1e-12)
    assert test["specialisation"]["balanced_accuracy"] == pytest.approx(np.mean(own), abs=1e-12)


def test_without_fine_tuning_nothing_comes_after_the_rounds(
    make_config: Callable[..., Any], tmp_path: Path
) -> None:
    result, tap = tapped(make_config({"name": NAME, "tune_epochs": 0}, rounds=1), tmp_path / "run")
    assert len(result.history) == 1
    assert {a.question.name for a in tap.answers} == {"train", "evaluate"}
