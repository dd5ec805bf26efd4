"""Augmented views of a whole batch as tensor code: uint8 [N, C, H, W] in, normalised float32 of the same size
out.

Every random number comes from the CPU generator passed in, so a view gives the same bits on every run; every
image of a batch has its own parameters. All geometry of a view (crop, flips, rotation, shear, shift) becomes
one affine map per image and one resampling; borders are filled by reflection, which leaves no black corners
for a network to learn from.

Three differences from the per-image pipelines of the papers: a crop whose sides would leave the image is cut
to it, not drawn again; in `rand` geometry comes before colour; in `sim` one order of the colour changes is
drawn per batch.

The views named after a paper are its augmentation with the paper's own strengths, at which they stay: the
options do not reach them, but for `normalise`. In these too geometry comes first, and blur and shift are
those of an image of 224 pixels, scaled.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import ClassVar, Literal

import numpy as np
import torch
import torch.nn.functional as F
from pydantic import Field, model_validator
from torch import Generator, Tensor

from equipoise.errors import ConfigError, DataError
from equipoise.names import unknown
from equipoise.options import Options

Channels = tuple[float, ...]

NORMS: dict[str, tuple[Channels, Channels]] = {
    "imagenet": ((0.485, 0.456, 0.406), (0.229, 0.224, 0.225)),
    "half": ((0.5, 0.5, 0.5), (0.5, 0.5, 0.5)),
}
"""Mean and standard deviation per channel, of values between 0 and 1."""

GREY = (0.299, 0.587, 0.114)
"""Weights of red, green and blue in brightness."""

CACHED = 2**18
"""Numbers that filters work on at a time."""

ASPECT = math.log(4 / 3)
"""Largest log of a crop's width over height."""


class ViewOptions(Options):
    """How strongly views change an image; each strength has a value that switches it off. A paper's views
    have their own."""

    normalise: Literal["imagenet", "half", "data"] | tuple[Channels, Channels] = "imagenet"
    """mean and standard deviation per channel: a known pair, measured on the training images, or `[[mean],
    [std]]`"""
    horizontal: bool = True
    """flip left and right (every random view)"""
    vertical: bool = True
    """flip top and bottom (`flip`, `weak`, `rand`); switch it off where up and down matter, as in chest
    images"""
    rotation: float = Field(default=10.0, ge=0, le=180)
    """`weak`: largest angle in degrees; 0 is off"""
    shift: float = Field(default=0.0, ge=0, lt=1)
    """`weak`: largest shift along each side, as a share of it; 0 is off"""
    crop: float = Field(default=0.8, gt=0, le=1)
    """`weak`: smallest share of the image's area that a crop keeps; 1 is off"""
    strong_crop: float = Field(default=0.2, gt=0, le=1)
    """`rand` and `sim`: the same; the papers use 0.08 on images of 224 pixels; 1 is off"""
    blur: float = Field(default=5.0, ge=0)
    """`weak`: largest Gaussian sigma on an image of 224 pixels, scaled with the image's size; 0 is off"""
    operations: int = Field(default=2, ge=0)
    """`rand`: operations per image; 0 is off"""
    magnitude: float = Field(default=10.0, ge=0, le=30)
    """`rand`: strength of the operations, out of 30"""
    jitter: tuple[float, float, float, float] = (0.4, 0.4, 0.4, 0.1)
    """`sim`: largest relative change of brightness, contrast and saturation, and largest turn of hue; 0 is
    off"""
    jitter_share: float = Field(default=0.8, ge=0, le=1)
    """`sim`: share of images with colour jitter"""
    grey_share: float = Field(default=0.2, ge=0, le=1)
    """`sim`: share of images turned grey"""
    blur_share: float = Field(default=0.5, ge=0, le=1)
    """`sim`: share of images blurred, with a sigma up to 2/5 of `blur`"""

    @model_validator(mode="after")
    def _within_range(self) -> ViewOptions:
        if not all(0 <= value <= 1 for value in self.jitter[:3]) or not 0 <= self.jitter[3] <= 0.5:
            raise ConfigError(
                f"augment: jitter = {self.jitter} must be three values in 0..1 and a hue in 0..0.5"
            )
        if not isinstance(self.normalise, str):
            mean, std = self.normalise
            if not mean or len(mean) != len(std) or min(std) <= 0:
                raise ConfigError(
                    "augment: normalise must be [[mean per channel], [positive std per channel]]"
                )
        return self


