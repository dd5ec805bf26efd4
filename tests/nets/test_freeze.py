"""Frozen tensors: which they are, that nothing moves them, and that a body cut at a stage stays the same."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import pytest
import torch

from equipoise.errors import ConfigError
from equipoise.nets import NETS, NetOptions, below, build, state
from equipoise.nets.net import Net


def make(name: str = "small-cnn", size: int = 32, **options: Any) -> Net:
    return build(NetOptions(name=name, **options), classes=3, image_size=size, seed=1, base=Path())


def images(size: int = 32) -> torch.Tensor:
    x = torch.randn(4, 3, size, size, generator=torch.Generator().manual_seed(0))
    return x.contiguous(memory_format=torch.channels_last)


NAMES = {
    "small-cnn": ["block1", "block2", "block3"],
    "resnet18": ["stem", "layer1", "layer2", "layer3", "layer4"],
    "efficientnet-lite0": ["stem", *(f"stage{i}" for i in range(1, 8)), "last"],
    "mobilenet-v2": ["stem", *(f"stage{i}" for i in range(1, 8)), "last"],
}


@pytest.mark.parametrize("name", NAMES)
@torch.no_grad()
def test_the_stages_are_the_forward_pass(name: str) -> None:
    body, x = make(name).eval().body, images()
    stages = list(NETS[name].stages(body))
    assert [stage.name for stage in stages] == NAMES[name]
    held = [prefix for stage in stages for prefix in stage.holds]
    assert all(sum(tensor.startswith(prefix) for prefix in held) == 1 for tensor in state(body))
    expected = body(x)
    for stage in stages:
        x = stage.run(body, x)
    assert torch.equal(x, expected)


@pytest.mark.parametrize(("stage", "left"), [("block1", "23"), ("block2", "3"), ("block3", "")])
def test_everything_up_to_a_stage_is_frozen(stage: str, left: str) -> None:
    net = make(freeze=stage)
    trains = {name for name in state(net) if name not in net.still}
    assert {name.split(".")[1] for name in trains if name.startswith("body.")} == {
        f"{kind}{i}" for i in left for kind in ("conv", "norm")
    }
    assert {"head.fed.weight", "head.fed.bias"} <= trains
    assert net.fixed == {name for name, _ in net.named_parameters()} & net.still


def test_a_cut_body_says_the_same_of_images_and_of_what_was_kept() -> None:
    net, whole, x = make(freeze="block2").eval(), make().eval(), images()
    with torch.no_grad():
        half = below(net.body, x)
        assert half.dtype == torch.float16
        expected = net(x)
        net.expect(halfway=True)
        assert torch.equal(net(half.float()), expected)
        other = copy.deepcopy(net)
        other.expect(halfway=False)
        assert torch.equal(other(x), expected)  # a copy has a body of its own, cut in the same place
        assert torch.equal(net(half.float()), expected)
        assert torch.allclose(whole(x), expected, atol=5e-3)
    net.expect(halfway=False)
    net(x).sum().backward()
    moved = {name for name, p in net.named_parameters() if p.grad is not None}
    assert moved == {name for name, _ in net.named_parameters() if name not in net.fixed}


def test_statistics_of_frozen_layers_stay() -> None:
    net = make("efficientnet-lite0", freeze="stage5")
    before = {name: tensor.clone() for name, tensor in state(net).items()}
    net.train()
    blocks: Any = net.body.blocks
    training = [[layer.training for layer in block.modules()] for block in blocks]
    assert not any(any(one) for one in training[:11])  # stochastic depth is off too
    assert all(all(one) for one in training[11:])
    net(images())
    changed = {name for name, tensor in state(net).items() if not torch.equal(tensor, before[name])}
    assert changed and not changed & net.still


def test_globs_freeze_tensors_and_layers_that_have_nothing_else() -> None:
    net = make(freeze=["body.conv1.*", "body.norm1.weight", "body.norm1.bias"])
    assert net.still == {
        "body.conv1.weight",
        *(f"body.norm1.{name}" for name in ("weight", "bias", "running_mean", "running_var")),
    }
    assert make(freeze="body.conv1.weight").still == {"body.conv1.weight"}
    net.train()
    body: Any = net.body
    assert not body.norm1.training and body.norm2.training


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ({"freeze": "blok2"}, "did you mean 'block2'"),
        ({"freeze": "body.conv9.*"}, "net.freeze: unknown tensor"),
        ({"freeze": "*"}, "leaves nothing to train"),
        ({"name": "densenet121", "freeze": "stem"}, "the stages of 'densenet121' have no names"),
    ],
)
def test_what_cannot_be_frozen_is_refused(options: dict[str, Any], sentence: str) -> None:
    with pytest.raises(ConfigError, match=sentence.replace("*", r"\*")):
        make(**options)


def test_views_are_kept_only_below_a_stage() -> None:
    with pytest.raises(ValueError, match="needs `freeze` to name a stage"):
        NetOptions(name="small-cnn", views_kept=4)
    with pytest.raises(ValueError, match="needs `freeze` to name a stage"):
        NetOptions(name="small-cnn", freeze="body.conv1.*", views_kept=4)
