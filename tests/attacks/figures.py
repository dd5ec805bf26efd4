"""How far each attack gets, as one number, under any protection that a config can name.

`python -m tests.attacks` prints them; docs/privacy.md has what it printed.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import cache, partial
from pathlib import Path
from typing import Any

import torch
from tests.attacks import kit
from tests.attacks.kit import NONE, SGD, Protection

from equipoise.config import Config
from equipoise.engine import Serial
from equipoise.engine.members import Members
from equipoise.errors import SiteError
from equipoise.exchange.secure.coordinator import Dealt, Masking
from equipoise.exchange.secure.letters import Advert, Shared
from equipoise.running import prepare, run
from equipoise.server import Exchange, Journal
from equipoise.server.masked import Masked
from equipoise.setup import material
from equipoise.testing import write_federation

LEAKY = f"{Path(__file__).with_name('leaky.py')}:Pixels"
RATE = 1.0
CLEAR = 0.95
"""a correlation from which on an image counts as found"""
VICTIM = "a"
LABELS = {"a": (0, 0, 0, 0, 0, 1, 1, 1, 2, 2), "b": (0, 1, 1, 2), "c": (0, 0, 2), "d": (1, 1, 2, 2, 2)}

SEEDS = 5
"""draws of the noise over which an attack on a single step is averaged"""


def noisy(epsilon: float) -> Protection:
    """Differential privacy as in docs/privacy.md."""
    return {"privacy": {"epsilon": epsilon, "delta": 1e-3}, "net": {"batch_norm": "group"}}


NOISY = noisy(1.0)
MASKED: Protection = {"exchange": {"secure": True}}
"""secure aggregation"""
ADAPTIVE: Protection = {"train": {"optimizer": "adam"}}
"""what a site gets that allows adaptive optimisers only"""


@cache
def _folder() -> Path:
    return Path(tempfile.mkdtemp(prefix="equipoise-attacks-"))


@cache
def _data() -> Any:
    return write_federation(_folder() / "data", LABELS)


def counts_found(protection: Protection = NONE) -> float:
    """Share of classes whose images at one site are counted exactly, from the bias of the head."""
    true, right = [LABELS[VICTIM].count(c) for c in range(3)], 0
    seeds = range(SEEDS if "privacy" in protection else 1)
    for seed in seeds:
        train = SGD | {"lr": RATE, "batch_size": 64, "seed": seed}
        seen = kit.watched(kit.config_of(_data() | {"train": train}, protection), kit.zeros)
        right += sum(a == b for a, b in zip(kit.counts(seen[VICTIM], RATE), true, strict=True))
    return right / (len(true) * len(seeds))


def images_found(protection: Protection = NONE) -> float:
    """Share of one site's images that its update shows, from one step on a batch of ten."""
    train = SGD | {"lr": RATE, "batch_size": 64}
    config = kit.config_of(_data() | {"train": train, "net": {"name": LEAKY}}, protection)
    host = kit.host_of(config)
    true, _ = kit.images_of(host, VICTIM)
    seen = kit.watched(config, lambda model: kit.imprinted(model, kit.images_of(host, "d")[0]))
    found = kit.images_in(seen[VICTIM], true.shape[1:])
    best = [max((kit.likeness(one, image) for one in found), default=0.0) for image in true]
    return sum(value > CLEAR for value in best) / len(best)


def members_found(protection: Protection = NONE, seed: int = 0) -> float:
    """How well the final model's loss tells training images from others, as an AUC."""
    config, model = trained(protection, seed)
    return kit.told_apart(kit.losses(config, model, "train"), kit.losses(config, model, "test"))


def trained(protection: Protection, seed: int) -> tuple[Config, kit.Model]:
    """A model that has seen half of all images, 143 of them, 64 times each: the run and its result.

    The other half is drawn alike. The split that the data bring would not do: its test images have more of
    the rare classes, and the class alone would tell them apart (AUC 0.57).
    """
    split = {"folds": 2, "fold": 0, "validation": 0.0}
    sections = {
        "data": {"kind": "phantom", "scale": 0.012, "image_size": 16, "split": split},
        "partition": {"kind": "iid", "sites": 3},
        "train": {"rounds": 8, "epochs": 8, "batch_size": 8, "lr": 0.005, "views": ["eval"], "seed": seed},
        "net": {"name": "small-cnn", "batch_norm": "group"},
        "evaluate": {"every": 8},
    }
    config = kit.config_of(sections, protection)
    with tempfile.TemporaryDirectory() as folder:
        return config, run(config, Path(folder) / "run").server["model"]


