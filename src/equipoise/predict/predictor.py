"""A trained model, ready for use: normalised images in, class probabilities out.

The blueprint says all there is to know of it beside its tensors, the pre-processing included, and travels
with every export.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from equipoise.blueprint import Blueprint
from equipoise.data.images import reason
from equipoise.errors import DataError
from equipoise.methods.base import PERSONAL
from equipoise.nets import Net, load, state
from equipoise.options import Options
from equipoise.predict.images import find_images
from equipoise.tree import Tree


class Origin(Options):
    """Which state of a run a predictor is."""

    site: str | None = None
    """whose own predictor; none: the global one"""
    round: int
    """after which round; a method's ending counts as one after the last"""
    ending_of: int | None = None
    """the round whose ending that is; none: it is a round of training"""
    rule: str
    """how that round was selected"""
    state: str
    """sha256 of the coordinator's state after that round"""


@dataclass(frozen=True)
class Prediction:
    """One image file: its probabilities, or why there are none."""

    file: str
    probabilities: tuple[float, ...] | None
    error: str | None = None


class Predictor(nn.Module):
    """Images float [N, C, H, W], after the eval view, to probabilities [N, classes].

    `tensors` has `net`, the network's tensors by name; `server`, what else the method's prediction needs of
    the coordinator's state; `mine`, what it needs of a site's. `net` is a network of the blueprint's that may
    be used, where there is one.
    """

    def __init__(self, blueprint: Blueprint, tensors: Tree, origin: Origin, net: Net | None = None) -> None:
        super().__init__()
        self.blueprint, self.origin, self.method = blueprint, origin, blueprint.method
        self.own_metrics: Mapping[str, Any] = {}
        """metrics of the run's own, which `evaluate` computes as well"""
        self.net = blueprint.make_net(given=tensors["net"]) if net is None else net
        self.net.expect(halfway=False)
        for tensor in state(self.net).values():
            # What nobody gives must not be mistaken for something learnt, see `whole`.
            tensor.detach().fill_(torch.nan)
        load(self.net, tensors["net"])
        self.view = blueprint.input.view
        self.server: Tree = {"model": state(self.net), **tensors.get("server", {})}
        self.mine: Noted | None = None if origin.site is None else Noted(tensors.get("mine", {}))
        self.eval().requires_grad_(False)

    @property
    def classes(self) -> tuple[str, ...]:
        """In the order of the probabilities."""
        return self.blueprint.classes

    @property
    def title(self) -> str:
        """One line for people."""
        origin = self.origin
        whose = "the global predictor" if origin.site is None else f"the own predictor of '{origin.site}'"
        mean = ", the last of the rounds whose mean is reported" if origin.rule == "mean_last_5" else ""
        ending = f"round {origin.ending_of} and the method's ending"
        when = f"round {origin.round}" if origin.ending_of is None else ending
        return f"{whose} of {self.blueprint.method_name} after {when}{mean}"

    def __repr__(self) -> str:
        return f"Predictor({self.title}; {len(self.classes)} classes: {', '.join(self.classes)})"

    @property
    def tensors(self) -> Tree:
        """What another predictor like this one is made from. Of a site's state only what prediction reads."""
        net = {name: tensor for name, tensor in state(self.net).items() if not tensor.isnan().all()}
        server = {name: branch for name, branch in self.server.items() if name != "model"}
        return {"net": net, "server": server, "mine": {} if self.mine is None else self.mine.used()}

    @torch.no_grad()
    def whole(self) -> bool:
        """Whether every tensor that prediction uses was given: a black image gets finite scores."""
        black = torch.zeros(1, *self.blueprint.input.shape, device=next(self.net.parameters()).device)
        return bool(self.logits(black).isfinite().all())

    def logits(self, x: Tensor) -> Tensor:
        """Scores [N, classes] before they become probabilities, of the predictor that counts."""
        return next(iter(self.method.predict(self.net, x, self.mine, self.server).values()))

    def forward(self, x: Tensor) -> Tensor:
        scores = self.logits(x)
        return scores.softmax(1) if self.blueprint.task == "single" else scores.sigmoid()

    # From pixels and files ----------------------------------------------------------------------------------

    @property
    def batch(self) -> int:
        """How many images go through the network at once: about a million pixels."""
        return max(8, min(256, 2**20 // self.blueprint.input.image_size**2))

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
        classes = self.classes
        if self.blueprint.task == "single":
            return [classes[max(range(len(classes)), key=lambda i: probabilities[i])]]
        return [name for name, p in zip(classes, probabilities, strict=True) if p > 0.5]

    def _decode(self, read: Any) -> np.ndarray | str:
        try:
            return self.blueprint.input.decode(read())
        except (MemoryError, DataError):
            raise
        except Exception as error:  # decoders fail in many ways: this image cannot be used
            return reason(error)

    def _answer(self, waiting: Sequence[tuple[str, np.ndarray | str]]) -> Iterator[Prediction]:
        pixels = [image for _, image in waiting if not isinstance(image, str)]
        rows = iter(self(self.see(np.stack(pixels))).tolist() if pixels else ())
        for name, image in waiting:
            if isinstance(image, str):
                yield Prediction(name, None, image)
            else:
                yield Prediction(name, tuple(next(rows)))


def assemble(
    blueprint: Blueprint,
    server: Tree,
    origin: Origin,
    private_state: Tree | None = None,
    net: Net | None = None,
    frozen: Mapping[str, Tensor] | None = None,
) -> Predictor:
    """The predictor of a coordinator's state, or with a site's `private_state` that site's own; `frozen` are
    the tensors that never change."""
    tree = blueprint.method.serving(server)
    tensors, mine = {**tree["model"], **(frozen or {})}, dict[str, Any]()
    if private_state is not None:
        mine = private_state.get("mine", {})
        tensors |= private_state.get("net", {}) | private_state.get("tuned", {})
        tensors |= mine.get(PERSONAL, {})
    rest = {name: branch for name, branch in tree.items() if name != "model"}
    return Predictor(blueprint, {"net": tensors, "server": rest, "mine": mine}, origin, net)


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
