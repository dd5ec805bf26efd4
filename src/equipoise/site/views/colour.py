"""Filters and colour, on float [N, C, H, W] between 0 and 1; `factor` and the like are [N, 1, 1, 1]."""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from torch import Tensor

GREY = (0.299, 0.587, 0.114)
"""Weights of red, green and blue in brightness."""

CACHED = 2**18
"""Numbers that filters work on at a time."""


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
    result: Tensor = torch.floor(torch.round(x * 255) / step) * (step / 255)
    return result


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
