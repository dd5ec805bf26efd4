"""From options to a network, initialised by the seed alone."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Literal, TypeVar

import torch
from pydantic import Field
from torch import nn

from equipoise.errors import ConfigError
from equipoise.nets.net import FED, Cosine, Net, ProjectorSpec
from equipoise.nets.norm import BatchNormPolicy, to_group_norm
from equipoise.nets.registry import NETS, NetName
from equipoise.nets.weights import load_weights
from equipoise.options import Options
from equipoise.seeds import derive

Part = TypeVar("Part", bound=nn.Module)


class NetOptions(Options):
    """The network: architecture, starting weights, and how its BatchNorm layers take part."""

    name: NetName
    """Architecture: small-cnn, resnet18, resnet50, densenet121, efficientnet-b0 (BatchNorm and padding as in
    TensorFlow), efficientnet-b0-torchvision, efficientnet-lite0 or mobilenet-v2."""
    weights: str | None = None
    """Local file with pretrained weights of the body (.safetensors, .pth, .pt, .th or .pth.tar); none: a
    random start."""
    sha256: str | None = Field(default=None, pattern="^[0-9a-fA-F]{64}$")
    """Expected sha256 of the weights file; may be left out for files Equipoise knows."""
    batch_norm: BatchNormPolicy = "average"
    """BatchNorm layers: averaged like other weights, kept local, statistics frozen, or replaced by
    GroupNorm."""
    dropout: float | None = Field(default=None, ge=0, lt=1)
    """Dropout before the heads; none: the architecture's default."""
    head: Literal["linear", "cosine"] = "linear"
    """Classifier on the features: linear with bias, or cosine between features and class vectors."""
    scale: float | None = Field(default=None, gt=0)
    """Factor on the cosines of a cosine head; none: what the base loss counts on (`ldam`: 30), else 1."""


def build(
    options: NetOptions,
    *,
    classes: int,
    heads: Sequence[str] = (FED,),
    projector: ProjectorSpec | None = None,
    make_head: Callable[[int, int], nn.Module | None] | None = None,
    channels: int = 3,
    image_size: int = 64,
    seed: int,
    base: Path,
) -> Net:
    """The network these options describe. `base` is the folder a relative path to weights starts from.

    `make_head(width, classes)` may give a head of another kind. Body, projector and each head draw from seeds
    of their own, so adding a head changes nothing else.
    """
    arch = NETS[options.name]
    if image_size < arch.smallest:
        raise ConfigError(
            f"net '{options.name}' needs images of at least {arch.smallest} pixels a side, not {image_size}: "
            f"make the images larger or choose another net"
        )

    def plain_head(width: int, classes: int) -> nn.Module:
        if options.head == "linear":
            return nn.Linear(width, classes)
        return Cosine(width, classes, options.scale or 1.0)

    def new_head(width: int, classes: int) -> nn.Module:
        own = make_head(width, classes) if make_head else None
        return plain_head(width, classes) if own is None else own

    net = Net(
        options.name,
        _seeded(lambda: arch.make(channels, image_size), seed, "body"),
        arch.width,
        classes,
        {name: _seeded(lambda: new_head(arch.width, classes), seed, "head", name) for name in heads},
        projector=_seeded(lambda: projector.make(arch.width), seed, "projector") if projector else None,
        free=_seeded(lambda: plain_head(projector.sizes[-1] or arch.width, classes), seed, "free")
        if projector and projector.classifier
        else None,
        dropout=arch.dropout if options.dropout is None else options.dropout,
        frozen=options.batch_norm == "frozen",
    )
    if options.weights is not None:
        load_weights(net, base / options.weights, options.sha256)
    if options.batch_norm == "group":
        to_group_norm(net)
    return net.to(memory_format=torch.channels_last)  # type: ignore[call-overload]  # missing in torch's stubs


def _seeded(make: Callable[[], Part], seed: int, *purpose: str) -> Part:
    """Make a module whose initial values depend on this seed only, and leave the global generator as it
    was."""
    with torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(derive(seed, "net", *purpose))
        return make()
