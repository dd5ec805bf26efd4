"""MONAI bodies: shapes, counts, and weights under the names their publishers use (importing MONAI takes seconds)."""

from __future__ import annotations

import hashlib
import random
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import save_file
from torch import Tensor

from equipoise.nets import NETS, Net, NetOptions, build, state
from equipoise.nets.borrowed import rename_b0, rename_densenet
from equipoise.seeds import generator

pytestmark = pytest.mark.slow

# Parameters of the published classifiers for 1000 classes, less the classifier.
COUNTS = {
    "resnet18": 11_689_512 - 513 * 1000,
    "resnet50": 25_557_032 - 2049 * 1000,
    "densenet121": 7_978_856 - 1025 * 1000,
    "efficientnet-b0": 5_288_548 - 1281 * 1000,
}


def make(name: str, seed: int = 1, base: Path = Path(), channels: int = 3, image_size: int = 64, **options) -> Net:
    return build(NetOptions(name=name, **options), classes=3, seed=seed, base=base, channels=channels, image_size=image_size)


@pytest.fixture(autouse=True, scope="module")
def monai():
    """Import once, so that the tests below measure building only."""
    make("resnet18")


@pytest.mark.parametrize("name", COUNTS)
def test_gives_one_vector_per_image(name):
    net = make(name).eval()
    for size in (32, 64):
        z = net.body(torch.zeros(2, 3, size, size))
        assert z.shape == (2, NETS[name].width) == (2, net.width)
        assert net.head["fed"](z).shape == (2, 3)
    assert sum(p.numel() for p in net.body.parameters()) == COUNTS[name]


@pytest.mark.parametrize("name", COUNTS)
def test_grey_images(name):
    assert make(name, channels=1, image_size=32)(torch.zeros(2, 1, 32, 32)).shape == (2, 3)


@pytest.mark.parametrize("name", ["resnet18", "efficientnet-b0"])
def test_seed_decides_and_global_generators_are_untouched(name):
    before = torch.get_rng_state(), np.random.get_state()[1].copy(), random.getstate()
    first, again, other = make(name, seed=1), make(name, seed=1), make(name, seed=2)
    stem = NETS[name].stem
    assert all(torch.equal(tensor, state(again)[key]) for key, tensor in state(first).items())
    assert not torch.equal(state(first.body)[stem], state(other.body)[stem])
    assert torch.equal(torch.get_rng_state(), before[0])
    assert np.array_equal(np.random.get_state()[1], before[1])
    assert random.getstate() == before[2]


def norm(name: str, channels: int) -> dict[str, tuple[int, ...]]:
    return {f"{name}.{part}": (channels,) for part in ("weight", "bias", "running_mean", "running_var")}


def resnet_shapes(repeats: list[int], bottleneck: bool) -> dict[str, tuple[int, ...]]:
    """Names and shapes in the usual ImageNet files, written from the paper's table."""
    shapes = {"conv1.weight": (64, 3, 7, 7), **norm("bn1", 64), "fc.weight": (1000, 7), "fc.bias": (1000,)}
    inputs = 64
    for stage, repeat in enumerate(repeats):
        planes = 64 * 2**stage
        outputs = planes * 4 if bottleneck else planes
        for block in range(repeat):
            at = f"layer{stage + 1}.{block}"
            if bottleneck:
                kernels = [(planes, inputs, 1, 1), (planes, planes, 3, 3), (outputs, planes, 1, 1)]
            else:
                kernels = [(planes, inputs, 3, 3), (planes, planes, 3, 3)]
            for number, kernel in enumerate(kernels, start=1):
                shapes |= {f"{at}.conv{number}.weight": kernel, **norm(f"{at}.bn{number}", kernel[0])}
            if inputs != outputs:
                shapes |= {f"{at}.downsample.0.weight": (outputs, inputs, 1, 1), **norm(f"{at}.downsample.1", outputs)}
            inputs = outputs
    return shapes