# Normalisation ----------------------------------------------------------------------------------------------


def channel_statistics(images: np.ndarray, index: np.ndarray, chunk: int = 256) -> tuple[Channels, Channels]:
    """Mean and standard deviation per channel, on a scale of 0 to 1, of the rows `index` of uint8 [N, H, W,
    C].

    Counts the 256 values chunk by chunk: exact, and never more than a chunk in memory. A constant channel
    gets the standard deviation of one grey level, so that it can be divided by.
    """
    if len(index) == 0:
        raise DataError("channel statistics need at least one image, and the training split is empty")
    index = np.sort(index)
    counts = np.zeros((images.shape[3], 256), dtype=np.int64)
    for start in range(0, len(index), chunk):
        part = images[index[start : start + chunk]]
        for channel, row in enumerate(counts):
            row += np.bincount(part[..., channel].ravel(), minlength=256)
    level = np.arange(256, dtype=np.float64) / 255
    share = counts / counts.sum(axis=1, keepdims=True)
    mean = share @ level
    spread = (share * (level - mean[:, None]) ** 2).sum(axis=1)
    return tuple(mean.tolist()), tuple(np.maximum(np.sqrt(spread), 1 / 255).tolist())


def statistics(
    options: ViewOptions, channels: int, measured: tuple[Channels, Channels] | None = None
) -> tuple[Channels, Channels]:
    """The mean and standard deviation the options ask for; `measured` is what "data" stands for."""
    if options.normalise == "data":
        if measured is None:
            raise ConfigError('augment: normalise = "data" needs statistics measured on the training images')
        mean, std = measured
    elif isinstance(options.normalise, str):
        mean, std = NORMS[options.normalise]
        if channels == 1:
            mean, std = (sum(mean) / 3,), (sum(std) / 3,)
    else:
        mean, std = options.normalise
    if len(mean) != channels:
        raise ConfigError(f"augment: normalise has {len(mean)} channels and the images have {channels}")
    return mean, std


# Geometry: maps from output to input positions, [N, 3, 3], both axes running from -1 to 1 -------------------


def uniform(low: float, high: float, count: int, generator: Generator) -> Tensor:
    """`count` draws between `low` and `high`."""
    return low + (high - low) * torch.rand(count, generator=generator)


def chance(share: float, count: int, generator: Generator) -> Tensor:
    """`count` yes-or-no draws, yes with probability `share`."""
    return torch.rand(count, generator=generator) < share


def affine(xx: Tensor, xy: Tensor, x: Tensor, yx: Tensor, yy: Tensor, y: Tensor) -> Tensor:
    """The maps `(xx·u + xy·v + x, yx·u + yy·v + y)`."""
    zero, one = torch.zeros_like(xx), torch.ones_like(xx)
    return torch.stack([xx, xy, x, yx, yy, y, zero, zero, one], dim=1).view(-1, 3, 3)


def crop_map(smallest: float, height: int, width: int, count: int, generator: Generator) -> Tensor:
    """Random boxes of `smallest` to all of the area and of aspect 3:4 to 4:3, enlarged to the whole image."""
    area = uniform(smallest, 1.0, count, generator)
    aspect = torch.exp(uniform(-ASPECT, ASPECT, count, generator)) * (height / width)
    wide, high = torch.sqrt(area * aspect).clamp_max(1.0), torch.sqrt(area / aspect).clamp_max(1.0)
    x = (1 - wide) * uniform(-1, 1, count, generator)
    y = (1 - high) * uniform(-1, 1, count, generator)
    zero = torch.zeros(count)
    return affine(wide, zero, x, zero, high, y)


def flip_map(horizontal: Tensor, vertical: Tensor) -> Tensor:
    """Mirror images left-right and top-bottom, where bool [N] says so."""
    zero = torch.zeros(len(horizontal))
    return affine(1.0 - 2.0 * horizontal, zero, zero, zero, 1.0 - 2.0 * vertical, zero)


