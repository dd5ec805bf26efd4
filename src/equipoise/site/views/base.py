"""A view: uint8 rows in, changed images out, normalised."""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

import torch
from torch import Generator, Tensor

from equipoise.errors import DataError
from equipoise.site.views.colour import brightness, contrast, grey, hue, saturation
from equipoise.site.views.geometry import chance, crop_map, flip_map, slant_map, turn_map, uniform
from equipoise.site.views.options import ViewOptions


class View:
    """Normalised images, changed by the subclass; `view(x, generator)`."""

    deterministic: ClassVar[bool] = False
    fixed: ClassVar[ViewOptions | None] = None
    """strengths of a paper's view, in place of the options"""

    def __init__(self, options: ViewOptions, mean: Sequence[float], std: Sequence[float]) -> None:
        self.options = self.fixed or options
        self.mean = torch.tensor(mean, dtype=torch.float32)
        self.std = torch.tensor(std, dtype=torch.float32)

    def change(self, x: Tensor, generator: Generator) -> Tensor:
        """The images, between 0 and 1, as this view shows them."""
        return x

    def __call__(self, x: Tensor, generator: Generator) -> Tensor:
        if x.dtype != torch.uint8 or x.ndim != 4 or x.shape[1] != len(self.mean):
            raise DataError(
                f"a view takes uint8 images [N, {len(self.mean)}, H, W], not {x.dtype} {list(x.shape)}; "
                "give it the rows of the image cache"
            )
        x = self.change(x.to(torch.float32).div_(255), generator)
        x = x.contiguous(memory_format=torch.channels_last)
        # Whole rows at a time: in this layout, broadcasting over three channels is several times slower.
        rows = x.permute(0, 2, 3, 1).view(len(x), x.shape[2], x.shape[3] * x.shape[1])
        rows.sub_(self.mean.to(x.device).repeat(x.shape[3])).div_(self.std.to(x.device).repeat(x.shape[3]))
        return x

    def flips(self, count: int, generator: Generator, vertical: bool = True) -> tuple[Tensor, Tensor]:
        """Which images to flip left-right and top-bottom: each half of the time, where the options allow
        it."""
        return (
            chance(0.5 * self.options.horizontal, count, generator),
            chance(0.5 * (self.options.vertical and vertical), count, generator),
        )

    def placed(self, x: Tensor, smallest: float, generator: Generator, vertical: bool = True) -> list[Tensor]:
        """Maps of the crop and the flips that most views begin with; none for what is switched off."""
        count, _, height, width = x.shape
        maps = []
        if smallest < 1:
            maps.append(crop_map(smallest, height, width, count, generator))
        if self.options.horizontal or (self.options.vertical and vertical):
            maps.append(flip_map(*self.flips(count, generator, vertical)))
        return maps

    def turned(self, x: Tensor, generator: Generator) -> list[Tensor]:
        """Maps of the rotation and the shift; none for what is switched off."""
        options, (count, _, height, width) = self.options, x.shape
        maps = []
        if options.rotation > 0:
            maps.append(
                turn_map(uniform(-options.rotation, options.rotation, count, generator), height, width)
            )
        if options.shift > 0:
            along, down = (uniform(-options.shift, options.shift, count, generator) for _ in range(2))
            maps.append(slant_map(torch.zeros(count), torch.zeros(count), along, down, height, width))
        return maps

    def coloured(self, x: Tensor, generator: Generator) -> Tensor:
        """Brightness, contrast, saturation and hue in random order, on a share of the images."""
        count = len(x)
        wanted = chance(self.options.jitter_share, count, generator)
        amounts = [wanted * uniform(-limit, limit, count, generator) for limit in self.options.jitter]
        changes = (brightness, contrast, saturation, hue)
        for which in torch.randperm(4, generator=generator).tolist():
            if self.options.jitter[which] > 0:
                neutral = 0.0 if changes[which] is hue else 1.0
                x = changes[which](x, (neutral + amounts[which]).view(-1, 1, 1, 1).to(x.device))
        return x

    def greyed(self, x: Tensor, generator: Generator) -> Tensor:
        """Grey, on a share of the images."""
        plain = chance(self.options.grey_share, len(x), generator).to(x.device)
        return torch.where(plain[:, None, None, None], grey(x), x)
