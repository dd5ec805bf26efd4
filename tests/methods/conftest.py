"""Tiny federations and nets for the tests of single methods."""

from __future__ import annotations

import csv
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from equipoise.config import Config, resolve
from equipoise.engine import Host
from equipoise.methods import find
from equipoise.nets import Net, NetOptions, build, load, state
from equipoise.setup import Material, make_host, material
from equipoise.site import Loc
from equipoise.site.views import NORMS
from equipoise.testing import write_federation

SITES: dict[str, Sequence[int]] = {
    "north": (0, 0, 0, 0, 0, 1, 1, 1, 2),
    "south": (0, 1, 1, 1, 2, 2),
    "west": (0, 0, 1, 1, 1, 1, 1, 1, 1, 1, 2, 2, 2, 2),
}
TEST: dict[str, Sequence[int]] = {"north": (0, 0, 1, 2), "south": (0, 1, 2, 2, 2), "west": (0, 1, 1)}
LACKING: dict[str, Sequence[int]] = {"pair": (0, 0, 0, 0, 1, 1, 1), "only": (0, 0, 0, 0, 0)}
"""further sites that lack classes, for tests that name them"""

MakeConfig = Callable[..., Config]


@pytest.fixture(scope="session")
def make_config(tmp_path_factory: pytest.TempPathFactory) -> MakeConfig:
    """make_config(method table, sites, **train): a run on images that are looked at as they are."""
    root, written = tmp_path_factory.mktemp("federations"), dict[tuple[str, ...], dict[str, Any]]()

    def make(method: Mapping[str, Any], sites: Sequence[str] = tuple(SITES), **train: Any) -> Config:
        names = tuple(sites)
        if names not in written:
            chosen, test = (
                {site: labels[site] for site in names} for labels in (SITES | LACKING, TEST | LACKING)
            )
            written[names] = write_federation(root / "-".join(names), chosen, test)
        views = ["eval"] * len(find(method["name"], Path.cwd()).views)
        options = {
            "rounds": 2,
            "batch_size": 4,
            "lr": 0.01,
            "seed": 3,
            "views": views,
            "persist_optimizer": False,
        }
        tables = {
            "net": {"name": "small-cnn"},
            "engine": {"device": "cpu"},
            "evaluate": {"every": 99},  # at the end
            "train": options | train,
            "method": dict(method),
        }
        return resolve(written[names] | tables, base=Path.cwd())

    return make


FINDINGS: dict[str, Sequence[int]] = {
    "north": (0, 0, 1, 1, 2, 2, 0, 1, 2, 1, 0, 2),
    "south": (0, 1, 1, 2, 2, 0, 0, 2),
    "west": (0, 1, 2, 0, 1, 2, 2, 1, 0, 2),
}
"""several labels per image; north and south do not label the last finding, west not the first"""


@pytest.fixture(scope="session")
def make_findings(tmp_path_factory: pytest.TempPathFactory) -> MakeConfig:
    """make_findings(method table, spoilt=, **train): sites that each miss the labels of one finding.

    In a spoilt federation the labels no site may see are wrong, all of them.
    """
    root = tmp_path_factory.mktemp("findings")
    tables = {
        kind: write_federation(root / kind, FINDINGS, {s: (0, 1, 2) for s in FINDINGS}, task="multi")
        for kind in "ab"
    }

    def make(method: Mapping[str, Any], spoilt: bool = False, missing: int = 1, **train: Any) -> Config:
        chosen = tables["b" if spoilt else "a"]
        options = {"rounds": 2, "batch_size": 12, "lr": 0.01, "seed": 3, "persist_optimizer": False} | train
        rest = {
            "net": {"name": "small-cnn"},
            "engine": {"device": "cpu"},
            "train": options,
            "method": dict(method),
        }
        partition = chosen["partition"] | ({"missing": missing, "missing_seed": 23} if missing else {})
        return resolve(chosen | rest | {"partition": partition, "evaluate": {"every": 99}}, base=Path.cwd())

    own = {holding.name: holding.labelled for holding in material(make({"name": "fedavg"})).holdings}
    path = Path(tables["b"]["data"]["path"])
    with open(path) as file:
        rows = list(csv.DictReader(file))
    for row in rows:
        if row["split"] == "train":
            hidden = [f"c{c}" for c in range(3) if not own[row["site"]][c]]
            row.update({name: str(1 - int(row[name])) for name in hidden})
    with open(path, "w", newline="") as file:
        writer = csv.DictWriter(file, list(rows[0]))
        writer.writeheader()
        writer.writerows(rows)
    return make


@pytest.fixture
def double_net() -> Callable[..., Net]:
    """double_net(heads): the small CNN in double precision, in eval mode."""

    def make(*heads: str) -> Net:
        net = build(
            NetOptions(name="small-cnn"), classes=3, heads=heads, image_size=16, seed=5, base=Path.cwd()
        )
        return net.double().eval()

    return make


@pytest.fixture
def visit(tmp_path: Path) -> Callable[..., tuple[Net, Loc]]:
    """visit(config, site, down=, round=, question=): the net with the first weights, and a `Loc`, as a
    question finds them."""
    hosts = dict[str, Host]()

    def make(
        config: Config,
        site: str,
        down: Mapping[str, Any] | None = None,
        round: int = 0,
        question: str = "train",
    ) -> Any:
        if config.digest not in hosts:
            hosts[config.digest] = make_host(config, material(config), tmp_path / f"visit-{len(hosts)}")
        host = hosts[config.digest]
        load(host.net, host.initial)
        loc = Loc(
            data=host.sites[site],
            options=config.train,
            objective=host._objective(host.sites[site], round),
            views=host.views,
            wanted=config.train.views or config.method.views,
            round=round,
            question=question,
            down={"model": {name: host.initial[name] for name in host.shared}} | dict(down or {}),
            private=host.private,
            frozen=host.frozen,
            cache={},
            device=host.device,
        )
        loc.mine = config.method.init_site(host.net.eval(), loc)
        return host.net, loc

    return make


class Bare:
    """A run taken apart: the first weights, and each site's images as the net sees them."""

    def __init__(self, config: Config, folder: Path) -> None:
        self.dataset: Material = material(config)
        self.net = make_host(config, self.dataset, folder).net.eval()
        self.first = {name: tensor.clone() for name, tensor in state(self.net).items()}

    def rows(self, site: str, split: str) -> tuple[Tensor, Tensor]:
        """Normalised images and labels, in order."""
        (holding,) = (h for h in self.dataset.holdings if h.name == site)
        index = getattr(holding, split)
        mean, std = (torch.tensor(values).view(3, 1, 1) for values in NORMS["imagenet"])
        images = torch.tensor(self.dataset.samples.images[index]).permute(0, 3, 1, 2).float() / 255
        return (images - mean) / std, torch.tensor(self.dataset.samples.labels[index])


@pytest.fixture
def bare(tmp_path: Path) -> Callable[[Config], Bare]:
    return lambda config: Bare(config, tmp_path / "bare")
