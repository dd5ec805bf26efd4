"""The architectures that can be asked for by name."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Annotated

from pydantic import AfterValidator
from torch import nn

from equipoise.locate import named
from equipoise.names import unknown
from equipoise.nets import borrowed, mobile, small, stages
from equipoise.nets.stages import Stage


@dataclass(frozen=True)
class Arch:
    """What is known of an architecture before it is built."""

    description: str
    width: int
    """length of the pooled feature vector"""
    make: Callable[[int, int], nn.Module]
    """(image channels, image size) → body"""
    stem: str
    """name of the body's first kernel, the one that sees the image channels"""
    dropout: float = 0.0
    """default dropout before the heads"""
    smallest: int = 8
    """least image side, in pixels, that survives all the pooling"""
    rename: Callable[[str], str] = str
    """name of a tensor in a published weights file → its name in our body"""
    normalise: str = "imagenet"
    """what images were normalised with when its published weights were trained"""
    stages: Callable[[nn.Module], Iterable[Stage]] = lambda body: ()
    """the body's stages in order, where they are known: what `net.freeze` can name"""


NETS: dict[str, Arch] = {
    "small-cnn": Arch(
        "three convolution blocks, 24 thousand parameters: for tests and quick comparisons",
        width=small.WIDTH,
        make=lambda channels, size: small.SmallCNN(channels),
        stem="conv1.weight",
        stages=stages.small,
    ),
    "resnet18": Arch(
        "ResNet-18, 11.2 million parameters, 512 features",
        width=512,
        make=borrowed.resnet18,
        stem="conv1.weight",
        stages=stages.resnet,
    ),
    "resnet50": Arch(
        "ResNet-50, 23.5 million parameters, 2048 features",
        width=2048,
        make=borrowed.resnet50,
        stem="conv1.weight",
        stages=stages.resnet,
    ),
    "densenet121": Arch(
        "DenseNet-121, 7.0 million parameters, 1024 features",
        width=1024,
        make=borrowed.densenet121,
        stem="features.conv0.weight",
        smallest=32,
        rename=borrowed.rename_densenet,
    ),
    "efficientnet-b0": Arch(
        "EfficientNet-B0, 4.0 million parameters, 1280 features; BatchNorm momentum 0.01 and eps 0.001, "
        '"same" padding: '
        "as in TensorFlow and in efficientnet_pytorch, whose weights fit",
        width=borrowed.B0_WIDTH,
        make=borrowed.efficientnet_b0,
        stem="_conv_stem.weight",
        dropout=0.2,
        rename=borrowed.rename_b0,
    ),
    "efficientnet-b0-torchvision": Arch(
        "EfficientNet-B0 with BatchNorm momentum 0.1 and eps 0.00001, padding alike on all sides: as in "
        "torchvision, whose weights fit",
        width=borrowed.B0_WIDTH,
        make=borrowed.efficientnet_b0_torchvision,
        stem="_conv_stem.weight",
        dropout=0.2,
        rename=borrowed.rename_b0_torchvision,
    ),
    "efficientnet-lite0": Arch(
        "EfficientNet-Lite0, 3.4 million parameters, 1280 features, made for processors without accelerator",
        width=mobile.WIDTH,
        make=mobile.efficientnet_lite0,
        stem="stem.conv.weight",
        dropout=0.2,
        rename=mobile.rename_lite0,
        normalise="half",
        stages=stages.mobile,
    ),
    "mobilenet-v2": Arch(
        "MobileNetV2, 2.2 million parameters, 1280 features",
        width=mobile.WIDTH,
        make=mobile.mobilenet_v2,
        stem="stem.conv.weight",
        dropout=0.2,
        rename=mobile.rename_mobilenet_v2,
        stages=stages.mobile,
    ),
}


ONNX = "onnx"
"""the name of a frozen encoder in an ONNX file; see `encoder`"""


def known_net(name: str) -> str:
    """The name of a net there is, or one that leads to a net of the user's own; for validators."""
    if name not in (*NETS, ONNX) and not named(name):
        raise ValueError(unknown("net", name, [*NETS, ONNX]) + ", or FILE.py:Name")
    return name


NetName = Annotated[str, AfterValidator(known_net)]
"""a string that names a net"""
