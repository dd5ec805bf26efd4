"""From options to a network, initialised by the seed alone."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Literal, Self, TypeVar

import numpy as np
import torch
from pydantic import ConfigDict, Field, PrivateAttr, ValidationError, ValidationInfo, model_validator
from pydantic_core import InitErrorDetails
from torch import Tensor, nn

from equipoise.errors import ConfigError
from equipoise.names import unknown
from equipoise.nets.encoder import STAGE, make_encoder
from equipoise.nets.encoder import stages as encoder_stages
from equipoise.nets.net import FED, Cosine, Net, ProjectorSpec, state
from equipoise.nets.norm import BatchNormPolicy, to_group_norm
from equipoise.nets.own import Made, Maker, find, lay_out, make
from equipoise.nets.registry import NETS, ONNX, NetName
from equipoise.nets.stages import Stage, cut
from equipoise.nets.weights import load_weights
from equipoise.options import Options
from equipoise.seeds import derive

Part = TypeVar("Part")
GLOB = "*?[."
"""signs that the name of a stage has not, and globs and names of tensors have"""
VIEWS_KEPT = 8
"""variants of an image that are kept where the config does not say how many"""


class NetOptions(Options):
    """The network: architecture, starting weights, and how its BatchNorm layers take part."""

    model_config = ConfigDict(extra="allow")  # for constructors of the user's own; see `_find`

    name: NetName
    """Architecture: small-cnn, resnet18, resnet50, densenet121, efficientnet-b0 (BatchNorm and padding as in
    TensorFlow), efficientnet-b0-torchvision, efficientnet-lite0 or mobilenet-v2; or one of your own,
    FILE.py:Name or package.module:Name, or timm:NAME, torchvision:NAME or monai:NAME; or onnx, a frozen
    encoder in the file that `weights` names."""
    features: str | None = None
    """Of a network of your own: the layer whose output are the features; none: what the network gives. Of an
    ONNX encoder: the output."""
    weights: str | None = None
    """Local file with pretrained weights of the body (.safetensors, .pth, .pt, .th or .pth.tar); none: a
    random start. For `onnx`: the encoder itself."""
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

    freeze: str | tuple[str, ...] | None = None
    """What stays as it is: the body up to and including a stage, by its name, or tensors by globs such as
    `body.conv1.*`. Frozen tensors have no gradient, keep their BatchNorm statistics and are not exchanged."""
    views_kept: int | None = Field(default=None, ge=0)
    """Of each view so many variants of an image are drawn once, and what the frozen stages make of them is
    kept; 0: computed anew in every step. None: 8 with `freeze` at a stage."""

    _maker: Maker | None = PrivateAttr(default=None)

    @model_validator(mode="after")
    def _find(self, info: ValidationInfo) -> Self:
        """Find a network of the user's own; further keys are for its constructor."""
        if self._maker is not None:
            return self  # checked before, and put into other options now
        self._maker = find(self.name, info)
        further = self.model_extra or {}
        if self._maker is not None:
            self._maker.check(further, type(self).model_fields)
        elif further:
            kind = "extra_forbidden"
            wrong = [InitErrorDetails(type=kind, loc=(key,), input=further[key]) for key in further]
            raise ValidationError.from_exception_data(type(self).__name__, wrong)
        elif self.features is not None and self.name != ONNX:
            raise ValueError(f"features is for a network of your own, not for '{self.name}': leave it out")
        return self

    @model_validator(mode="after")
    def _freezes(self) -> Self:
        if self.name == ONNX and self.freeze not in (None, STAGE):
            raise ValueError("an ONNX encoder is frozen as a whole: leave `freeze` out")
        if self.views_kept is not None and self.stage is None:
            raise ValueError("views_kept needs `freeze` to name a stage: leave it out, or name one")
        return self

    @property
    def stage(self) -> str | None:
        """The last stage that is frozen, where `freeze` names a stage and no tensors."""
        if self.name == ONNX:
            return STAGE
        name = self.freeze
        return name if isinstance(name, str) and not set(name) & set(GLOB) else None

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
    given: Mapping[str, Tensor] | None = None,
) -> Net:
    """The network these options describe. `base` is the folder a relative path to weights starts from;
    `given` are tensors of such a network, where there was one before.

    `make_head(width, classes)` may give a head of another kind. `frozen` are the networks whose width a
    projector may have. Body, projector and each head draw from seeds of their own, so adding a head changes
    nothing else.
    """
    made = _body(options, channels, image_size, seed, base, given)
    width, dropout = made.width, NETS[options.name].dropout if options.name in NETS else 0.0
    if projector is not None and projector.like in (frozen or {}):
        like = (frozen or {})[projector.like]
        known = NETS.get(like.name)
        last = known.width if known else _body(like, channels, image_size, 0, base).width
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
    if options.weights is not None and options.name != ONNX:
        load_weights(net, base / options.weights, options.sha256, made.removed)
    if options.batch_norm == "group":
        to_group_norm(net)
    if options.freeze is not None or options.stage is not None:
        _freeze(net, options)
    if made.channels_last:
        lay_out(net, torch.channels_last)
    return net


