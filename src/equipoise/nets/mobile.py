"""EfficientNet-Lite0 and MobileNetV2: inverted residual blocks without squeeze-and-excitation.

Sandler et al. 2018 (MobileNetV2) and Tan and Le 2019 (EfficientNet, whose Lite variants use ReLU6 and drop
squeeze-and-excitation). The published Lite0 weights were trained with TensorFlow's "same" padding, which puts
the odd pixel at the right and the bottom; those of MobileNetV2 with equal padding on both sides. Each net
follows its weights.
"""

from __future__ import annotations

import re
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from equipoise.nets.norm import normed

WIDTH = 1280
FEW = 16
"""pixels of a map, at most, on which 1x1 convolutions are matrix products"""


class Stage(NamedTuple):
    """One row of the table in the papers: `repeats` blocks, of which the first has the stride."""

    expansion: int
    outputs: int
    repeats: int
    stride: int
    kernel: int = 3


LITE0 = (
    Stage(1, 16, 1, 1),
    Stage(6, 24, 2, 2),
    Stage(6, 40, 2, 2, kernel=5),
    Stage(6, 80, 3, 2),
    Stage(6, 112, 3, 1, kernel=5),
    Stage(6, 192, 4, 2, kernel=5),
    Stage(6, 320, 1, 1),
)
MOBILENET_V2 = (
    Stage(1, 16, 1, 1),
    Stage(6, 24, 2, 2),
    Stage(6, 32, 3, 2),
    Stage(6, 64, 4, 2),
    Stage(6, 96, 3, 1),
    Stage(6, 160, 3, 2),
    Stage(6, 320, 1, 1),
)


class Style(NamedTuple):
    """Where the two nets differ besides their stages."""

    same_padding: bool
    """TensorFlow's padding instead of equal padding on both sides"""
    eps: float
    momentum: float
    drop_connect: float
    """rate of skipped blocks in training, reached linearly at the last block"""


LITE0_STYLE = Style(same_padding=True, eps=1e-3, momentum=0.01, drop_connect=0.2)
MOBILENET_V2_STYLE = Style(same_padding=False, eps=1e-5, momentum=0.1, drop_connect=0.0)


class Depthwise(nn.Conv2d):
    """Convolution of each channel by itself.

    On a map that is smaller than the kernel PyTorch's gradient takes up to 14 times as long as on a larger
    one. So such a map is padded first, and only the part of the kernel that touches it is used: the same
    values.
    """

    def forward(self, x: Tensor) -> Tensor:
        kernel, (height, width) = self.kernel_size[0], x.shape[2:]
        if not self.training or not self.padding[0] or min(height, width) >= kernel:
            return super().forward(x)
        middle = kernel // 2
        down, right = min(middle, height - 1), min(middle, width - 1)
        weight = self.weight[..., middle - down : middle + down + 1, middle - right : middle + right + 1]
        x = F.pad(x, (right, right, down, down))
        return F.conv2d(x, weight, stride=self.stride, groups=self.groups)


class Pointwise(nn.Conv2d):
    """Convolution of each pixel by itself. On a map of few pixels a step with a matrix product takes three
    quarters of the time."""

    def forward(self, x: Tensor) -> Tensor:
        if not self.training or x.shape[2] * x.shape[3] > FEW:
            return super().forward(x)
        return F.linear(x.movedim(1, 3), self.weight.flatten(1)).movedim(3, 1)


class Conv(nn.Module):
    """Convolution, BatchNorm, and ReLU6 where asked."""

    def __init__(
        self,
        inputs: int,
        outputs: int,
        style: Style,
        *,
        kernel: int = 1,
        stride: int = 1,
        groups: int = 1,
        act: bool,
    ):
        super().__init__()
        self.act = act
        # "Same" padding with stride 1 is equal on both sides; with stride 2 it depends on the size of the
        # input.
        self.pad_first = style.same_padding and stride > 1
        padding = 0 if self.pad_first else kernel // 2
        kind = Depthwise if groups == outputs else Pointwise if kernel == 1 else nn.Conv2d
        self.conv = kind(inputs, outputs, kernel, stride, padding, groups=groups, bias=False)
        self.norm = nn.BatchNorm2d(outputs, eps=style.eps, momentum=style.momentum)
        nn.init.kaiming_normal_(self.conv.weight, mode="fan_out")

    def forward(self, x: Tensor) -> Tensor:
        if self.pad_first:
            kernel, stride = self.conv.kernel_size[0], self.conv.stride[0]
            top, bottom = _same(x.shape[2], kernel, stride)
            left, right = _same(x.shape[3], kernel, stride)
            x = F.pad(x, (left, right, top, bottom))
        x = normed(self.conv, self.norm, x)
        return F.relu6(x, inplace=True) if self.act else x