def turn_map(degrees: Tensor, height: int, width: int) -> Tensor:
    """Rotate counter-clockwise about the centre."""
    cos, sin = torch.cos(torch.deg2rad(degrees)), torch.sin(torch.deg2rad(degrees))
    zero = torch.zeros_like(cos)
    return affine(cos, -sin * (height / width), zero, sin * (width / height), cos, zero)


def zoom_map(factor: Tensor) -> Tensor:
    """Enlarge about the centre."""
    zero = torch.zeros_like(factor)
    return affine(1 / factor, zero, zero, zero, 1 / factor, zero)


def slant_map(shear_x: Tensor, shear_y: Tensor, x: Tensor, y: Tensor, height: int, width: int) -> Tensor:
    """Shear by pixels per pixel, and shift by a share of the width and of the height."""
    one = torch.ones_like(x)
    return affine(one, shear_x * (height / width), 2 * x, shear_y * (width / height), one, 2 * y)


def resample(x: Tensor, maps: Sequence[Tensor]) -> Tensor:
    """Apply maps in the order given, with one bilinear resampling."""
    if not maps:
        return x
    whole = maps[0]
    for further in maps[1:]:
        whole = whole @ further
    whole = whole.to(x.device)
    u, v = (
        ((2 * torch.arange(size, device=x.device) + 1) / size - 1)[:, None]
        for size in (x.shape[3], x.shape[2])
    )
    along = u * whole[:, None, :2, 0]
    down = v * whole[:, None, :2, 1] + whole[:, None, :2, 2]
    grid = down[:, :, None] + along[:, None]
    return F.grid_sample(x, grid, mode="bilinear", padding_mode="reflection", align_corners=False)


# Filters and colour, on float [N, C, H, W] between 0 and 1; `factor` and the like are [N, 1, 1, 1] ----------


