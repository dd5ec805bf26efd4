"""What may leave a site: three kinds of leaves, each saying how it may be combined.

| leaf | the coordinator learns |
|---|---|
| `Sum(x)` | the sum of x over sites |
| `Mean(x, weight)` | the sum of weight·x and the sum of weights, so their quotient |
| `Each(x)` | x of every site, by name: refused by a site that has not allowed it |

A value is a tensor or a tree of tensors. The weight of a `Mean` is a number, or a tensor along the value's
first dimensions (a per-class mask, say).
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

from torch import Tensor

Kind = Literal["sum", "mean", "each"]
Value = Tensor | Mapping[str, Any]


@dataclass(frozen=True)
class Sum:
    """Only the sum over sites is learned."""

    value: Value
    kind: Kind = "sum"


@dataclass(frozen=True)
class Mean:
    """Only the weighted sum and the sum of weights are learned."""

    value: Value
    weight: float | Tensor
    kind: Kind = "mean"


@dataclass(frozen=True)
class Each:
    """The value of every single site is learned."""

    value: Value
    kind: Kind = "each"


@dataclass(frozen=True)
class Limit:
    """How large a number in a site's answer may be: plain + images · (its images of a split) + total · (all
    sites').

    It holds for the weight of a `Mean`, and for every value of a `Sum` or an `Each`; none may be less than
    `least`, or where they are `signed` than minus the limit.
    """

    plain: float = 0.0
    images: float = 0.0
    total: float = 0.0
    least: float = 0.0
    signed: bool = False
    split: str = "train"


SAMPLES = Limit(images=1.0)
"""at most the site's training images: counts of images, and the weight of a `Mean` of which nothing else is
said"""
ONE = Limit(plain=1.0)
"""sites that count alike, or not at all"""
POSITIVE = Limit(plain=math.inf)
"""anything but negative"""

Leaf = Sum | Mean | Each
Upload = dict[str, Leaf]
