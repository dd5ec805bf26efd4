"""Bodies from MONAI, laid out as their ImageNet weights expect.

MONAI is imported inside the functions: it takes seconds, and most runs do not need it.
"""

from __future__ import annotations

import re
from itertools import accumulate

from torch import nn

# Table 1 of Tan and Le 2019 as MONAI reads it: repeats, kernel, stride, expansion, inputs, outputs, squeeze ratio.
B0 = (
    "r1_k3_s11_e1_i32_o16_se0.25",
    "r2_k3_s22_e6_i16_o24_se0.25",
    "r2_k5_s22_e6_i24_o40_se0.25",
    "r3_k3_s22_e6_i40_o80_se0.25",
    "r3_k5_s11_e6_i80_o112_se0.25",
    "r4_k5_s22_e6_i112_o192_se0.25",
    "r1_k3_s11_e6_i192_o320_se0.25",
)
B0_WIDTH = 1280
# Number of the last block of each stage, plus one.
B0_ENDS = tuple(accumulate(int(stage[1]) for stage in B0))


def resnet18(channels: int, size: int) -> nn.Module:
    """ResNet-18 (He et al. 2016)."""
    return _resnet("basic", [2, 2, 2, 2], channels)


def resnet50(channels: int, size: int) -> nn.Module:
    """ResNet-50 (He et al. 2016), with the stride in the 3x3 convolution as in the usual weights."""
    return _resnet("bottleneck", [3, 4, 6, 3], channels)


def _resnet(block: str, layers: list[int], channels: int) -> nn.Module:
    from monai.networks.nets.resnet import ResNet

    return ResNet(
        block,
        layers,
        [64, 128, 256, 512],
        spatial_dims=2,
        n_input_channels=channels,
        conv1_t_size=7,
        conv1_t_stride=2,
        feed_forward=False,
        bias_downsample=False,
    )


def densenet121(channels: int, size: int) -> nn.Module:
    """DenseNet-121 (Huang et al. 2017)."""
    from monai.networks.nets.densenet import DenseNet121

    body = DenseNet121(spatial_dims=2, in_channels=channels, out_channels=1)
    body.class_layers.out = nn.Identity()
    return body


def efficientnet_b0(channels: int, size: int) -> nn.Module:
    """EfficientNet-B0 (Tan and Le 2019). Its "same" padding is fixed here for images of this size."""
    from monai.networks.nets.efficientnet import EfficientNet

    body: nn.Module = EfficientNet(list(B0), in_channels=channels, num_classes=1, image_size=size)
    body._dropout = nn.Identity()
    body._fc = nn.Identity()
    return body


def rename_densenet(name: str) -> str:
    """Published name (`…denselayer2.norm1.bias`, or `…norm.1.bias` in old files) → MONAI's (`…layers.norm1.bias`)."""
    return re.sub(r"(denselayer\d+)\.(norm|conv)\.?([12])\.", r"\1.layers.\2\3.", name)


def rename_b0(name: str) -> str:
    """Published name (`_blocks.4._bn0.bias`) → MONAI's, which has the stage in front (`_blocks.2.4._bn0.bias`)."""
    match = re.match(r"_blocks\.(\d+)\.(?!\d)", name)
    if match is None:
        return name
    block = int(match[1])
    stage = sum(block >= end for end in B0_ENDS)
    return f"_blocks.{stage}.{block}.{name[match.end() :]}"