def densenet_shapes(dot: str) -> dict[str, tuple[int, ...]]:
    """The same for DenseNet-121; old files write `norm.1` where newer ones write `norm1`."""
    shapes = {"features.conv0.weight": (64, 3, 7, 7), **norm("features.norm0", 64), "classifier.weight": (1000, 7)}
    channels = 64
    for block, repeat in enumerate([6, 12, 24, 16], start=1):
        for layer in range(1, repeat + 1):
            at = f"features.denseblock{block}.denselayer{layer}"
            shapes |= {**norm(f"{at}.norm{dot}1", channels), f"{at}.conv{dot}1.weight": (128, channels, 1, 1)}
            shapes |= {**norm(f"{at}.norm{dot}2", 128), f"{at}.conv{dot}2.weight": (32, 128, 3, 3)}
            channels += 32
        if block < 4:
            at = f"features.transition{block}"
            shapes |= {**norm(f"{at}.norm", channels), f"{at}.conv.weight": (channels // 2, channels, 1, 1)}
            channels //= 2
    return shapes | norm("features.norm5", channels)


def b0_shapes() -> dict[str, tuple[int, ...]]:
    """The same for EfficientNet-B0: (repeats, kernel, expansion, outputs) per stage."""
    shapes = {"_conv_stem.weight": (32, 3, 3, 3), **norm("_bn0", 32)}
    shapes |= {"_conv_head.weight": (1280, 320, 1, 1), **norm("_bn1", 1280), "_fc.weight": (1000, 7)}
    stages = [
        (1, 3, 1, 16),
        (2, 3, 6, 24),
        (2, 5, 6, 40),
        (3, 3, 6, 80),
        (3, 5, 6, 112),
        (4, 5, 6, 192),
        (1, 3, 6, 320),
    ]
    inputs, block = 32, 0
    for repeats, kernel, expansion, outputs in stages:
        for _ in range(repeats):
            at, wide, narrow = f"_blocks.{block}", inputs * expansion, inputs // 4
            if expansion > 1:
                shapes |= {f"{at}._expand_conv.weight": (wide, inputs, 1, 1), **norm(f"{at}._bn0", wide)}
            shapes |= {f"{at}._depthwise_conv.weight": (wide, 1, kernel, kernel), **norm(f"{at}._bn1", wide)}
            shapes |= {f"{at}._se_reduce.weight": (narrow, wide, 1, 1), f"{at}._se_reduce.bias": (narrow,)}
            shapes |= {f"{at}._se_expand.weight": (wide, narrow, 1, 1), f"{at}._se_expand.bias": (wide,)}
            shapes |= {f"{at}._project_conv.weight": (outputs, wide, 1, 1), **norm(f"{at}._bn2", outputs)}
            inputs, block = outputs, block + 1
    return shapes


@pytest.mark.parametrize(
    ("name", "shapes", "published", "ours"),
    [
        ("resnet18", resnet_shapes([2, 2, 2, 2], False), "layer2.0.downsample.1.bias", "layer2.0.downsample.1.bias"),
        ("resnet50", resnet_shapes([3, 4, 6, 3], True), "layer1.0.downsample.0.weight", "layer1.0.downsample.0.weight"),
        (
            "densenet121",
            densenet_shapes(""),
            "features.denseblock4.denselayer16.conv2.weight",
            "features.denseblock4.denselayer16.layers.conv2.weight",
        ),
        (
            "densenet121",
            densenet_shapes("."),
            "features.denseblock1.denselayer2.norm.1.running_var",
            "features.denseblock1.denselayer2.layers.norm1.running_var",
        ),
        ("efficientnet-b0", b0_shapes(), "_blocks.11._se_expand.bias", "_blocks.5.11._se_expand.bias"),
    ],
)
def test_published_names_find_their_place(tmp_path, name, shapes, published, ours):
    draw = generator(0, name)
    content: dict[str, Tensor] = {key: torch.rand(shape, generator=draw) for key, shape in shapes.items()}
    path = tmp_path / "w.safetensors"
    save_file(content, path)
    digest = hashlib.sha256(path.read_bytes()).hexdigest()
    # A grey net, so that the stem is seen to be found and summed too.
    net = make(name, base=tmp_path, weights="w.safetensors", sha256=digest, channels=1)
    assert torch.equal(state(net.body)[ours], content[published])
    stem = NETS[name].stem
    torch.testing.assert_close(state(net.body)[stem][:, 0], content[stem].sum(dim=1))


def test_our_own_names_pass_through():
    for name in state(make("efficientnet-b0").body):
        assert rename_b0(name) == name
    for name in state(make("densenet121").body):
        assert rename_densenet(name) == name


@pytest.mark.parametrize("name", ["resnet18", "efficientnet-b0"])
def test_group_norm_and_frozen_reach_every_layer(name):
    group = make(name, batch_norm="group", image_size=32)
    assert not any("running" in key for key in state(group))
    assert group.train()(torch.zeros(1, 3, 32, 32)).shape == (1, 3)
    frozen = make(name, batch_norm="frozen", image_size=32).train()
    before = {key: tensor.clone() for key, tensor in state(frozen).items()}
    frozen(torch.ones(2, 3, 32, 32))
    assert all(torch.equal(tensor, before[key]) for key, tensor in state(frozen).items())
