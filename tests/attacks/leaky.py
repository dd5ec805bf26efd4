"""A network made to be read, as a coordinator would have it that wants the images."""

from __future__ import annotations

from torch import Tensor, nn

HIDDEN = 128


class Pixels(nn.Module):
    """All pixels into one layer."""

    def __init__(self, channels: int, size: int = 16) -> None:
        super().__init__()
        self.hidden = nn.Linear(channels * size * size, HIDDEN)

    def forward(self, x: Tensor) -> Tensor:
        return self.hidden(x.flatten(1)).relu()
