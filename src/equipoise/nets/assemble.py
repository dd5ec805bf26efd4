"""From options to a network, initialised by the seed alone."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Literal, Self, TypeVar

import numpy as np
import torch
from pydantic import ConfigDict, Field, PrivateAttr, ValidationError, ValidationInfo, model_validator
from pydantic_core import InitErrorDetails
from torch import nn

from equipoise.errors import ConfigError
from equipoise.nets.net import FED, Cosine, Net, ProjectorSpec
from equipoise.nets.norm import BatchNormPolicy, to_group_norm
from equipoise.nets.own import Made, Maker, find, lay_out, make
from equipoise.nets.registry import NETS, NetName
from equipoise.nets.weights import load_weights
from equipoise.options import Options
from equipoise.seeds import derive

Part = TypeVar("Part")


class NetOptions(Options):
    """The network: architecture, starting weights, and how its BatchNorm layers take part."""

    model_config = ConfigDict(extra="allow")  # for constructors of the user's own; see `_find`

    name: NetName
    """Architecture: small-cnn, resnet18, resnet50, densenet121, efficientnet-b0 (BatchNorm and padding as in
    TensorFlow), efficientnet-b0-torchvision, efficientnet-lite0 or mobilenet-v2; or one of your own,
    FILE.py:Name or package.module:Name, or timm:NAME, torchvision:NAME or monai:NAME."""
    features: str | None = None
    """Of a network of your own: the layer whose output are the features; none: what the network gives."""
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

    _maker: Maker | None = PrivateAttr(default=None)

    @model_validator(mode="after")
    def _find(self, info: ValidationInfo) -> Self:
        """Find a network of the user's own; further keys are for its constructor."""
        if self._maker is not None:
            return self  # checked before, and put into other options now
        self._maker = find(self.name, info)
        given = self.model_extra or {}
        if self._maker is not None:
            self._maker.check(given, type(self).model_fields)
        elif given:
            wrong = [InitErrorDetails(type="extra_forbidden", loc=(key,), input=given[key]) for key in given]
            raise ValidationError.from_exception_data(type(self).__name__, wrong)
        elif self.features is not None:
            raise ValueError(f"features is for a network of your own, not for '{self.name}': leave it out")
        return self

    @property
    def own(self) -> bool:
        """Whether the network is not one of Equipoise's."""
        return self._maker is not None


def build(
    options: NetOptions,
    *,
    classes: int,
    heads: Sequence[str] = (FED,),
    projector: ProjectorSpec | None = None,
    frozen: Mapping[str, NetOptions] | None = None,
    make_head: Callable[[int, int], nn.Module | None] | None = None,
    channels: int = 3,
    image_size: int = 64,
    seed: int,
    base: Path,
) -> Net:
    """The network these options describe. `base` is the folder a relative path to weights starts from.

    `make_head(width, classes)` may give a head of another kind. `frozen` are the networks whose width a
    projector may have. Body, projector and each head draw from seeds of their own, so adding a head changes
    nothing else.
    """
    made = _body(options, channels, image_size, seed)
    width, dropout = made.width, 0.0 if options.own else NETS[options.name].dropout
    if projector is not None and projector.like in (frozen or {}):
        last = _width((frozen or {})[projector.like], channels, image_size)
        projector = replace(projector, sizes=(*projector.sizes[:-1], last))

    def plain_head(width: int, classes: int) -> nn.Module:
        if options.head == "linear":
            return nn.Linear(width, classes)
        return Cosine(width, classes, options.scale or 1.0)

    def new_head(width: int, classes: int) -> nn.Module:
        own = make_head(width, classes) if make_head else None
        return plain_head(width, classes) if own is None else own

    net = Net(
        options.name,
        made.body,
        width,
        classes,
        {name: _seeded(lambda: new_head(width, classes), seed, "head", name) for name in heads},
        projector=_seeded(lambda: projector.make(width), seed, "projector") if projector else None,
        free=_seeded(lambda: plain_head(projector.sizes[-1] or width, classes), seed, "free")
        if projector and projector.classifier
        else None,
        dropout=dropout if options.dropout is None else options.dropout,
        frozen=options.batch_norm == "frozen",
    )
    if options.weights is not None:
        load_weights(net, base / options.weights, options.sha256, made.gone)
    if options.batch_norm == "group":
        to_group_norm(net)
    if made.channels_last:
        lay_out(net, torch.channels_last)
    return net


def _body(options: NetOptions, channels: int, image_size: int, seed: int) -> Made:
    """The part of the network in front of its heads."""
    own = options._maker
    if own is not None:
        given = options.model_extra or {}
        return _seeded(lambda: make(own, given, options.features, channels, image_size), seed, "body")
    arch = NETS[options.name]
    if image_size < arch.smallest:
        raise ConfigError(
            f"net '{options.name}' needs images of at least {arch.smallest} pixels a side, not {image_size}: "
            f"make the images larger or choose another net"
        )
    body = _seeded(lambda: arch.make(channels, image_size), seed, "body")
    return Made(body, arch.width, channels_last=True, gone=frozenset())


def _width(options: NetOptions, channels: int, image_size: int) -> int:
    """How many features a network gives."""
    return _body(options, channels, image_size, 0).width if options.own else NETS[options.name].width


def _seeded(make: Callable[[], Part], seed: int, *purpose: str) -> Part:
    """Make something whose random values depend on this seed only, and leave the global generators as they
    were."""
    with _generators(derive(seed, "net", *purpose)):
        return make()


@contextmanager
def _generators(seed: int) -> Iterator[None]:
    """The global generators of torch, numpy and Python, seeded for now."""
    before = random.getstate(), np.random.get_state()
    try:
        with torch.random.fork_rng(devices=[]):
            torch.default_generator.manual_seed(seed)
            random.seed(seed)
            np.random.seed(seed % 2**32)
            yield
    finally:
        random.setstate(before[0])
        np.random.set_state(before[1])
