"""What a coordinator that wants to know more does, and what it gets to see.

Each attack is a function of what it has seen, so that the same one is tried on a federation without
protection and on one with it: a `Protection` is a change of the run's config, nothing else.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from tests.attacks.leaky import HIDDEN
from torch import Tensor
from torch.nn import functional as F

from equipoise.config import Config, resolve
from equipoise.engine import Engine, Question
from equipoise.engine.host import Host
from equipoise.exchange import decode_upload, pack
from equipoise.leaves import Mean, Upload
from equipoise.nets import load
from equipoise.running import run
from equipoise.setup import make_host, material

Protection = Mapping[str, Mapping[str, Any]]
"""sections of a config, laid over those of the run that is attacked"""
Model = dict[str, Tensor]
NONE: Protection = {}
SGD = {"optimizer": "sgd", "momentum": 0.0, "weight_decay": 0.0, "epochs": 1, "views": ["eval"], "rounds": 1}
"""training that tells most: plain steps on images as they are"""


def config_of(sections: Mapping[str, Mapping[str, Any]], protection: Protection = NONE) -> Config:
    """A run with its protection."""
    table: dict[str, dict[str, Any]] = {
        "method": {"name": "fedavg"},
        "engine": {"device": "cpu"},
        "evaluate": {"own": "received"},
    }
    for part in (sections, protection):
        for name, changes in part.items():
            table[name] = {**table.get(name, {}), **changes}
    return resolve(table)


def host_of(config: Config) -> Host:
    """All sites and the network as the first round has it."""
    with tempfile.TemporaryDirectory() as folder:
        return make_host(config, material(config), Path(folder))


@dataclass
class Curious:
    """An engine that asks with another model than it should, and keeps what arrives."""

    engine: Engine
    model: Model
    seen: dict[str, bytes]

    def ask(self, question: Question, sites: Sequence[str]) -> Iterator[tuple[str, bytes]]:
        if question.name == "train":
            named = {f"model/{name}": x for name, x in self.model.items()}
            question = replace(question, payload=pack({}, named))
        for site, data in self.engine.ask(question, sites):
            if question.name == "train":
                self.seen[site] = bytes(data)
            yield site, data

    def __getattr__(self, name: str) -> Any:
        return getattr(self.engine, name)


def watched(config: Config, craft: Callable[[Model], Model]) -> dict[str, Upload]:
    """By site: its answer to the first question as the coordinator receives it, asked with a model that was
    made for the purpose."""
    host, seen = host_of(config), dict[str, bytes]()
    model = craft({name: host.initial[name] for name in host.shared})
    with tempfile.TemporaryDirectory() as folder:
        run(config, Path(folder) / "run", wrap=lambda engine: Curious(engine, model, seen))
    return {site: decode_upload(data)[1] for site, data in seen.items()}


def images_of(host: Host, site: str, split: str = "train") -> tuple[Tensor, Tensor]:
    """A site's images as the network sees them, and their labels."""
    rows = host.sites[site].splits[split]
    batch = rows.take(torch.arange(len(rows)), [host.views["eval"]], [torch.Generator()])
    return batch.x, batch.y


def delta_of(upload: Upload) -> tuple[Model, float]:
    """A site's update and how much it weighs."""
    leaf = upload["delta"]
    assert isinstance(leaf, Mean) and isinstance(leaf.value, dict)
    return leaf.value, float(leaf.weight)


# Label counts from the head's bias --------------------------------------------------------------------------


def zeros(model: Model) -> Model:
    """A model for which every class is equally likely, whatever the image."""
    return {name: x * 0 for name, x in model.items()}


def counts(upload: Upload, rate: float) -> list[int]:
    """How many images of each class a site has, read from one step of SGD from a model of zeros.

    There every class has the probability 1/C, so the bias of the head moves by rate · (n_c/n - 1/C).
    """
    delta, images = delta_of(upload)
    bias = delta["head.fed.bias"].double()
    found: list[int] = (images * (bias / rate + 1 / len(bias))).round().int().tolist()
    return found


# Images from a gradient -------------------------------------------------------------------------------------


def imprinted(model: Model, like: Tensor) -> Model:
    """A model whose first layer sorts images by brightness (Fowl et al. 2022): unit k is on for all images
    brighter than its threshold, and every unit has the same part in the loss. `like` are a few images of the
    same kind, which tell how bright they are."""
    low, high = (float(edge) for edge in like.flatten(1).mean(1).aminmax())
    margin = high - low
    hidden, head = model["body.hidden.weight"], model["head.fed.weight"]
    classes = torch.arange(1.0, len(head) + 1)[:, None] / HIDDEN
    return {
        "body.hidden.weight": torch.full_like(hidden, 1 / hidden.shape[1]),
        "body.hidden.bias": -torch.linspace(low - margin, high + margin, HIDDEN),
        "head.fed.weight": classes.expand_as(head).contiguous(),
        "head.fed.bias": torch.zeros(len(head)),
    }


def images_in(upload: Upload, shape: Sequence[int]) -> list[Tensor]:
    """What each unit adds to the next brighter one's gradient: an image, where one alone lies between their
    thresholds, and a mixture where several do."""
    delta, _ = delta_of(upload)
    weight, bias = (delta[f"body.hidden.{name}"].double().diff(dim=0) for name in ("weight", "bias"))
    least = 1e-4 * float(bias.abs().max())
    return [(w / b).view(*shape) for w, b in zip(weight, bias, strict=True) if abs(float(b)) > least]


def likeness(found: Tensor, image: Tensor) -> float:
    """The correlation of two images over all pixels, whatever their brightness and contrast."""
    pair = torch.stack([found.reshape(-1).double(), image.reshape(-1).double()])
    return float(torch.corrcoef(pair)[0, 1])


# Membership -------------------------------------------------------------------------------------------------


def losses(config: Config, model: Model, split: str) -> Tensor:
    """A model's loss of every image of a split, all sites together."""
    host = host_of(config)
    load(host.net, model)
    host.net.eval()
    found = []
    with torch.no_grad():
        for site in host.sites:
            x, y = images_of(host, site, split)
            found.append(F.cross_entropy(host.net(x), y, reduction="none"))
    return torch.cat(found)


def told_apart(inside: Tensor, outside: Tensor) -> float:
    """How well a threshold on the loss tells who was in training (Yeom et al. 2018), as an AUC: 0.5 is
    guessing."""
    below = (inside[:, None] < outside[None]).double() + 0.5 * (inside[:, None] == outside[None])
    return float(below.mean())


# One site by difference -------------------------------------------------------------------------------------


def difference(fewer: Model, more: Model, weights: tuple[float, float]) -> Model:
    """What one more site adds: from the means over two sets of sites that differ in it, and their summed
    weights."""
    small, large = weights
    return {name: (more[name] * large - fewer[name] * small) / (large - small) for name in more}
