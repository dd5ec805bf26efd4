"""The views that the options reach: eval, flip, weak, rand, sim."""

from __future__ import annotations

from collections.abc import Callable
from typing import ClassVar

import torch
from torch import Generator, Tensor

from equipoise.site.views.base import View
from equipoise.site.views.colour import (
    autocontrast,
    blur,
    brightness,
    contrast,
    equalise,
    posterise,
    saturation,
    sharpness,
    solarise,
)
from equipoise.site.views.geometry import chance, resample, slant_map, turn_map, uniform


class Eval(View):
    """Normalised, nothing else."""

    deterministic = True


class Flip(View):
    """Flips only: cheap, and exact."""

    def change(self, x: Tensor, generator: Generator) -> Tensor:
        for axis, wanted in zip((3, 2), self.flips(len(x), generator), strict=True):
            index = wanted.nonzero()[:, 0].to(x.device)
            x[index] = x[index].flip(axis)
        return x


class Weak(View):
    """A mild crop, flips, a small rotation, a slight blur."""

    kernel: ClassVar[tuple[int, int] | None] = None
    """pixels that the blur reaches, vertically and horizontally, on an image of 224; none = as far as it
    counts"""

    def change(self, x: Tensor, generator: Generator) -> Tensor:
        x = resample(x, [*self.placed(x, self.options.crop, generator), *self.turned(x, generator)])
        if self.options.blur > 0:
            largest = max(0.1, self.options.blur * x.shape[2] / 224)
            reach = None
            if self.kernel is not None:
                reach = (
                    max(1, round(self.kernel[0] * x.shape[2] / 224)),
                    max(1, round(self.kernel[1] * x.shape[2] / 224)),
                )
            x = blur(x, uniform(0.1, largest, len(x), generator), largest, reach)
        return x


class Rand(View):
    """A strong crop, flips, and for each image its own operations of RandAugment's fourteen."""

    shapes: ClassVar = ("shear_x", "shear_y", "shift_x", "shift_y", "turn")
    colours: ClassVar = (
        "brightness",
        "saturation",
        "contrast",
        "sharpness",
        "posterise",
        "solarise",
        "autocontrast",
        "equalise",
    )
    choices: ClassVar = ("identity", *shapes, *colours)

    def drawn(self, count: int, generator: Generator) -> Tensor:
        """An operation for each image, so many times [operations, count]."""
        return torch.randint(len(self.choices), (self.options.operations, count), generator=generator)

    def parts(self, generator: Generator) -> list[float]:
        """How strong each operation is, out of 1."""
        return [self.options.magnitude / 30] * self.options.operations

    def tinted(self, x: Tensor, generator: Generator) -> Tensor:
        """Colour changes before the operations."""
        return x

    def change(self, x: Tensor, generator: Generator) -> Tensor:
        count, _, height, width = x.shape
        maps = self.placed(x, self.options.strong_crop, generator)
        chosen = self.drawn(count, generator)
        sign = 1.0 - 2.0 * torch.randint(2, chosen.shape, generator=generator)
        parts = self.parts(generator)
        for operation, side, part in zip(chosen, sign, parts, strict=True):
            # An image's operation has its strength here and the others 0, which makes them the identity.
            shear_x, shear_y, shift_x, shift_y, turn = (
                side * part * (operation == self.choices.index(name)) for name in self.shapes
            )
            maps.append(
                slant_map(0.3 * shear_x, 0.3 * shear_y, 0.45 * shift_x, 0.45 * shift_y, height, width)
            )
            maps.append(turn_map(30 * turn, height, width))
        x = self.tinted(resample(x, maps), generator)
        for operation, side, part in zip(chosen, sign, parts, strict=True):
            for name in self.colours:
                index = (operation == self.choices.index(name)).nonzero()[:, 0]
                if len(index):
                    factor = (1 + 0.9 * part * side[index]).view(-1, 1, 1, 1).to(x.device)
                    index = index.to(x.device)
                    x[index] = self.colour(name, x[index], factor, part)
        return x

    @staticmethod
    def colour(name: str, x: Tensor, factor: Tensor, part: float) -> Tensor:
        """One colour operation on the images that drew it."""
        operations: dict[str, Callable[[], Tensor]] = {
            "brightness": lambda: brightness(x, factor),
            "saturation": lambda: saturation(x, factor),
            "contrast": lambda: contrast(x, factor),
            "sharpness": lambda: sharpness(x, factor),
            "posterise": lambda: posterise(x, 8 - round(4 * part)),
            "solarise": lambda: solarise(x, 1 - part),
            "autocontrast": lambda: autocontrast(x),
            "equalise": lambda: equalise(x),
        }
        return operations[name]()


class Sim(View):
    """SimCLR's view: a strong crop, a flip, colour jitter, some grey, some blur."""

    def change(self, x: Tensor, generator: Generator) -> Tensor:
        options, count = self.options, len(x)
        x = resample(x, self.placed(x, options.strong_crop, generator, vertical=False))
        x = self.coloured(x, generator)
        x = self.greyed(x, generator)
        if options.blur > 0 and options.blur_share > 0:
            largest = max(0.1, 0.4 * options.blur * x.shape[2] / 224)
            sigma = uniform(0.1, largest, count, generator)
            index = chance(options.blur_share, count, generator).nonzero()[:, 0]
            x = x.index_copy(0, index.to(x.device), blur(x[index.to(x.device)], sigma[index], largest))
        return x