def _freeze(net: Net, options: NetOptions) -> None:
    """Freeze what `net.freeze` names, a stage with all below it or tensors, and layers that have nothing else
    to learn with all that they hold."""
    if options.stage is not None:
        known = list(_stages(options.name, net.body))
        names = [stage.name for stage in known]
        if options.stage not in names:
            what = f"the stages of '{options.name}' have no names"
            what = unknown("stage", options.stage, names) if names else what
            raise ConfigError(f"net.freeze: {what}; or use globs such as body.conv1.*")
        below = known[: names.index(options.stage) + 1]
        globs = [f"body.{prefix}*" for stage in below for prefix in stage.holds]
        cut(net.body, known, options.stage)
    else:
        globs = [options.freeze] if isinstance(options.freeze, str) else list(options.freeze or ())
    own = list(state(net))
    for glob in globs:
        if not any(fnmatchcase(name, glob) for name in own):
            raise ConfigError(f"net.freeze: {unknown('tensor', glob, own)}")
    chosen = {name for name in own if any(fnmatchcase(name, glob) for glob in globs)}
    for prefix, layer in net.named_modules():
        learns = [f"{prefix}.{name}" for name, _ in layer.named_parameters()]
        if prefix and learns and chosen.issuperset(learns):
            chosen |= {name for name in own if name.startswith(f"{prefix}.")}
    if chosen.issuperset(name for name, _ in net.named_parameters()):
        raise ConfigError("net.freeze leaves nothing to train: freeze less")
    net.freeze(chosen)


def _stages(name: str, body: nn.Module) -> Iterable[Stage]:
    """The stages of a body, where they have names."""
    if name == ONNX:
        return encoder_stages(body)
    return NETS[name].stages(body) if name in NETS else ()


def _body(
    options: NetOptions,
    channels: int,
    image_size: int,
    seed: int,
    base: Path,
    given: Mapping[str, Tensor] | None = None,
) -> Made:
    """The part of the network in front of its heads."""
    if options.name == ONNX:
        path = None if options.weights is None else base / options.weights
        return make_encoder(path, options.sha256, options.features, (channels, image_size), given)
    own = options._maker
    if own is not None:
        further = options.model_extra or {}
        return _seeded(lambda: make(own, further, options.features, channels, image_size), seed, "body")
    arch = NETS[options.name]
    if image_size < arch.smallest:
        raise ConfigError(
            f"net '{options.name}' needs images of at least {arch.smallest} pixels a side, not {image_size}: "
            f"make the images larger or choose another net"
        )
    body = _seeded(lambda: arch.make(channels, image_size), seed, "body")
    return Made(body, arch.width, channels_last=True, removed=frozenset())


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
