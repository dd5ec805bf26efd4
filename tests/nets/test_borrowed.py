"""MONAI bodies: shapes, counts, and weights under the names their publishers use (importing MONAI takes
seconds)."""

from __future__ import annotations

import hashlib
import random
from collections import OrderedDict
from pathlib import Path

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from safetensors.torch import save_file
from torch import Tensor

from equipoise.errors import WeightsError
from equipoise.nets import NETS, Net, NetOptions, build, load, state
from equipoise.nets.borrowed import rename_b0, rename_b0_torchvision, rename_densenet
from equipoise.nets.norm import batch_norms
from equipoise.seeds import generator

pytestmark = pytest.mark.slow

# Parameters of the published classifiers for 1000 classes, less the classifier.
COUNTS = {
    "resnet18": 11_689_512 - 513 * 1000,
    "resnet50": 25_557_032 - 2049 * 1000,
    "densenet121": 7_978_856 - 1025 * 1000,
    "efficientnet-b0": 5_288_548 - 1281 * 1000,
    "efficientnet-b0-torchvision": 5_288_548 - 1281 * 1000,
}


def make(
    name: str, seed: int = 1, base: Path = Path(), channels: int = 3, image_size: int = 64, **options
) -> Net:
    return build(
        NetOptions(name=name, **options),
        classes=3,
        seed=seed,
        base=base,
        channels=channels,
        image_size=image_size,
    )


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
                shapes |= {
                    f"{at}.downsample.0.weight": (outputs, inputs, 1, 1),
                    **norm(f"{at}.downsample.1", outputs),
                }
            inputs = outputs
    return shapes


def densenet_shapes(dot: str) -> dict[str, tuple[int, ...]]:
    """The same for DenseNet-121; old files write `norm.1` where newer ones write `norm1`."""
    shapes = {
        "features.conv0.weight": (64, 3, 7, 7),
        **norm("features.norm0", 64),
        "classifier.weight": (1000, 7),
    }
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


B0_STAGES = [
    (1, 3, 1, 1, 16),
    (2, 3, 2, 6, 24),
    (2, 5, 2, 6, 40),
    (3, 3, 2, 6, 80),
    (3, 5, 1, 6, 112),
    (4, 5, 2, 6, 192),
    (1, 3, 1, 6, 320),
]
"""EfficientNet-B0: repeats, kernel, stride of the first block, expansion, outputs"""


def b0_shapes() -> dict[str, tuple[int, ...]]:
    """The same for EfficientNet-B0."""
    shapes = {"_conv_stem.weight": (32, 3, 3, 3), **norm("_bn0", 32)}
    shapes |= {"_conv_head.weight": (1280, 320, 1, 1), **norm("_bn1", 1280), "_fc.weight": (1000, 7)}
    inputs, block = 32, 0
    for repeats, kernel, _, expansion, outputs in B0_STAGES:
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


def torchvision_b0_shapes() -> dict[str, tuple[int, ...]]:
    """The same under the names of torchvision's module tree: a list of stages, of blocks, of layers, of
    parts."""
    shapes = {"features.0.0.weight": (32, 3, 3, 3), **norm("features.0.1", 32)}
    shapes |= {"features.8.0.weight": (1280, 320, 1, 1), **norm("features.8.1", 1280)}
    shapes |= {"classifier.1.weight": (1000, 1280), "classifier.1.bias": (1000,)}
    inputs = 32
    for stage, (repeats, kernel, _, expansion, outputs) in enumerate(B0_STAGES, start=1):
        for block in range(repeats):
            at, wide, narrow, layer = f"features.{stage}.{block}.block", inputs * expansion, inputs // 4, 0
            if expansion > 1:
                shapes |= {f"{at}.0.0.weight": (wide, inputs, 1, 1), **norm(f"{at}.0.1", wide)}
                layer = 1
            shapes |= {f"{at}.{layer}.0.weight": (wide, 1, kernel, kernel), **norm(f"{at}.{layer}.1", wide)}
            shapes |= {
                f"{at}.{layer + 1}.fc1.weight": (narrow, wide, 1, 1),
                f"{at}.{layer + 1}.fc1.bias": (narrow,),
            }
            shapes |= {
                f"{at}.{layer + 1}.fc2.weight": (wide, narrow, 1, 1),
                f"{at}.{layer + 1}.fc2.bias": (wide,),
            }
            shapes |= {
                f"{at}.{layer + 2}.0.weight": (outputs, wide, 1, 1),
                **norm(f"{at}.{layer + 2}.1", outputs),
            }
            inputs = outputs
    return shapes


def drawn(shapes: dict[str, tuple[int, ...]]) -> dict[str, Tensor]:
    """Weights that keep values in range through 81 layers: kernels scaled by their inputs, variances around
    1."""
    draw = generator(0, "weights")
    content = {}
    for name, shape in shapes.items():
        fan = max(1, int(np.prod(shape[1:])))
        spread = (
            0.5 + torch.rand(shape, generator=draw)
            if len(shape) == 1
            else torch.randn(shape, generator=draw) * (2 / fan) ** 0.5
        )
        content[name] = spread
    return content


