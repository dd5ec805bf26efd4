"""The blueprint of a run: what is trained and how, in one frozen object.

It is made once, from the config and a few facts about the data, stored in the run folder, sent to workers and
held against the sites' own. Whoever trains (`engine.Host`), coordinates, predicts (`predict.Predictor`) or
reports has it from here; nobody works it out again.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Annotated, Any, Literal

import numpy as np
import torch
from pydantic import Field, SerializeAsAny, ValidationInfo, field_validator
from torch import Tensor, nn

from equipoise.data.grey import Window
from equipoise.data.images import decode
from equipoise.data.preprocess import Look, Resize
from equipoise.data.samples import Task
from equipoise.errors import WeightsError
from equipoise.locate import Parts, named, parts_of
from equipoise.losses import ObjectiveOptions
from equipoise.methods import Method, look_up
from equipoise.nets import VIEWS_KEPT, Net, NetOptions, batch_norm_names, build, state
from equipoise.options import Options
from equipoise.partition.census import Facts
from equipoise.seeds import derive
from equipoise.site import START, PrivacyOptions, TrainOptions
from equipoise.site.privacy import check_net
from equipoise.site.views import VIEWS, Eval, View, ViewOptions
from equipoise.tree import Tree

Finite = Annotated[float, Field(allow_inf_nan=False)]


class Input(Options):
    """How an image file becomes what the network sees: decoded, evened out, made a square, scaled to 0…1,
    normalised."""

    image_size: int
    """side of the square, in pixels"""
    channels: Literal[1, 3]
    """1 for grey, 3 for colour"""
    resize: Resize
    """how the image becomes a square"""
    crop_keep: float = Field(gt=0, le=1)
    """`crop`: share of the short side that the centre keeps"""
    colour_constancy: float | None = Field(ge=1, le=100)
    """exponent of the Minkowski mean that stands for the colour of the light"""
    brightness: float | None = Field(gt=0, lt=1)
    """mean brightness that every image gets"""
    window: tuple[Window, ...] | None = Field(default=None, max_length=3)
    """centre and width of the grey values that are shown; none: those the file names"""
    bits: int | None = None
    """depth of grey values in files of 16 bits; none: what the file says or shows"""
    mean: tuple[Finite, ...] = Field(min_length=1, max_length=3)
    """per channel, taken off after scaling to 0…1"""
    std: tuple[Finite, ...] = Field(min_length=1, max_length=3)
    """per channel, divided by"""

    @property
    def shape(self) -> tuple[int, int, int]:
        """Channels, height, width of one image as the network gets it."""
        return self.channels, self.image_size, self.image_size

    @property
    def view(self) -> View:
        """Pixels as the network sees them outside training."""
        return Eval(ViewOptions(), self.mean, self.std)

    def decode(self, data: bytes) -> np.ndarray:
        """uint8 [size, size, channels] of one encoded image; raises whatever its decoder raises."""
        look = Look(self.crop_keep, self.colour_constancy, self.brightness, self.window, self.bits)
        return decode(data, self.image_size, self.channels, self.resize, look)


CPU = torch.device("cpu")


@dataclass(frozen=True)
class Place:
    """Where a process computes, and where it finds files of weights."""

    device: torch.device = CPU
    base: Path = Path()
    """the folder relative paths start from"""
    weights: Mapping[str, str] | None = None
    """files of weights by the name or sha256 they are asked for by; none: the name is a path"""
    cache: Path | None = None
    """where what frozen stages make of images is kept; none: it is not kept"""

    def located(self, options: NetOptions) -> NetOptions:
        """The options with the path of their weights; where others name them, only listed files are
        opened."""
        if options.weights is None or self.weights is None:
            return options
        path = self.weights.get((options.sha256 or "").lower(), self.weights.get(options.weights))
        if path is None:
            raise WeightsError(
                f"this site has no weights '{options.weights}': say in site.toml, section [weights], which "
                f"file they are"
            )
        return options.model_copy(update={"weights": path})


@dataclass(frozen=True)
class Built:
    """The networks of a blueprint: the one that trains, and by name those that never do."""

    net: Net
    frozen: Mapping[str, nn.Module]


HERE = Place()
"""the CPU, and paths from the working folder"""
APART = {"shots", "partial", "data", "config", "version"}
"""what may differ between coordinator and sites"""


class Blueprint(Options):
    """What a run trains and how."""

    version: str
    """of Equipoise"""
    config: str
    """sha256 of the run's config"""
    data: str
    """sha256 of the data"""
    task: Task
    """single: the classes exclude each other and probabilities add up to 1; multi: each class by itself"""
    classes: tuple[str, ...]
    """in the order of the probabilities"""
    partial: bool
    """whether some site labels only some of the classes"""
    shots: tuple[int, ...]
    """per class: 0 head, 1 medium, 2 tail, by training images"""
    input: Input
    """the pre-processing"""
    net: NetOptions
    """the network"""
    method_name: str
    method: SerializeAsAny[Method]
    """the method that trains it, with its options"""
    train: TrainOptions
    """local training"""
    objective: ObjectiveOptions
    """the base loss, as the method wants it"""
    privacy: PrivacyOptions | None = None
    """differential privacy of the training images; none: without"""
    shared: tuple[str, ...] = ()
    """names of the network's tensors that are exchanged"""
    private: tuple[str, ...] = ()
    """names of those that stay at each site"""
    frozen: tuple[str, ...] = ()
    """names of those that never change, and are the same at every site"""
    frozen_sha256: str | None = None
    """digest of the frozen tensors"""

    @field_validator("method", mode="before")
    @classmethod
    def _of_its_class(cls, value: Any, info: ValidationInfo) -> Any:
        if isinstance(value, Method):
            return value
        name = str(info.data.get("method_name"))
        parts = parts_of(info, name) if named(name) else Parts(Path(), nobody)
        return look_up(name, parts).model_validate(value, context=info.context)

    def __repr__(self) -> str:
        shape = "×".join(map(str, self.input.shape))
        return (
            f"Blueprint({self.method_name} with {self.net.name} on images of {shape}, {self.task}-label, "
            f"{len(self.classes)} classes, {len(self.shared)} tensors shared and {len(self.private)} private)"
        )

    __str__ = __repr__

    @property
    def views_kept(self) -> int:
        """Variants of an image whose way through the frozen stages is computed once and kept; 0: none.

        A frozen network beside the trained one must see the images themselves, and whether code of one's own
        still draws the same views cannot be known from its name.
        """
        wanted = self.train.views or self.method.views
        if self.net.stage is None or self.method.frozen() or not set(wanted) <= set(VIEWS):
            return 0
        return VIEWS_KEPT if self.net.views_kept is None else self.net.views_kept

    @property
    def digest(self) -> str:
        """Hash of what coordinator and sites must have alike."""
        table = self.model_dump(mode="json", exclude=APART)
        return hashlib.sha256(json.dumps(table, sort_keys=True).encode()).hexdigest()

    @property
    def marks(self) -> dict[str, str]:
        """The digest by parts: a short one of every field, and of every key of a field that is a table."""
        table = self.model_dump(mode="json", exclude=APART)
        parts: dict[str, Any] = {}
        for name, value in table.items():
            below = value if isinstance(value, dict) else {}
            parts |= {f"{name}.{key}": one for key, one in below.items()} or {name: value}
        texts = {name: json.dumps(value, sort_keys=True) for name, value in parts.items()}
        return {name: hashlib.sha256(text.encode()).hexdigest()[:16] for name, text in texts.items()}

    def difference(self, marks: Mapping[str, str]) -> str | None:
        """The first part in which another blueprint, known by its `marks`, is not as this one."""
        own = self.marks
        return next((name for name in (*own, *marks) if own.get(name) != marks.get(name)), None)

    def make_net(self, place: Place = HERE, given: Mapping[str, Tensor] | None = None) -> Net:
        """The network with the method's heads and projector; with the tensors of such a network `given`, no
        file of weights is read."""
        options = place.located(self.net)
        if given is not None:
            options = self.net.model_copy(update={"weights": None})
        method = self.method
        return build(
            options,
            classes=len(self.classes),
            heads=method.heads,
            projector=method.projection(),
            frozen={name: place.located(one) for name, one in method.frozen().items()},
            make_head=method.make_head,
            channels=self.input.channels,
            image_size=self.input.image_size,
            seed=derive(self.train.seed, "net"),
            base=place.base,
            given=given,
        ).to(place.device)

    def make_frozen(self, place: Place = HERE) -> dict[str, nn.Module]:
        """The bodies of the networks that never train: in eval mode from the start, without gradients."""
        return {
            name: build(
                place.located(options),
                classes=1,
                channels=self.input.channels,
                image_size=self.input.image_size,
                seed=derive(self.train.seed, "frozen", name),
                base=place.base,
            )
            .body.to(place.device)
            .eval()
            .requires_grad_(False)
            for name, options in self.method.frozen().items()
        }

    def build(self, place: Place = HERE) -> Built:
        """All networks of the run."""
        return Built(self.make_net(place), self.make_frozen(place))

    def first(self, net: Net) -> Tree:
        """The first server tree, from a network as it was made."""
        made = state(net)
        return self.method.init(net, {name: made[name].detach().cpu().clone() for name in self.shared})


