"""FedRep: who trains when, what leaves, and how it is tested, recomputed from the sites' own folders."""

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

from equipoise.methods.fedrep import FedRep
from equipoise.nets import load, state
from equipoise.running import run
from equipoise.seeds import generator
from equipoise.testing import Bench, same_bits

NAME = "fedrep"
SIZES = {"north": 9, "south": 6, "west": 14}


def test_one_round_is_head_then_body(
    make_config: Callable[..., Any], visit: Callable[..., Any], bare: Callable[..., Any]
) -> None:
    """Against torch.optim: two epochs of the head on a body in eval mode, then one of the body under that
    head."""
    config = make_config({"name": NAME, "head_epochs": 2}, epochs=1, optimizer="sgd", momentum=0.9, lr=0.05)
    net, loc = visit(config, "south")
    up = config.method.train(net, loc)
    plain = bare(config)
    x, y = plain.rows("south", "train")
    body = [p for name, p in plain.net.named_parameters() if name.startswith("body.")]
    for part, epochs in ((list(plain.net.head.parameters()), (0, 1)), (body, (2,))):
        optimizer = torch.optim.SGD(part, lr=0.05, momentum=0.9)
        plain.net.train(part is body)
        for epoch in epochs:
            order = torch.randperm(6, generator=generator(3, 0, "south", "train", "shuffle", epoch))
            for some in order.split(4):
                plain.net.zero_grad()
                F.cross_entropy(plain.net(x[some]), y[some]).backward()
                optimizer.step()
    for name, tensor in state(plain.net).items():
        torch.testing.assert_close(state(net)[name], tensor, rtol=1e-4, atol=1e-5)
    delta = up["delta"].value
    assert set(delta) == {name for name in plain.first if name.startswith("body.")}
    for name, tensor in delta.items():
        torch.testing.assert_close(tensor, state(net)[name] - plain.first[name])


def test_head_epochs_default_to_those_of_the_body(
    make_config: Callable[..., Any], visit: Callable[..., Any]
) -> None:
    found = []
    for options in ({}, {"head_epochs": 2}, {"head_epochs": 0}):
        config = make_config({"name": NAME, **options}, epochs=2)
        net, loc = visit(config, "south")
        config.method.train(net, loc)
        found.append(state(net)["head.fed.weight"].clone())
        first = loc.down["model"]["body.norm1.running_mean"]
        assert not torch.equal(state(net)["body.norm1.running_mean"], first)
    assert same_bits(found[0], found[1]) and not same_bits(found[0], found[2])
    net, _ = visit(make_config({"name": NAME}, epochs=2), "south")
    assert same_bits(found[2], state(net)["head.fed.weight"])


@pytest.mark.parametrize(("option", "kind"), [("each", "each"), ("mean", "mean")])
def test_no_head_leaves_in_training(option: str, kind: str) -> None:
    bench = Bench(NAME, {"global_head": option, "final_epochs": 1})
    with bench.own_cache():
        ledger = bench.ordinary.ledger()
    for question in ("train", "tune"):
        line = ledger.line(question, 2)
        assert line is not None and not [entry.name for entry in line.up if "head" in entry.name]
    assert {entry.kind for line in ledger.lines if line.question == "reveal" for entry in line.up} == {kind}
    for answer in bench.ordinary.answers:
        if answer.question.name == "reveal":
            assert answer.question.write is None  # evaluation, which changes nothing


@pytest.mark.parametrize("option", ["each", "mean"])
def test_metrics_by_hand(
    option: str, make_config: Callable[..., Any], bare: Callable[..., Any], tmp_path: Path
) -> None:
    config = make_config({"name": NAME, "global_head": option}, rounds=2, lr=0.03)
    result, plain = run(config, tmp_path / "run"), bare(config)
    assert not [name for name in result.server["model"] if name.startswith("head")]
    heads = {}
    for site in SIZES:
        kept = load_file(tmp_path / "run" / "sites" / site / "1.0.safetensors")
        heads[site] = {
            name.removeprefix("net/"): x for name, x in kept.items() if name.startswith("net/head.")
        }
    truth = {site: plain.rows(site, "test")[1] for site in SIZES}

    def said(head: dict[str, torch.Tensor], site: str) -> torch.Tensor:
        load(plain.net, result.server["model"] | head)
        with torch.no_grad():
            return plain.net(plain.rows(site, "test")[0]).argmax(1)

    mean = {name: sum(n / 29 * heads[site][name] for site, n in SIZES.items()) for name in heads["north"]}
    everywhere = np.concatenate([truth[site] for site in SIZES])
    scores = [
        balanced_accuracy_score(everywhere, np.concatenate([said(head, site) for site in SIZES]))
        for head in (heads.values() if option == "each" else [mean])
    ]
    own = [balanced_accuracy_score(truth[site], said(heads[site], site)) for site in SIZES]
    test = result.metrics["test"]
    assert test["generalisation"]["balanced_accuracy"] == pytest.approx(np.mean(scores), abs=1e-12)
    assert test["specialisation"]["balanced_accuracy"] == pytest.approx(np.mean(own), abs=1e-12)


def test_last_epochs_move_heads_alone_at_the_last_rate(
    make_config: Callable[..., Any], tmp_path: Path
) -> None:
    found = {}
    for final in (0, 3):
        config = make_config({"name": NAME, "final_epochs": final}, schedule="cosine", rounds=2)
        found[final] = run(config, tmp_path / str(final))
    assert found[0].state_hash == found[3].state_hash
    assert [row["round"] for row in found[0].history] == [1, 2] and [
        row["round"] for row in found[3].history
    ] == [1, 2, 3]
    before, after = (
        load_file(tmp_path / str(final) / "sites" / "west" / f"{version}.safetensors")
        for final, version in ((0, "1.0"), (3, "2.0"))
    )
    assert not torch.allclose(before["net/head.fed.weight"], after["net/head.fed.weight"])


def test_differs_from_fedavg(make_config: Callable[..., Any], tmp_path: Path) -> None:
    servers = [
        run(make_config({"name": name}, rounds=1), tmp_path / str(i)).server
        for i, name in enumerate((NAME, "fedavg"))
    ]
    assert not same_bits(servers[0]["model"]["body.conv1.weight"], servers[1]["model"]["body.conv1.weight"])
    assert FedRep.neutral is None
