"""Tiny federations and nets for the tests of single methods."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from equipoise.config import Config, resolve
from equipoise.nets import Net, NetOptions, build, state
from equipoise.setup import Material, make_host, material
from equipoise.site.views import NORMS
from equipoise.testing import write_federation

SITES: dict[str, Sequence[int]] = {
    "north": (0, 0, 0, 0, 0, 1, 1, 1, 2),
    "south": (0, 1, 1, 1, 2, 2),
    "west": (0, 0, 1, 1, 1, 1, 1, 1, 1, 1, 2, 2, 2, 2),
}
TEST: dict[str, Sequence[int]] = {"north": (0, 0, 1, 2), "south": (0, 1, 2, 2, 2), "west": (0, 1, 1)}

MakeConfig = Callable[..., Config]


@pytest.fixture(scope="session")
def make_config(tmp_path_factory: pytest.TempPathFactory) -> MakeConfig:
    """make_config(method table, sites, **train): a run on images that are looked at as they are."""
    root, written = tmp_path_factory.mktemp("federations"), dict[tuple[str, ...], dict[str, Any]]()

    def make(method: Mapping[str, Any], sites: Sequence[str] = tuple(SITES), **train: Any) -> Config:
        names = tuple(sites)
        if names not in written:
            chosen, test = ({site: labels[site] for site in names} for labels in (SITES, TEST))
            written[names] = write_federation(root / "-".join(names), chosen, test)
        options = {"rounds": 2, "batch_size": 4, "lr": 0.01, "seed": 3, "views": ["eval"], "persist_optimizer": False}
        tables = {"net": {"name": "small-cnn"}, "engine": {"device": "cpu"}, "train": options | train, "method": dict(method)}
        return resolve(written[names] | tables, base=Path.cwd())

    return make


@pytest.fixture
def double_net() -> Callable[..., Net]:
    """double_net(heads): the small CNN in double precision, in eval mode."""

    def make(*heads: str) -> Net:
        net = build(NetOptions(name="small-cnn"), classes=3, heads=heads, image_size=16, seed=5, base=Path.cwd())
        return net.double().eval()

    return make


class Bare:
    """A run taken apart: the first weights, and each site's images as the net sees them."""

    def __init__(self, config: Config, folder: Path) -> None:
        self.stuff: Material = material(config)
        self.net = make_host(config, self.stuff, folder).net.eval()
        self.first = {name: tensor.clone() for name, tensor in state(self.net).items()}

    def rows(self, site: str, split: str) -> tuple[Tensor, Tensor]:
        """Normalised images and labels, in order."""
        (holding,) = (h for h in self.stuff.holdings if h.name == site)
        index = getattr(holding, split)
        mean, std = (torch.tensor(values).view(3, 1, 1) for values in NORMS["imagenet"])
        images = torch.tensor(self.stuff.samples.images[index]).permute(0, 3, 1, 2).float() / 255
        return (images - mean) / std, torch.tensor(self.stuff.samples.labels[index])


@pytest.fixture
def bare(tmp_path: Path) -> Callable[[Config], Bare]:
    return lambda config: Bare(config, tmp_path / "bare")
