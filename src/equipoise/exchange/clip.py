"""Updates of a bounded norm: a site makes its own smaller before it sends it, masked or not.

An update is a leaf whose tensors have the names and shapes of tensors the site received: it says how those
have changed. What a network measures instead of training it (BatchNorm's statistics) does not count and is
left as it is.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace

import torch
from torch import Tensor

from equipoise.exchange.reduction import part_of, tensors_of, whole
from equipoise.leaves import Sum, Upload

ROUNDING = 1e-4
"""how much longer than asked for a clipped update may be: norms of large models are not exact in single
precision"""
Part = tuple[str, str]
"""a leaf, and which of its tensors: those whose last name begins so, or all others"""


def received_by(broadcast: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """The tensors of a broadcast by the names they have in an answer: without the tree they are in."""
    return {name.partition("/")[2]: x for name, x in broadcast.items() if "/" in name}


def norm_of(tensors: Iterable[Tensor]) -> float:
    """The Euclidean norm of all of them together."""
    return math.hypot(*(float(torch.linalg.vector_norm(x.reshape(-1))) for x in tensors))


def updates(upload: Upload, received: Mapping[str, Tensor]) -> Iterator[tuple[str, float]]:
    """The leaves of an answer that are updates, each with its norm."""
    for name, leaf in upload.items():
        tensors = {} if isinstance(leaf, Sum) else tensors_of(leaf)
        if not tensors or not all(
            x.is_floating_point() and path in received and received[path].shape == x.shape
            for path, x in tensors.items()
        ):
            continue
        yield name, norm_of(x for path, x in tensors.items() if not part_of(path))


def clipped(upload: Upload, received: Mapping[str, Tensor], most: float) -> tuple[Upload, dict[str, float]]:
    """The answer with no update longer than that, and by leaf the factor of those that were."""
    factors = {
        name: most / norm for name, norm in updates(upload, received) if math.isfinite(norm) and norm > most
    }
    return smaller(upload, {(name, ""): factor for name, factor in factors.items()}), factors


def smaller(upload: Upload, factors: Mapping[Part, float]) -> Upload:
    """An answer with some of its parts multiplied."""
    made = dict(upload)
    for name in {leaf for leaf, _ in factors}:
        tensors = {
            path: x * factors.get((name, part_of(path)), 1.0) for path, x in tensors_of(upload[name]).items()
        }
        made[name] = replace(upload[name], value=whole(tensors))
    return made
