"""The coordinator's run: the same loop as a simulation, with the sites behind Flower and no image in sight.

What it must know of the data (classes, image size, how many images) the sites say when they accept the invitation. The answer is
kept in `roster.json`, so that a run that is gone on with has the same sites in the same order.
"""

from __future__ import annotations

import base64
import fcntl
import hashlib
import json
import secrets
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from pydantic import ValidationError
from torch import Tensor

from equipoise import __version__
from equipoise.config import Config, read
from equipoise.data.samples import Samples
from equipoise.deploy.card import SPLITS, Card, rows
from equipoise.deploy.policy import MIN_SITES
from equipoise.deploy.site import OURS
from equipoise.engine.flower.fleet import Fleet, Grid
from equipoise.errors import ConfigError, EquipoiseError, SiteError, StorageError
from equipoise.opening import read_regular
from equipoise.partition import Holding
from equipoise.running import Result, Watch, claim, make_ledger, one_thread, train
from equipoise.server import Journal, drawn
from equipoise.server.checkpoint import write_atomic
from equipoise.setup import Material, fits, make_host
from equipoise.trust import only, recorded


@dataclass(frozen=True)
class Roster(Material):
    """The material of a run whose data is elsewhere."""

    cards: Mapping[str, Card]

    @property
    def sizes(self) -> dict[str, int]:
        return {site: card.images["train"] for site, card in self.cards.items()}

    def counts(self) -> Tensor:
        return torch.tensor([[n or 0 for n in card.counts["train"]] for card in self.cards.values()]).sum(0)

    def census(self) -> dict[str, Any]:
        """What the report says of the data, in the form of `report.census`."""
        counts = self.counts().tolist()
        height, width, channels = self.samples.images.shape[1:]
        return {
            "task": self.samples.task,
            "classes": list(self.samples.classes),
            "splits": list(SPLITS),
            "images": sum(card.images[split] for card in self.cards.values() for split in SPLITS),
            **{"height": height, "width": width, "channels": channels},
            "train": counts,
            "imbalance": max(counts) / min(counts) if min(counts) else None,
            "groups": None,
            "sites": {
                site: {
                    split: {"images": card.images[split], "counts": [n or 0 for n in card.counts[split]]} for split in SPLITS
                }
                for site, card in self.cards.items()
            },
        }


def plan(config: Config, folder: Path, keys: Mapping[str, bytes]) -> Config:
    """Make a run folder for these sites; the config as it is run there. A folder that was begun is gone on with."""
    config = federated(config)
    claim(folder, config)
    path = folder / "federation.json"
    if not path.exists():
        table = {"run": secrets.token_hex(8), "keys": {site: base64.b64encode(key).decode() for site, key in keys.items()}}
        write_atomic(path, json.dumps(table, indent=1).encode())
    return config


def federated(config: Config) -> Config:
    """The config without what only a simulation can do.

    Sums are over three sites at least, unless it says how many.
    """
    if config.train.augment.normalise == "data":
        raise ConfigError('train.augment.normalise = "data" needs all images in one place: use "imagenet", "half" or numbers')
    exchange = config.exchange
    if "min_sites" not in exchange.model_fields_set:
        exchange = exchange.model_copy(update={"min_sites": MIN_SITES})
    evaluate = config.evaluate.model_copy(update={"exact": False, "attributes": False})
    return replace(config, evaluate=evaluate, exchange=exchange)


def coordinate(grid: Grid, folder: Path, watch: Watch | None = None) -> Result:
    """Run (or go on with) the federation planned in a folder."""
    with alone(folder):
        return _coordinate(grid, folder, watch or (lambda event, facts: None))


def _coordinate(grid: Grid, folder: Path, watch: Watch) -> Result:
    config, (run, keys) = read(folder / "config.toml", allow=only(recorded(folder))), read_plan(folder)
    journal = Journal(folder / "journal.jsonl")
    options = config.engine
    fleet = Fleet(grid, run, keys, journal.write, deadline=options.deadline, retries=options.retries)
    try:
        with one_thread():
            stuff = roster(config, folder, fleet, tuple(sorted(keys)))
            fits(config, stuff.samples.task)
            host = make_host(config, stuff, folder / "unused")
            ledger = make_ledger(config, host, stuff)
            told = rows(stuff.samples.classes, stuff.samples.images.shape[1:]) + ledger.rows()
            write_atomic(folder / "ledger.json", json.dumps(told, indent=1).encode())
            write_atomic(folder / "data.json", json.dumps(stuff.census(), indent=1).encode())
            watch("begin", {"sites": stuff.sizes, "classes": stuff.samples.classes, "rounds": config.train.rounds})
            return train(config, stuff, host, ledger, fleet, journal, folder, watch)
    except EquipoiseError as error:
        journal.write("stopped", reason=str(error))
        raise
    finally:
        journal.close()


