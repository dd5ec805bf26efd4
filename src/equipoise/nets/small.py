"""The small CNN: enough for tests, teaching and quick comparisons on a laptop."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from equipoise.nets.norm import normed

WIDTH = 64


class SmallCNN(nn.Module):
    """Three times 3x3 convolution, BatchNorm, max pooling and ReLU (16, 32, 64 channels), then the global
    average."""

    def __init__(self, channels: int = 3):
        super().__init__()
        self.conv1, self.norm1 = _conv(channels, 16), nn.BatchNorm2d(16)
        self.conv2, self.norm2 = _conv(16, 32), nn.BatchNorm2d(32)
        self.conv3, self.norm3 = _conv(32, WIDTH), nn.BatchNorm2d(WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        for i in (1, 2, 3):
            x = self.block(i, x)
        return x.mean((2, 3))

    def block(self, i: int, x: Tensor) -> Tensor:
        """One of the three convolution blocks."""
        conv, norm = getattr(self, f"conv{i}"), getattr(self, f"norm{i}")
        # ReLU after pooling gives the same values and gradients as before it, on a quarter of the pixels.
        return F.relu(halved(normed(conv, norm, x)), inplace=True)


def halved(x: Tensor) -> Tensor:
    """The largest of every two by two pixels. Where nothing is trained nobody asks which of them it was, and
    comparing rows, then columns, takes a third of the time that `max_pool2d` does."""
    if torch.is_grad_enabled():
        return F.max_pool2d(x, 2)
    height, width = (side // 2 * 2 for side in x.shape[2:])
    rows = torch.maximum(x[:, :, 0:height:2], x[:, :, 1:height:2])
    return torch.maximum(rows[..., 0:width:2], rows[..., 1:width:2])


def _conv(inputs: int, outputs: int) -> nn.Conv2d:
    layer = nn.Conv2d(inputs, outputs, 3, padding=1, bias=False)
    nn.init.kaiming_normal_(layer.weight, mode="fan_out", nonlinearity="relu")
    return layer