def torchvision_b0(w: dict[str, Tensor], x: Tensor) -> Tensor:
    """Pooled features of torchvision's EfficientNet-B0 in eval mode, layer by layer."""

    def unit(x: Tensor, at: str, stride: int = 1, groups: int = 1) -> Tensor:
        kernel = w[f"{at}.0.weight"]
        x = F.conv2d(x, kernel, stride=stride, padding=(kernel.shape[-1] - 1) // 2, groups=groups)
        mean, variance, scale, shift = (
            w[f"{at}.1.{part}"] for part in ("running_mean", "running_var", "weight", "bias")
        )
        return F.batch_norm(x, mean, variance, scale, shift, training=False, eps=1e-5)

    x = F.silu(unit(x, "features.0", stride=2))
    for stage, (repeats, _, stride, expansion, _) in enumerate(B0_STAGES, start=1):
        for block in range(repeats):
            at, before, layer = f"features.{stage}.{block}.block", x, 0
            if expansion > 1:
                x, layer = F.silu(unit(x, f"{at}.0")), 1
            x = F.silu(unit(x, f"{at}.{layer}", stride if block == 0 else 1, groups=x.shape[1]))
            gate = x.mean((2, 3), keepdim=True)
            gate = F.silu(F.conv2d(gate, w[f"{at}.{layer + 1}.fc1.weight"], w[f"{at}.{layer + 1}.fc1.bias"]))
            gate = F.conv2d(
                gate, w[f"{at}.{layer + 1}.fc2.weight"], w[f"{at}.{layer + 1}.fc2.bias"]
            ).sigmoid()
            x = unit(x * gate, f"{at}.{layer + 2}")
            if before.shape == x.shape and (stride == 1 or block > 0):
                x = x + before
    return F.silu(unit(x, "features.8")).mean((2, 3))


def test_torchvisions_names_are_one_for_one_and_complete():
    shapes = torchvision_b0_shapes()
    learned = [shape for name, shape in shapes.items() if "running" not in name]
    assert (
        sum(int(np.prod(shape)) for shape in learned) == 5_288_548
    )  # what torchvision says of the whole net
    renamed = {
        rename_b0_torchvision(name): shape
        for name, shape in shapes.items()
        if not name.startswith("classifier")
    }
    assert len(renamed) == len(shapes) - 2
    assert renamed == {
        name: tuple(tensor.shape) for name, tensor in state(make("efficientnet-b0-torchvision").body).items()
    }


@pytest.mark.parametrize("size", [64, 75])
def test_torchvisions_weights_give_torchvisions_features(tmp_path, size):
    content = drawn(torchvision_b0_shapes())
    path = tmp_path / "efficientnet_b0.pth"
    torch.save(content | {"features.0.1.num_batches_tracked": torch.tensor(3)}, path)
    digest = hashlib.sha256(path.read_bytes()).hexdigest()
    net = (
        make("efficientnet-b0-torchvision", base=tmp_path, weights=path.name, sha256=digest, image_size=size)
        .double()
        .eval()
    )
    x = torch.randn(2, 3, size, size, generator=generator(0, "images")).double()
    with torch.no_grad():
        expected = torchvision_b0({name: tensor.double() for name, tensor in content.items()}, x)
        torch.testing.assert_close(net.body(x), expected, rtol=1e-9, atol=1e-9)
        other = make("efficientnet-b0", image_size=size).double().eval()
        load(other.body, {name: tensor.double() for name, tensor in state(net.body).items()})
        assert (other.body(x) - expected).abs().max() > 1e-3  # other padding and another eps


@pytest.mark.parametrize(
    ("name", "momentum", "eps"), [("efficientnet-b0", 0.01, 1e-3), ("efficientnet-b0-torchvision", 0.1, 1e-5)]
)
def test_batch_norm_of_b0(name, momentum, eps):
    net = make(name, image_size=32).train()
    assert {(layer.momentum, layer.eps) for layer in batch_norms(net)} == {(momentum, eps)}
    assert f"momentum {momentum:g} and eps {eps:.5f}".rstrip("0") in NETS[name].description
    x = torch.randn(4, 3, 32, 32)
    seen = net.body._conv_stem(net.body._conv_stem_padding(x)).mean((0, 2, 3))
    net.body(x)
    torch.testing.assert_close(net.body._bn0.running_mean, momentum * seen)


def test_blocks_are_skipped_as_often_as_in_torchvision():
    blocks = [block for stage in make("efficientnet-b0-torchvision").body._blocks for block in stage]
    assert [block.drop_connect_rate for block in blocks] == pytest.approx([0.2 * i / 16 for i in range(16)])


def test_torchvisions_file_for_the_other_b0_names_the_right_one(tmp_path):
    path = tmp_path / "w.safetensors"
    for name, other, shapes in (
        ("efficientnet-b0", "efficientnet-b0-torchvision", torchvision_b0_shapes()),
        ("efficientnet-b0-torchvision", "efficientnet-b0", b0_shapes()),
    ):
        save_file({key: torch.zeros(shape) for key, shape in shapes.items()}, path)
        digest = hashlib.sha256(path.read_bytes()).hexdigest()
        with pytest.raises(WeightsError, match=f"do not fit net '{name}': .*choose net.name = '{other}'$"):
            make(name, base=tmp_path, weights=path.name, sha256=digest)


@pytest.mark.parametrize(
    ("name", "shapes", "zipped"),
    [
        ("resnet50", resnet_shapes([3, 4, 6, 3], True), False),
        ("resnet50", resnet_shapes([3, 4, 6, 3], True), True),
        ("resnet18", resnet_shapes([2, 2, 2, 2], False), True),
    ],
)
def test_a_checkpoint_of_moco_loads(tmp_path, name, shapes, zipped):
    """Whichever net it is of: that the names of each are found is tried below."""
    body = {key: shape for key, shape in shapes.items() if not key.startswith("fc.")}
    width = NETS[name].width
    head = {
        "fc.0.weight": (width, width),
        "fc.0.bias": (width,),
        "fc.2.weight": (128, width),
        "fc.2.bias": (128,),
    }
    draw = generator(0, "moco")
    drawn_ones = {key: torch.rand(shape, generator=draw) for key, shape in (body | head).items()}
    content = {f"module.encoder_q.{key}": tensor for key, tensor in drawn_ones.items()}
    content |= {f"module.encoder_q.{key}": torch.tensor(7) for key in ("bn1.num_batches_tracked",)}
    path = tmp_path / "moco_v2_800ep_pretrain.pth.tar"
    checkpoint = {"epoch": 800, "arch": name, "state_dict": OrderedDict(content)}
    torch.save(checkpoint, path, _use_new_zipfile_serialization=zipped)
    net = make(name, base=tmp_path, weights=path.name, sha256=hashlib.sha256(path.read_bytes()).hexdigest())
    for key in body:
        assert torch.equal(state(net.body)[key], content[f"module.encoder_q.{key}"])


@pytest.mark.parametrize(
    ("name", "shapes", "published", "ours"),
    [
        (
            "resnet18",
            resnet_shapes([2, 2, 2, 2], False),
            "layer2.0.downsample.1.bias",
            "layer2.0.downsample.1.bias",
        ),
        (
            "resnet50",
            resnet_shapes([3, 4, 6, 3], True),
            "layer1.0.downsample.0.weight",
            "layer1.0.downsample.0.weight",
        ),
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
        (
            "efficientnet-b0-torchvision",
            torchvision_b0_shapes(),
            "features.6.0.block.2.fc2.bias",
            "_blocks.5.11._se_expand.bias",
        ),
    ],
)
def test_published_names_find_their_place(tmp_path, name, shapes, published, ours):
    draw = generator(0, name)
    stem = NETS[name].stem
    (first,) = (key for key, shape in shapes.items() if NETS[name].rename(key) == stem)
    content: dict[str, Tensor] = {key: torch.zeros(shape) for key, shape in shapes.items()}
    content |= {key: torch.rand(shapes[key], generator=draw) for key in (published, first)}
    path = tmp_path / "w.safetensors"
    save_file(content, path)
    digest = hashlib.sha256(path.read_bytes()).hexdigest()
    # A grey net, so that the stem is seen to be found and summed too.
    net = make(name, base=tmp_path, weights="w.safetensors", sha256=digest, channels=1)
    assert torch.equal(state(net.body)[ours], content[published])
    torch.testing.assert_close(state(net.body)[stem][:, 0], content[first].sum(dim=1))


def test_our_own_names_pass_through():
    for name in state(make("efficientnet-b0").body):
        assert rename_b0(name) == name
        assert rename_b0_torchvision(name) == name
    for name in state(make("densenet121").body):
        assert rename_densenet(name) == name


@pytest.mark.parametrize("name", ["resnet18", "efficientnet-b0", "efficientnet-b0-torchvision"])
def test_group_norm_and_frozen_reach_every_layer(name):
    group = make(name, batch_norm="group", image_size=32)
    assert not any("running" in key for key in state(group))
    assert group.train()(torch.zeros(1, 3, 32, 32)).shape == (1, 3)
    frozen = make(name, batch_norm="frozen", image_size=32).train()
    before = {key: tensor.clone() for key, tensor in state(frozen).items()}
    frozen(torch.ones(2, 3, 32, 32))
    assert all(torch.equal(tensor, before[key]) for key, tensor in state(frozen).items())