@contextmanager
def alone(folder: Path, patience: float = 30.0) -> Iterator[None]:
    """One coordinator per run folder: a run that is submitted twice, or again while its killed predecessor still ends, must wait."""
    end = time.monotonic() + patience
    with open(folder / "lock", "w") as file:
        while True:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                if time.monotonic() >= end:
                    raise StorageError(f"another process works on the run in {folder}: stop it first, or wait for it") from None
                time.sleep(0.2)
        yield


def read_plan(folder: Path) -> tuple[str, dict[str, bytes]]:
    """The run's name and the public key of every site."""
    path = folder / "federation.json"
    try:
        table = json.loads(read_regular(path))
        return str(table["run"]), {site: base64.b64decode(key) for site, key in table["keys"].items()}
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise StorageError(f"{path} is missing or damaged: submit the run again into a new folder") from error


def roster(config: Config, folder: Path, fleet: Fleet, sites: tuple[str, ...]) -> Roster:
    """The sites of the run and what they hold: asked once, then kept. Who does not join now is not in the run."""
    path = folder / "roster.json"
    begun = path.exists()
    if begun:
        given = json.loads(read_regular(path))
    else:
        table = {key: value for key, value in config.table().items() if key not in OURS}
        given = fleet.invite({"config": table, "version": __version__}, sites, config.engine.patience)
    cards = {site: _card(site, given[site]) for site in sites if site in given}
    if len(cards) < max(1, config.exchange.min_sites):
        raise SiteError(
            f"only {len(cards)} of {len(sites)} sites joined, {max(1, config.exchange.min_sites)} are needed; "
            "the journal says who did not and why"
        )
    each = drawn(config.train.participation, len(cards))
    if each < config.exchange.min_sites:
        raise SiteError(
            f"train.participation = {config.train.participation:g} draws {each} of {len(cards)} sites for a round, and "
            f"exchange.min_sites asks for {config.exchange.min_sites}: raise the one or lower the other"
        )
    _agree(cards)
    if not begun:
        write_atomic(path, json.dumps(given, sort_keys=True).encode())
    first = next(iter(cards.values()))
    width = len(first.classes)
    samples = Samples(
        images=np.zeros((0, *first.shape), dtype=np.uint8),
        labels=np.zeros(0, dtype=np.int64) if first.task == "single" else np.zeros((0, width), dtype=np.float32),
        classes=first.classes,
        task=first.task,
        ids=np.zeros(0, dtype=str),
        fingerprint=hashlib.sha256(json.dumps(given, sort_keys=True).encode()).hexdigest(),
    )
    none, mask = np.zeros(0, dtype=np.int64), np.ones(width, dtype=bool)
    partial = any(card.partial for card in cards.values())
    holdings = tuple(Holding(site, none, none, none, mask if partial else None) for site in cards)
    return Roster(samples, holdings, cards)


def _card(site: str, given: Any) -> Card:
    try:
        card = Card.model_validate(given)
        if set(card.images) != set(SPLITS):
            place = "images"
        elif set(card.counts) != set(SPLITS) or {len(told) for told in card.counts.values()} != {len(card.classes)}:
            place = "counts"
        else:
            return card
    except ValidationError as error:
        place = ".".join(map(str, error.errors(include_url=False)[0]["loc"]))
    raise SiteError(f"site '{site}' does not say in order what it holds: '{place}'; it needs the same Equipoise")


def _agree(cards: Mapping[str, Card]) -> None:
    """All sites must mean the same by class 3, and have images of one size."""
    (first, one), *others = cards.items()
    for site, card in others:
        for what in ("task", "classes", "shape"):
            mine, theirs = getattr(one, what), getattr(card, what)
            if mine != theirs:
                raise SiteError(
                    f"sites '{first}' and '{site}' do not agree on their {what} ({_short(mine)} and {_short(theirs)}): "
                    "name the same classes in data.classes in the same order, and the same data.image_size, at every site"
                )


def _short(value: Any) -> str:
    return ", ".join(map(str, value)) if isinstance(value, tuple) else str(value)
