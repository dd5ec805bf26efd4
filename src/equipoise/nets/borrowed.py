"""Bodies from MONAI, laid out as their ImageNet weights expect.

MONAI is imported inside the functions: it takes seconds, and most runs do not need it.
"""

from __future__ import annotations

import re
from itertools import accumulate

from torch import nn

# Table 1 of Tan and Le 2019 as MONAI reads it: repeats, kernel, stride, expansion, inputs, outputs, squeeze
# ratio.
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
# torchvision numbers the layers of a stage and of a block, where MONAI names them.
B0_EDGES = {"0": ("_conv_stem", "_bn0"), "8": ("_conv_head", "_bn1")}
B0_LAYERS = {
    (0, "0"): "_expand_conv",
    (0, "1"): "_bn0",
    (1, "0"): "_depthwise_conv",
    (1, "1"): "_bn1",
    (2, "fc1"): "_se_reduce",
    (2, "fc2"): "_se_expand",
    (3, "0"): "_project_conv",
    (3, "1"): "_bn2",
}


def resnet18(channels: int, size: int) -> nn.Module:
    """ResNet-18 (He et al. 2016)."""
    return _resnet("basic", [2, 2, 2, 2], channels)


def resnet50(channels: int, size: int) -> nn.Module:
    """ResNet-50 (He et al. 2016), with the stride in the 3x3 convolution as in the usual weights."""
    return _resnet("bottleneck", [3, 4, 6, 3], channels)


def _resnet(block: str, layers: list[int], channels: int) -> nn.Module:
    from monai.networks.nets.resnet import ResNet

    body: nn.Module = ResNet(
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
    return body


def densenet121(channels: int, size: int) -> nn.Module:
    """DenseNet-121 (Huang et al. 2017)."""
    from monai.networks.nets.densenet import DenseNet121

    body: nn.Module = DenseNet121(spatial_dims=2, in_channels=channels, out_channels=1)
    body.class_layers.out = nn.Identity()  # type: ignore[union-attr]
    return body


def efficientnet_b0(channels: int, size: int) -> nn.Module:
    """EfficientNet-B0 as its authors have it (Tan and Le 2019), and efficientnet_pytorch after them.

    Its "same" padding, which at stride 2 adds a row only below and a column only to the right, is fixed here
    for images of this size.
    """
    return _b0(channels, size, momentum=0.01, eps=1e-3)


def efficientnet_b0_torchvision(channels: int, size: int) -> nn.Module:
    """EfficientNet-B0 as torchvision has it: other constants in BatchNorm, and the same padding on all four
    sides."""
    body = _b0(channels, size, momentum=0.1, eps=1e-5)
    for module in list(body.modules()):
        for name, conv in list(module.named_children()):
            if isinstance(conv, nn.Conv2d):
                setattr(module, f"{name}_padding", nn.Identity())
                conv.padding = (conv.kernel_size[0] // 2, conv.kernel_size[1] // 2)
    return body


def _b0(channels: int, size: int, momentum: float, eps: float) -> nn.Module:
    from monai.networks.nets.efficientnet import EfficientNet

    norm = ("batch", {"momentum": momentum, "eps": eps})
    body: nn.Module = EfficientNet(list(B0), in_channels=channels, num_classes=1, image_size=size, norm=norm)
    body._dropout = nn.Identity()
    body._fc = nn.Identity()
    return body


def rename_densenet(name: str) -> str:
    """Published name (`…denselayer2.norm1.bias`, or `…norm.1.bias` in old files) → MONAI's
    (`…layers.norm1.bias`)."""
    return re.sub(r"(denselayer\d+)\.(norm|conv)\.?([12])\.", r"\1.layers.\2\3.", name)


def rename_b0(name: str) -> str:
    """Published name (`_blocks.4._bn0.bias`) → MONAI's, which has the stage in front
    (`_blocks.2.4._bn0.bias`)."""
    match = re.match(r"_blocks\.(\d+)\.(?!\d)", name)
    if match is None:
        return name
    block = int(match[1])
    stage = sum(block >= end for end in B0_ENDS)
    return f"_blocks.{stage}.{block}.{name[match.end() :]}"


def rename_b0_torchvision(name: str) -> str:
    """torchvision's name (`features.3.0.block.1.1.bias`) → MONAI's (`_blocks.2.3._bn1.bias`); others stay."""
    match = re.fullmatch(r"features\.([08])\.([01])\.(\w+)", name)
    if match is not None:
        return f"{B0_EDGES[match[1]][int(match[2])]}.{match[3]}"
    match = re.fullmatch(r"features\.([1-7])\.(\d)\.block\.([0-3])\.(\w+)\.(\w+)", name)
    if match is None:
        return name
    stage, layer = int(match[1]) - 1, int(match[3])
    block = (B0_ENDS[stage - 1] if stage else 0) + int(match[2])
    if stage == 0:
        layer += 1  # the first stage does not expand
    part = B0_LAYERS.get((layer, match[4]))
    return name if part is None else f"_blocks.{stage}.{block}.{part}.{match[5]}"
