"""How far each attack gets, as one number, under any protection that a config can name.

`python -m tests.attacks` prints them; docs/privacy.md has what it printed.
"""

from __future__ import annotations

import tempfile
from contextlib import closing
from functools import cache
from pathlib import Path
from typing import Any

import torch
from tests.attacks import kit
from tests.attacks.kit import NONE, SGD, Protection

from equipoise import config as configs
from equipoise.engine import Serial
from equipoise.exchange import ExchangeOptions
from equipoise.running import prepare, run
from equipoise.server import Exchange, Journal
from equipoise.setup import material
from equipoise.testing import write_federation

LEAKY = f"{Path(__file__).with_name('leaky.py')}:Pixels"
RATE = 1.0
CLEAR = 0.95
"""a correlation from which on an image counts as found"""
VICTIM = "a"
LABELS = {"a": (0, 0, 0, 0, 0, 1, 1, 1, 2, 2), "b": (0, 1, 1, 2), "c": (0, 0, 2), "d": (1, 1, 2, 2, 2)}

NOISY: Protection = {
    "privacy": {"epsilon": 8.0, "delta": 1e-3},
    "net": {"batch_norm": "group"},
}
"""differential privacy as in docs/privacy.md"""
MASKED: Protection = {"exchange": {"secure": True}}
"""secure aggregation"""
ADAPTIVE: Protection = {"train": {"optimizer": "adam"}}
"""what a site gets that allows adaptive optimisers only"""


def known(protection: Protection) -> bool:
    """Whether this version has it."""
    fields = ExchangeOptions.model_fields
    return all(
        name in configs.SECTIONS and (name != "exchange" or set(changes) <= set(fields))
        for name, changes in protection.items()
    )


@cache
def _folder() -> Path:
    return Path(tempfile.mkdtemp(prefix="equipoise-attacks-"))


@cache
def _data() -> Any:
    return write_federation(_folder() / "data", LABELS)


def counts_found(protection: Protection = NONE) -> float:
    """Share of classes whose images at one site are counted exactly, from the bias of the head."""
    train = SGD | {"lr": RATE, "batch_size": 64}
    config = kit.config_of(_data() | {"train": train}, protection)
    seen = kit.watched(config, kit.zeros)
    found = kit.counts(seen[VICTIM], RATE)
    true = [LABELS[VICTIM].count(c) for c in range(3)]
    return sum(a == b for a, b in zip(found, true, strict=True)) / len(true)


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


def members_found(protection: Protection = NONE) -> float:
    """How well the final model's loss tells training images from others, as an AUC."""
    sections = {
        "data": {"kind": "phantom", "scale": 0.008, "image_size": 16, "split": {"validation": 0.0}},
        "partition": {"kind": "iid", "sites": 3},
        "train": {"rounds": 10, "epochs": 8, "batch_size": 16, "lr": 0.003, "views": ["eval"]},
        "net": {"name": "small-cnn", "batch_norm": "group"},
        "evaluate": {"every": 10},
    }
    config = kit.config_of(sections, protection)
    with tempfile.TemporaryDirectory() as folder:
        model = run(config, Path(folder) / "run").server["model"]
    return kit.told_apart(kit.losses(config, model, "train"), kit.losses(config, model, "test"))


def site_found(protection: Protection = NONE) -> float:
    """How like one site's update the difference of two sums is in which it is and is not (cosine)."""
    config = kit.config_of(_data() | {"train": SGD | {"lr": 0.1, "batch_size": 64}}, protection)
    dataset = material(config)
    plan = prepare(config, dataset.facts, dataset)
    host = kit.host_of(config)
    everyone = tuple(host.sites)
    model = {name: host.initial[name] for name in host.shared}
    with tempfile.TemporaryDirectory() as folder, closing(Journal(Path(folder) / "journal.jsonl")) as journal:

        def asked(sites: tuple[str, ...]) -> tuple[kit.Model, float]:
            talk = Exchange(
                engine=Serial(host),
                ledger=plan.ledger,
                limits=config.exchange,
                journal=journal,
                sites=sites,
                everyone=everyone,
                round=0,
                rounds=1,
                seed=0,
                writes=False,
            )
            found = talk(config.method.train, model=model)
            return found["delta"], float(found.weight["delta"])

        fewer, more, alone = asked(everyone[1:]), asked(everyone), asked(everyone[:1])
    found = kit.difference(fewer[0], more[0], (fewer[1], more[1]))
    one, two = (torch.cat([x.flatten().double() for x in tree.values()]) for tree in (found, alone[0]))
    return float(torch.nn.functional.cosine_similarity(one, two, dim=0))


TRIED: dict[str, dict[str, Protection]] = {
    "counts_found": {
        "none": NONE,
        "adaptive optimisers only": ADAPTIVE,
        "differential privacy": NOISY,
        "secure aggregation": MASKED,
    },
    "images_found": {
        "none": NONE,
        "differential privacy": NOISY,
        "secure aggregation": MASKED,
    },
    "members_found": {"none": NONE, "differential privacy": NOISY},
    "site_found": {"none": NONE},
}
"""what `python -m tests.attacks` tries"""