def frozen_tensors(net: Net) -> dict[str, Tensor]:
    """The tensors of a network that never change, by name."""
    return {name: tensor.cpu().clone() for name, tensor in sorted(state(net).items()) if name in net.still}


def nobody(code: Any) -> None:
    """For names that lead to no code."""
    raise AssertionError(code)


def draw(
    facts: Facts,
    *,
    net: NetOptions,
    method_name: str,
    method: Method,
    train: TrainOptions,
    objective: ObjectiveOptions,
    privacy: PrivacyOptions | None = None,
    look: Mapping[str, Any],
    normalisation: tuple[tuple[float, ...], tuple[float, ...]],
    shots: tuple[int, ...],
    config: str,
    version: str,
    place: Place = HERE,
) -> tuple[Blueprint, Built]:
    """The blueprint of a run and its networks, which are built once to learn the names of their tensors."""
    mean, std = (tuple(float(str(np.float32(value))) for value in values) for values in normalisation)
    size = {"image_size": facts.shape[0], "channels": facts.shape[2]}
    # Every part was validated when the config was resolved; code of one's own was found then.
    plan = Blueprint.model_construct(
        version=version,
        config=config,
        data=facts.fingerprint,
        task=facts.task,
        classes=facts.classes,
        partial=facts.partial,
        shots=shots,
        input=Input.model_validate({**look, **size, "mean": mean, "std": std}),
        net=net,
        method_name=method_name,
        method=method,
        train=train.model_copy(update=dict.fromkeys(("objective", *START))),
        objective=method.base_loss(objective),
        privacy=privacy,
    )
    made = plan.build(place)
    if privacy is not None:
        check_net(made.net)
    shared, private = divided(made.net, method, net)
    names = {"shared": shared, "private": private, "frozen": tuple(sorted(made.net.still))}
    return plan.model_copy(update=names), made


def divided(net: Net, method: Method, options: NetOptions) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """The names of a network's tensors that are exchanged, and of those that stay at the sites; frozen ones
    are neither."""
    local = options.batch_norm == "local" or method.local_batch_norm
    own = set(batch_norm_names(net)) if local and method.standard != "pooled" else set()
    names = [name for name in state(net) if name not in net.still]
    globs = method.private
    private = tuple(name for name in names if name in own or any(fnmatchcase(name, glob) for glob in globs))
    return tuple(name for name in names if name not in private), private