def site_found(protection: Protection = NONE, later: int = 0) -> float:
    """How like one site's update the difference of two sums is in which it is and is not (cosine).

    The second sum is asked for so many rounds later, with the same model; 0 where the sites refuse it.
    """
    try:
        found = by_difference(protection, later)
    except SiteError:
        return 0.0
    with Sums(NONE) as sums:
        alone = sums.mean(sums.everyone[:1], 0)[0]
    one, two = (torch.cat([tree[name].flatten().double() for name in alone]) for tree in (found, alone))
    return float(torch.nn.functional.cosine_similarity(one, two, dim=0))


def by_difference(protection: Protection, later: int) -> kit.Model:
    """One site's update, as the coordinator computes it from a sum without the site and one with it."""
    with Sums(protection) as sums:
        fewer, more = sums.mean(sums.everyone[1:], 0), sums.mean(sums.everyone, later)
    return kit.difference(fewer[0], more[0], (fewer[1], more[1]))


class Greedy(Masking):
    """A coordinator that asks again for another set of sites, whatever the sites say of an earlier sum."""

    def _dealt(self, adverts: Sequence[Advert], replies: Mapping[str, Shared]) -> Dealt:
        return replace(super()._dealt(adverts, replies), bound=None)


class Sums:
    """A coordinator that asks any set of sites to train, in any round, and adds up their answers."""

    def __init__(self, protection: Protection) -> None:
        train = SGD | {"lr": 0.1, "batch_size": 64, "rounds": 2, "schedule": "constant"}
        self._config = config = kit.config_of(_data() | {"train": train}, protection)
        self._host = kit.host_of(config)
        self.everyone = tuple(self._host.sites)
        self._model = {name: self._host.initial[name] for name in self._host.shared}
        dataset = material(config)
        self._ledger = prepare(config, dataset.facts, dataset).ledger
        members = Members(self.everyone, 0, config.exchange) if config.exchange.secure else None
        self._engine = Serial(self._host, members)
        self._folder = tempfile.TemporaryDirectory()
        self._journal = Journal(Path(self._folder.name) / "journal.jsonl")
        self._masking = Greedy(self._engine, self._journal.write) if members else None

    def __enter__(self) -> Sums:
        return self

    def __exit__(self, *error: object) -> None:
        self._journal.close()
        self._folder.cleanup()

    def mean(self, sites: tuple[str, ...], round: int) -> tuple[kit.Model, float]:
        """The mean of the sites' updates and what they weigh together."""
        kind = Exchange if self._masking is None else partial(Masked, masking=self._masking)
        talk = kind(
            engine=self._engine,
            ledger=self._ledger,
            limits=self._config.exchange,
            journal=self._journal,
            sites=sites,
            everyone=self.everyone,
            round=round,
            rounds=2,
            seed=0,
            writes=False,
        )
        answers = talk(self._config.method.train, model=self._model)
        return answers["delta"], float(answers.weight["delta"])


TRIED: dict[str, dict[str, Callable[[], float]]] = {
    "counts_found": {
        "none": counts_found,
        "adaptive optimisers only": partial(counts_found, ADAPTIVE),
        "differential privacy, ε = 8": partial(counts_found, noisy(8.0)),
        "differential privacy, ε = 1": partial(counts_found, NOISY),
        "secure aggregation": partial(counts_found, MASKED),
    },
    "images_found": {
        "none": images_found,
        "differential privacy, ε = 8": partial(images_found, noisy(8.0)),
        "secure aggregation": partial(images_found, MASKED),
    },
    "members_found": {
        "none": members_found,
        "differential privacy, ε = 8": partial(members_found, noisy(8.0)),
    },
    "site_found": {
        "none": site_found,
        "secure aggregation, both sums in one round": partial(site_found, MASKED),
        "secure aggregation, sums of two rounds": partial(site_found, MASKED, later=1),
    },
}
"""what `python -m tests.attacks` tries, by attack and protection"""
