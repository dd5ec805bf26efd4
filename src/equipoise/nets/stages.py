"""Networks in stages: what can be frozen by the name of a stage, and computed once for every image.

A stage is a step of the body's forward pass. The body frozen up to a stage computes that part without
gradients and passes its output on in half precision, also where nothing is kept: so a model says the same of
an image whether the output was just computed or read back.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import partial
from types import MethodType
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

LARGEST = 65504.0
"""the largest number in half precision"""


class Stage(NamedTuple):
    """One step from image to features."""

    name: str
    holds: tuple[str, ...]
    """how the names of its tensors begin, within the body"""
    run: Callable[[Any, Tensor], Tensor]
    """(body, input) → output; of the last stage, the pooled features"""


# What is known of Equipoise's own networks ------------------------------------------------------------------


def small(body: nn.Module) -> Iterator[Stage]:
    """block1, block2, block3."""
    for i in (1, 2, 3):
        yield Stage(f"block{i}", (f"conv{i}.", f"norm{i}."), partial(_block, i))


def _block(i: int, body: Any, x: Tensor) -> Tensor:
    x = body.block(i, x)
    return x if i < 3 else x.mean((2, 3))


def resnet(body: nn.Module) -> Iterator[Stage]:
    """stem, layer1 to layer4."""
    yield Stage("stem", ("conv1.", "bn1."), _resnet_stem)
    for i in (1, 2, 3, 4):
        yield Stage(f"layer{i}", (f"layer{i}.",), partial(_resnet_layer, i))


def _resnet_stem(body: Any, x: Tensor) -> Tensor:
    x = body.act(body.bn1(body.conv1(x)))
    result: Tensor = x if body.no_max_pool else body.maxpool(x)
    return result


def _resnet_layer(i: int, body: Any, x: Tensor) -> Tensor:
    x = getattr(body, f"layer{i}")(x)
    return x if i < 4 else body.avgpool(x).flatten(1)


def mobile(body: Any) -> Iterator[Stage]:
    """stem, stage1 to stage7 as in the papers' tables, last."""
    yield Stage("stem", ("stem.",), _mobile_stem)
    start = 0
    for i, repeats in enumerate(body.repeats, start=1):
        blocks = range(start, start + repeats)
        names = tuple(f"blocks.{block}." for block in blocks)
        yield Stage(f"stage{i}", names, partial(_mobile_blocks, blocks))
        start = blocks.stop
    yield Stage("last", ("last.",), _mobile_last)


def _mobile_stem(body: Any, x: Tensor) -> Tensor:
    result: Tensor = body.stem(x)
    return result


def _mobile_blocks(blocks: range, body: Any, x: Tensor) -> Tensor:
    for i in blocks:
        x = body.blocks[i](x)
    return x


def _mobile_last(body: Any, x: Tensor) -> Tensor:
    result: Tensor = body.last(x).mean((2, 3))
    return result


# A body that is cut in two ----------------------------------------------------------------------------------


def cut(body: Any, stages: Sequence[Stage], last: str) -> None:
    """Have a body compute its stages up to `last` without gradients; the names of its tensors stay."""
    end = [stage.name for stage in stages].index(last) + 1
    body.lower, body.upper = tuple(stages[:end]), tuple(stages[end:])
    body.halfway = False
    """whether what comes in is the output of the lower stages, and no image"""
    body.forward = MethodType(_forward, body)


def _forward(body: Any, x: Tensor) -> Tensor:
    if not body.halfway:
        x = below(body, x).to(torch.float32)
    for stage in body.upper:
        x = stage.run(body, x)
    return x


@torch.no_grad()
def below(body: Any, x: Tensor) -> Tensor:
    """What the frozen stages make of images, in half precision."""
    for stage in body.lower:
        x = stage.run(body, x)
    return x.clamp(-LARGEST, LARGEST).to(torch.float16)