def _same(size: int, kernel: int, stride: int) -> tuple[int, int]:
    """Padding before and after, so that the output has ⌈size / stride⌉ pixels; the odd pixel goes after."""
    total = max((-(-size // stride) - 1) * stride + kernel - size, 0)
    return total // 2, total - total // 2


class Block(nn.Module):
    """Inverted residual: widen, convolve each channel, narrow; added to its input where the shapes agree."""

    def __init__(self, inputs: int, stage: Stage, stride: int, style: Style, drop: float):
        super().__init__()
        wide = inputs * stage.expansion
        self.residual = stride == 1 and inputs == stage.outputs
        self.drop = drop
        self.expand = Conv(inputs, wide, style, act=True) if stage.expansion > 1 else nn.Identity()
        self.depthwise = Conv(wide, wide, style, kernel=stage.kernel, stride=stride, groups=wide, act=True)
        self.project = Conv(wide, stage.outputs, style, act=False)

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = self.project(self.depthwise(self.expand(x)))
        if not self.residual:
            return y
        if self.training and self.drop:
            keep = torch.empty(len(y), 1, 1, 1, dtype=y.dtype, device=y.device).bernoulli_(1 - self.drop)
            y = y * (keep / (1 - self.drop))
        return x + y


class Mobile(nn.Module):
    """Stem, inverted residual blocks, a last 1x1 convolution, and the global average."""

    def __init__(self, channels: int, stages: tuple[Stage, ...], style: Style):
        super().__init__()
        self.repeats = tuple(stage.repeats for stage in stages)
        """blocks of each stage"""
        self.stem = Conv(channels, 32, style, kernel=3, stride=2, act=True)
        depth = sum(stage.repeats for stage in stages)
        blocks: list[Block] = []
        inputs = 32
        for stage in stages:
            for repeat in range(stage.repeats):
                drop = style.drop_connect * len(blocks) / depth
                blocks.append(Block(inputs, stage, stage.stride if repeat == 0 else 1, style, drop))
                inputs = stage.outputs
        self.blocks = nn.Sequential(*blocks)
        self.last = Conv(inputs, WIDTH, style, act=True)

    def forward(self, x: Tensor) -> Tensor:
        result: Tensor = self.last(self.blocks(self.stem(x))).mean((2, 3))
        return result


def efficientnet_lite0(channels: int, size: int) -> Mobile:
    """The body of EfficientNet-Lite0, for any image size."""
    return Mobile(channels, LITE0, LITE0_STYLE)


def mobilenet_v2(channels: int, size: int) -> Mobile:
    """The body of MobileNetV2, for any image size."""
    return Mobile(channels, MOBILENET_V2, MOBILENET_V2_STYLE)


_LITE_OUTER = {"_conv_stem": "stem.conv", "_bn0": "stem.norm", "_conv_head": "last.conv", "_bn1": "last.norm"}
_LITE_BLOCK = {
    "_expand_conv": "expand.conv",
    "_bn0": "expand.norm",
    "_depthwise_conv": "depthwise.conv",
    "_bn1": "depthwise.norm",
    "_project_conv": "project.conv",
    "_bn2": "project.norm",
}


def rename_lite0(name: str) -> str:
    """Published name (`_blocks.3._bn1.weight`) → ours (`blocks.3.depthwise.norm.weight`)."""
    if match := re.fullmatch(r"_blocks\.(\d+)\.(\w+)\.(\w+)", name):
        block, layer, tensor = match.groups()
        return f"blocks.{block}.{_LITE_BLOCK.get(layer, layer)}.{tensor}"
    layer, _, tensor = name.partition(".")
    return f"{_LITE_OUTER.get(layer, layer)}.{tensor}"


_V2_PARTS = ("conv", "norm")


def rename_mobilenet_v2(name: str) -> str:
    """Published name (`features.3.conv.4.weight`) → ours (`blocks.2.depthwise.norm.weight`)."""
    if match := re.fullmatch(r"features\.(\d+)\.conv\.(\d+)\.(\w+)", name):
        block, layer, tensor = int(match[1]), int(match[2]), match[3]
        # Layers go convolution, norm, activation; the first block does not widen.
        steps = ("depthwise", "project") if block == 1 else ("expand", "depthwise", "project")
        step, part = divmod(layer, 3)
        if step < len(steps) and part < len(_V2_PARTS):
            return f"blocks.{block - 1}.{steps[step]}.{_V2_PARTS[part]}.{tensor}"
    if match := re.fullmatch(r"features\.(0|18)\.([01])\.(\w+)", name):
        return f"{'stem' if match[1] == '0' else 'last'}.{_V2_PARTS[int(match[2])]}.{match[3]}"
    return name
