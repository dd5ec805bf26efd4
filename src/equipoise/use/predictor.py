"""A trained model, ready for use: normalised images in, class probabilities out.

`Facts` says all there is to know of it beside its tensors, the pre-processing included, and travels with
every export.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor, nn

from equipoise.config import resolve
from equipoise.data.images import decode, reason
from equipoise.data.preprocess import Look, Resize
from equipoise.data.samples import Task
from equipoise.errors import DataError
from equipoise.evaluate.own import Metric
from equipoise.methods import Method
from equipoise.nets import NetOptions, load, state
from equipoise.options import Options
from equipoise.setup import make_net
from equipoise.site.views import Eval, ViewOptions
from equipoise.tree import Tree
from equipoise.trust import nothing
from equipoise.use.images import find_images


class Input(Options):
    """How an image file becomes what the network sees: decoded, evened out, made a square, scaled to 0…1,
    normalised."""

    image_size: int
    """side of the square, in pixels"""
    channels: Literal[1, 3]
    """1 for grey, 3 for colour; a CT slice in DICOM becomes its brain, subdural and bone windows"""
    resize: Resize
    """how the image becomes a square"""
    crop_keep: float
    """`crop`: share of the short side that the centre keeps"""
    colour_constancy: float | None
    """exponent of the Minkowski mean that stands for the colour of the light"""
    brightness: float | None
    """mean brightness that every image gets"""
    mean: tuple[float, ...]
    """per channel, taken off after scaling to 0…1"""
    std: tuple[float, ...]
    """per channel, divided by"""

    def decode(self, data: bytes) -> np.ndarray:
        """uint8 [size, size, channels] of one encoded image; raises whatever its decoder raises."""
        look = Look(self.crop_keep, self.colour_constancy, self.brightness)
        return decode(data, self.image_size, self.channels, self.resize, look)


class Facts(Options):
    """What a predictor is and where it comes from."""

    task: Task
    """single: the classes exclude each other and probabilities add up to 1; multi: each class by itself"""
    classes: tuple[str, ...]
    """in the order of the probabilities"""
    input: Input
    """the pre-processing"""
    net: NetOptions
    """the network"""
    method: dict[str, Any]
    """the method that trained it: name and options"""
    site: str | None
    """whose own predictor; none: the global one"""
    round: int
    """after which round; a method's ending counts as one after the last"""
    ending_of: int | None = None
    """the round whose ending that is; none: it is a round of training"""
    rule: str
    """how that round was selected"""
    shots: tuple[int, ...]
    """per class: 0 head, 1 medium, 2 tail, by training images"""
    fingerprint: str
    """sha256 of the data it was trained on"""
    config: str
    """sha256 of the run's config"""
    state: str
    """sha256 of the coordinator's state after that round"""
    version: str
    """of Equipoise"""

    @property
    def title(self) -> str:
        """One line for people."""
        whose = "the global predictor" if self.site is None else f"the own predictor of '{self.site}'"
        mean = ", the last of the rounds whose mean is reported" if self.rule == "mean_last_5" else ""
        when = (
            f"round {self.round}"
            if self.ending_of is None
            else f"round {self.ending_of} and the method's ending"
        )
        return f"{whose} of {self.method['name']} after {when}{mean}"


@dataclass(frozen=True)
class Prediction:
    """One image file: its probabilities, or why there are none."""

    file: str
    probabilities: tuple[float, ...] | None
    error: str | None = None


