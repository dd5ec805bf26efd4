"""Where the pixels of a view come from.

Maps from output to input positions, [N, 3, 3], both axes running from -1 to 1.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import Generator, Tensor

ASPECT = math.log(4 / 3)
"""Largest log of a crop's width over height."""


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