def blur(x: Tensor, sigma: Tensor, largest: float, reach: tuple[int, int] | None = None) -> Tensor:
    """Gaussian blur with a sigma [N] per image, none above `largest`; `reach` cuts the kernel off, vertically
    and horizontally."""
    if not len(x):
        return x
    whole = max(1, math.ceil(3 * largest))
    limit = min(x.shape[2:]) - 1
    down, along = (_bell(sigma, min(far, limit)).to(x.device) for far in reach or (whole, whole))
    # A few images at a time stay in the processor's cache: about twice as fast on images of 128 pixels.
    few = max(1, CACHED // x[0].numel())
    return torch.cat(
        [_smooth(*part) for part in zip(x.split(few), down.split(few), along.split(few), strict=True)]
    )


def _bell(sigma: Tensor, reach: int) -> Tensor:
    """Gaussian weights [N, reach + 1] from the centre outwards; with both sides they sum to 1."""
    weight = torch.exp(-0.5 * (torch.arange(reach + 1) / sigma[:, None]) ** 2)
    return weight / (2 * weight.sum(1, keepdim=True) - weight[:, :1])


def _smooth(x: Tensor, down: Tensor, along: Tensor) -> Tensor:
    """Rows, then columns, as sums of shifted images."""
    pair = torch.empty_like(x)
    for axis, weight in ((2, down), (3, along)):
        size, reach = x.shape[axis], weight.shape[1] - 1
        wide = F.pad(x, (0, 0, reach, reach) if axis == 2 else (reach, reach, 0, 0), mode="reflect")
        x = x * weight[:, 0, None, None, None]
        for step in range(1, reach + 1):
            torch.add(wide.narrow(axis, reach - step, size), wide.narrow(axis, reach + step, size), out=pair)
            x.addcmul_(pair, weight[:, step, None, None, None])
    return x


def grey(x: Tensor) -> Tensor:
    """Brightness, [N, 1, H, W]."""
    if x.shape[1] == 1:
        return x
    red, green, blue = x.unbind(1)
    return (GREY[0] * red + GREY[1] * green + GREY[2] * blue)[:, None]


def blend(x: Tensor, other: Tensor, factor: Tensor) -> Tensor:
    """`other` at factor 0, `x` at 1, and beyond it above 1."""
    # In place where it can be: fresh buffers of this size cost more than the arithmetic.
    return (x - other).mul_(factor).add_(other).clamp_(0, 1)


def brightness(x: Tensor, factor: Tensor) -> Tensor:
    return (x * factor).clamp_(0, 1)


def contrast(x: Tensor, factor: Tensor) -> Tensor:
    return blend(x, grey(x).mean((2, 3), keepdim=True), factor)


def saturation(x: Tensor, factor: Tensor) -> Tensor:
    return blend(x, grey(x), factor)


def hue(x: Tensor, turn: Tensor) -> Tensor:
    """Turn the hue by a share of the colour circle; grey images have none."""
    if x.shape[1] == 1:
        return x
    red, green, blue = x.unbind(1)
    value = x.amax(1)
    spread = value - x.amin(1)
    # Hue in sixths of the circle from red; a grey pixel has spread 0, and any hue gives it back unchanged.
    place = torch.where(value == green, 2 * spread + blue - red, 4 * spread + red - green)
    place = torch.where(value == red, green - blue, place)
    place = place.div_(spread.clamp_min(1e-12)).add_(6 * turn[:, 0]).remainder_(6)
    # A channel is full within one sixth of its own hue (0, 2 or 4), and falls to the least over the next.
    apart = (place[:, None] - torch.tensor([0.0, 2.0, 4.0], device=x.device).view(1, 3, 1, 1)).abs_()
    apart = torch.minimum(apart, 6 - apart).sub_(1).clamp_(0, 1)
    return apart.mul_(-spread[:, None]).add_(value[:, None])


def sharpness(x: Tensor, factor: Tensor) -> Tensor:
    """Away from (or towards) a 3x3 smoothing; the outermost pixels stay."""
    kernel = torch.full((3, 3), 1 / 13, device=x.device)
    kernel[1, 1] = 5 / 13
    smooth = x.clone()
    flat = x.reshape(-1, 1, *x.shape[2:])
    smooth[:, :, 1:-1, 1:-1] = F.conv2d(flat, kernel[None, None]).view(
        *x.shape[:2], x.shape[2] - 2, x.shape[3] - 2
    )
    return blend(x, smooth, factor)


def posterise(x: Tensor, bits: int) -> Tensor:
    """Keep the highest `bits` of eight."""
    step = 2 ** (8 - bits)
    return torch.floor(torch.round(x * 255) / step) * (step / 255)


def solarise(x: Tensor, threshold: float) -> Tensor:
    """Invert what is at or above the threshold."""
    return torch.where(x < threshold, x, 1 - x)


def autocontrast(x: Tensor) -> Tensor:
    """Stretch each channel to 0..1; a constant channel stays."""
    low, high = x.amin((2, 3), keepdim=True), x.amax((2, 3), keepdim=True)
    return torch.where(high > low, (x - low) / (high - low).clamp_min(1e-12), x)


def equalise(x: Tensor) -> Tensor:
    """Spread the grey levels of each channel evenly; a channel with too few levels stays."""
    level = torch.round(x * 255).long().flatten(2)
    counts = torch.zeros(*x.shape[:2], 256, dtype=torch.int64, device=x.device)
    counts.scatter_add_(2, level, torch.ones_like(level))
    last = counts.gather(2, level.amax(2, keepdim=True))
    step = (level.shape[2] - last) // 255
    below = counts.cumsum(2) - counts
    table = ((below + step // 2) // step.clamp_min(1)).clamp_(0, 255)
    return torch.where(step > 0, table.gather(2, level), level).view(x.shape).to(x.dtype) / 255


# Views ------------------------------------------------------------------------------------------------------


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


# The papers' views ------------------------------------------------------------------------------------------


class Fca(Weak):
    """FCA, and Fed-MAS on Fed-ISIC2019: flips, a rotation of up to 10°, and always a blur, 5 pixels wide and
    9 high."""

    fixed = ViewOptions(crop=1, rotation=10, blur=5)
    kernel = (4, 2)


class FedIicFirst(Rand):
    """FedIIC's first view: a strong crop, a flip, colour jitter, then RandAugment at full strength on half of
    the turns.

    The strength of an operation is 10 ± 0.5 out of 10, drawn per batch. Colours go either way, where the
    released code only raises them; `solarise` at full strength inverts, which is an operation of its own
    there.
    """

    fixed = ViewOptions(
        vertical=False, strong_crop=0.08, operations=2, jitter=(0.4, 0.4, 0.4, 0), jitter_share=1
    )

    def drawn(self, count: int, generator: Generator) -> Tensor:
        chosen = super().drawn(count, generator)
        return chosen * chance(0.5, chosen.numel(), generator).view(chosen.shape)  # 0 is the identity

    def parts(self, generator: Generator) -> list[float]:
        return (1 + 0.05 * torch.randn(self.options.operations, generator=generator)).clamp_(0, 1).tolist()

    def tinted(self, x: Tensor, generator: Generator) -> Tensor:
        return self.coloured(x, generator)


class FedIicSecond(Sim):
    """FedIIC's second view: a strong crop, a flip, colour jitter on four images of five, one of five grey."""

    fixed = ViewOptions(
        strong_crop=0.08, jitter=(0.4, 0.4, 0.4, 0.1), jitter_share=0.8, grey_share=0.2, blur_share=0
    )


class FedMlp(Weak):
    """FedMLP, and both views of FedIIC on brain scans: a rotation of up to 10°, a shift of up to 2 %, a flip
    left and right."""

    fixed = ViewOptions(crop=1, vertical=False, rotation=10, shift=0.02, blur=0)


class FedMlpStrong(Rand):
    """The strong view FedMLP gives FedFixMatch: that of FedMLP, then two operations of RandAugment."""

    fixed = ViewOptions(strong_crop=1, vertical=False, rotation=10, shift=0.02, operations=2, magnitude=10)

    def placed(self, x: Tensor, smallest: float, generator: Generator, vertical: bool = True) -> list[Tensor]:
        return [*super().placed(x, smallest, generator, vertical), *self.turned(x, generator)]


class FedMas(View):
    """Fed-MAS on skin tones: a zoom of 0.95 to 1.2, a shift of up to 5 % or a rotation of up to 45°; then
    colour jitter and flips."""

    fixed = ViewOptions(jitter=(0.25, 0.25, 0.25, 0.01), jitter_share=1)

    def change(self, x: Tensor, generator: Generator) -> Tensor:
        count, _, height, width = x.shape
        which = torch.randint(3, (count,), generator=generator)
        zoom = torch.where(which == 0, uniform(0.95, 1.2, count, generator), 1.0)
        along, down = ((which == 1) * uniform(-0.05, 0.05, count, generator) for _ in range(2))
        degrees = (which == 2) * uniform(-45, 45, count, generator)
        straight = torch.zeros(count)
        moved = [
            zoom_map(zoom),
            slant_map(straight, straight, along, down, height, width),
            turn_map(degrees, height, width),
        ]
        return self.coloured(resample(x, [*moved, *self.placed(x, 1.0, generator)]), generator)


class FedSdcSkin(Weak):
    """FedSDC on HAM10000: flips, a rotation of up to 20°, jitter of brightness, contrast and hue."""

    fixed = ViewOptions(crop=1, rotation=20, blur=0, jitter=(0.1, 0.1, 0, 0.1), jitter_share=1, grey_share=0)

    def change(self, x: Tensor, generator: Generator) -> Tensor:
        return self.greyed(self.coloured(super().change(x, generator), generator), generator)


class FedSdcBlood(FedSdcSkin):
    """FedSDC on blood cells: a mild crop, a flip left and right, any rotation, colour jitter, every other
    image grey."""

    fixed = ViewOptions(
        crop=0.8,
        vertical=False,
        rotation=180,
        blur=0,
        jitter=(0.2, 0.2, 0.2, 0.2),
        jitter_share=1,
        grey_share=0.5,
    )


VIEWS: dict[str, type[View]] = {
    "eval": Eval,
    "flip": Flip,
    "weak": Weak,
    "rand": Rand,
    "sim": Sim,
    "fca": Fca,
    "fediic-1": FedIicFirst,
    "fediic-2": FedIicSecond,
    "fedmlp": FedMlp,
    "fedmlp-strong": FedMlpStrong,
    "fedmas": FedMas,
    "fedsdc-skin": FedSdcSkin,
    "fedsdc-blood": FedSdcBlood,
}
"""Every view by name."""


def make_view(name: str, options: ViewOptions, mean: Sequence[float], std: Sequence[float]) -> View:
    """A view by name; `mean` and `std` per channel come from `statistics`."""
    if name not in VIEWS:
        raise ConfigError(unknown("view", name, VIEWS))
    return VIEWS[name](options, mean, std)