class Predictor(nn.Module):
    """Images float [N, C, H, W], after the eval view, to probabilities [N, classes].

    `tensors` has `net`, the network's tensors by name; `server`, what else the method's prediction needs of
    the coordinator's state; `mine`, what it needs of a site's. `method` is the method that `facts` describe;
    one of Equipoise's own need not be given.
    """

    def __init__(self, facts: Facts, tensors: Tree, method: Method | None = None) -> None:
        super().__init__()
        self.facts = facts
        self.own_metrics: Mapping[str, Metric] = {}
        """metrics of the run's own, which `evaluate` computes as well"""
        self.method = resolve({"method": facts.method}, allow=nothing).method if method is None else method
        see = facts.input
        self.net = make_net(facts.net, self.method, len(facts.classes), see.channels, see.image_size, seed=0)
        for tensor in state(self.net).values():
            tensor.fill_(
                torch.nan
            )  # what nobody gives must not be mistaken for something learnt, see `whole`
        load(self.net, tensors["net"])
        self.view = Eval(ViewOptions(), see.mean, see.std)
        self.server: Tree = {"model": state(self.net), **tensors.get("server", {})}
        self.mine: Noted | None = None if facts.site is None else Noted(tensors.get("mine", {}))
        self.eval().requires_grad_(False)

    @property
    def tensors(self) -> Tree:
        """What another predictor like this one is made from. Of a site's state only what prediction reads."""
        given = {name: tensor for name, tensor in state(self.net).items() if not tensor.isnan().all()}
        server = {name: branch for name, branch in self.server.items() if name != "model"}
        return {"net": given, "server": server, "mine": {} if self.mine is None else self.mine.used()}

    @torch.no_grad()
    def whole(self) -> bool:
        """Whether every tensor that prediction uses was given: a black image gets finite scores."""
        see, device = self.facts.input, next(self.net.parameters()).device
        black = torch.zeros(1, see.channels, see.image_size, see.image_size, device=device)
        return bool(self.logits(black).isfinite().all())

    def logits(self, x: Tensor) -> Tensor:
        """Scores [N, classes] before they become probabilities, of the predictor that counts."""
        return next(iter(self.method.predict(self.net, x, self.mine, self.server).values()))

    def forward(self, x: Tensor) -> Tensor:
        scores = self.logits(x)
        return scores.softmax(1) if self.facts.task == "single" else scores.sigmoid()

    # From pixels and files ----------------------------------------------------------------------------------

    @property
    def batch(self) -> int:
        """How many images go through the network at once: about a million pixels."""
        return max(8, min(256, 2**20 // self.facts.input.image_size**2))

    def see(self, images: np.ndarray) -> Tensor:
        """uint8 [N, H, W, C] as the network sees it."""
        device = next(self.net.parameters()).device
        return self.view(torch.from_numpy(images).to(device).permute(0, 3, 1, 2), torch.Generator())

    @torch.no_grad()
    def predict(self, paths: Iterable[str | Path]) -> Iterator[Prediction]:
        """Every image of files, folders and zip files, in order; one that cannot be decoded says why."""
        waiting: list[tuple[str, np.ndarray | str]] = []
        for name, read in find_images(paths):
            waiting.append((name, self._decode(read)))
            if len(waiting) == self.batch:
                yield from self._answer(waiting)
                waiting = []
        yield from self._answer(waiting)

    def decide(self, probabilities: Sequence[float]) -> list[str]:
        """The class of an image, or for several labels all that are more likely than not."""
        classes = self.facts.classes
        if self.facts.task == "single":
            return [classes[max(range(len(classes)), key=lambda i: probabilities[i])]]
        return [name for name, p in zip(classes, probabilities, strict=True) if p > 0.5]

    def _decode(self, read: Any) -> np.ndarray | str:
        try:
            return self.facts.input.decode(read())
        except (MemoryError, DataError):
            raise
        except (
            Exception
        ) as error:  # decoders fail in many ways, and all mean the same: this image cannot be used
            return reason(error)

    def _answer(self, waiting: Sequence[tuple[str, np.ndarray | str]]) -> Iterator[Prediction]:
        pixels = [image for _, image in waiting if not isinstance(image, str)]
        rows = iter(self(self.see(np.stack(pixels))).tolist() if pixels else ())
        for name, image in waiting:
            yield (
                Prediction(name, None, image)
                if isinstance(image, str)
                else Prediction(name, tuple(next(rows)))
            )


class Noted(dict[str, Any]):
    """A site's private tree that notes which of its branches are read: only those belong to the predictor."""

    def __init__(self, tree: Tree) -> None:
        super().__init__(tree)
        self.read = set[str]()

    def __getitem__(self, key: str) -> Any:
        self.read.add(key)
        return super().__getitem__(key)

    def get(self, key: str, default: Any = None) -> Any:
        self.read.add(key)
        return super().get(key, default)

    def used(self) -> Tree:
        """The branches that were read."""
        return {key: value for key, value in self.items() if key in self.read}
