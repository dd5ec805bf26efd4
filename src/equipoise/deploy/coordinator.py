"""The coordinator's run: the same loop as a simulation, with the sites behind Flower and no image in sight.

What it must know of the data (classes, image size, how many images) the sites say when they accept the
invitation. The answer is kept in `roster.json`, so that a run that is gone on with has the same sites in the
same order.
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
from equipoise.config import Config, resolve, text_of_run
from equipoise.data.samples import Samples
from equipoise.deploy.card import SPLITS, Card, rows
from equipoise.deploy.policy import MIN_SITES
from equipoise.deploy.site import OURS
from equipoise.engine.flower.fleet import Fleet, Grid, Tell, Tickets
from equipoise.errors import ConfigError, EquipoiseError, SiteError, StorageError
from equipoise.evaluate.plausible import Held
from equipoise.exchange.codec import shown
from equipoise.keeping import read_json, write_json
from equipoise.partition import Holding
from equipoise.running import Result, Watch, claim, make_ledger, one_thread, train
from equipoise.server import Journal, countable, drawn
from equipoise.setup import Material, fits, make_host
from equipoise.text import parse_toml
from equipoise.trust import only, recorded

ROSTER = "roster.json"


@dataclass(frozen=True)
class Roster(Material):
    """The material of a run whose data is elsewhere."""

    cards: Mapping[str, Card]

    @property
    def sizes(self) -> dict[str, int]:
        return {site: card.images["train"] for site, card in self.cards.items()}

    def counts(self) -> Tensor:
        return torch.tensor([[n or 0 for n in card.counts["train"]] for card in self.cards.values()]).sum(0)

    def held(self) -> dict[str, dict[str, Held]]:
        """As the sites said when they joined."""
        return {
            site: {split: Held(card.images[split], card.counts[split]) for split in SPLITS}
            for site, card in self.cards.items()
        }

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
                    split: {"images": card.images[split], "counts": [n or 0 for n in card.counts[split]]}
                    for split in SPLITS
                }
                for site, card in self.cards.items()
            },
        }


def plan(config: Config, folder: Path, keys: Mapping[str, bytes]) -> Config:
    """Make a run folder for these sites; the config as it is run there. A folder that was begun is gone on
    with."""
    config = federated(config)
    countable(len(keys))
    claim(folder, config)
    path = folder / "federation.json"
    if not path.exists():
        table = {
            "run": secrets.token_hex(8),
            "keys": {site: base64.b64encode(key).decode() for site, key in keys.items()},
        }
        write_json(path, table)
    read_plan(folder)
    if (folder / ROSTER).exists():
        read_roster(folder / ROSTER)
    return config


def federated(config: Config) -> Config:
    """The config without what only a simulation can do.

    Sums are over three sites at least, unless it says how many.
    """
    if config.train.augment.normalise == "data":
        raise ConfigError(
            'train.augment.normalise = "data" needs all images in one place: use "imagenet", "half" or '
            "numbers"
        )
    if config.evaluate.metrics:
        raise ConfigError(
            "evaluate.metrics need the scores of single images, which no site of a federation sends: remove "
            "them"
        )
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
    config = resolve(parse_toml(text_of_run(folder)), allow=only(recorded(folder)))
    run, keys = read_plan(folder)
    journal = Journal(folder / "journal.jsonl")
    options = config.engine
    try:
        fleet = Fleet(
            grid,
            run,
            keys,
            journal.write,
            deadline=options.deadline,
            retries=options.retries,
            tickets=Tickets(folder / "tickets.json"),
            head=lambda: journal.head,
        )
        with one_thread():
            stuff = roster(config, folder, fleet, tuple(sorted(keys)))
            fits(config, stuff.samples.task)
            host = make_host(config, stuff, folder / "unused")
            ledger = make_ledger(config, host, stuff)
            joining = rows(stuff.samples.classes, stuff.samples.images.shape[1:])
            write_json(folder / "data.json", stuff.census())
            watch(
                "begin",
                {"sites": stuff.sizes, "classes": stuff.samples.classes, "rounds": config.train.rounds},
            )
            return train(config, stuff, host, ledger, fleet, journal, folder, watch, joining)
    except EquipoiseError as error:
        journal.write("stopped", reason=str(error))
        raise
    finally:
        journal.close()


@contextmanager
def alone(folder: Path, patience: float = 30.0) -> Iterator[None]:
    """One coordinator per run folder: a run that is submitted twice, or again while its killed predecessor
    still ends, must wait."""
    end = time.monotonic() + patience
    with open(folder / "lock", "w") as file:
        while True:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                if time.monotonic() >= end:
                    raise StorageError(
                        f"another process works on the run in {folder}: stop it first, or wait for it"
                    ) from None
                time.sleep(0.2)
        yield


def read_plan(folder: Path) -> tuple[str, dict[str, bytes]]:
    """The run's name and the public key of every site."""
    path = folder / "federation.json"
    try:
        table = read_json(path, "restore it, or submit the run again into a new folder")
        return str(table["run"]), {site: base64.b64decode(key) for site, key in table["keys"].items()}
    except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise StorageError(f"{path} is missing or damaged: submit the run again into a new folder") from error


def read_roster(path: Path) -> dict[str, Any]:
    """What the sites of a run that was begun said they hold."""
    fix = "restore it, or submit the run again into a new folder"
    try:
        given: dict[str, Any] = read_json(path, fix)["sites"]
        cards = [Card.model_validate(card) for card in given.values()]
    except (ValidationError, LookupError, AttributeError) as error:
        raise StorageError(f"{path} is damaged: {fix}") from error
    if not cards:
        raise StorageError(f"{path} is damaged: {fix}")
    return given


def roster(config: Config, folder: Path, fleet: Fleet, sites: tuple[str, ...]) -> Roster:
    """The sites of the run and what they hold: asked once, then kept. Who does not join now is not in the
    run."""
    path = folder / ROSTER
    begun = path.exists()
    if begun:
        given = read_roster(path)
    else:
        table = {key: value for key, value in config.table().items() if key not in OURS}
        given = fleet.invite({"config": table, "version": __version__}, sites, config.engine.patience)
    cards = _usable({site: given[site] for site in sites if site in given}, fleet.tell)
    given = {site: given[site] for site in cards}
    if len(cards) < max(1, config.exchange.min_sites):
        raise SiteError(
            f"only {len(cards)} of {len(sites)} sites joined, {max(1, config.exchange.min_sites)} are "
            f"needed; "
            "the journal says who did not and why"
        )
    each = drawn(config.train.participation, len(cards))
    if each < config.exchange.min_sites:
        raise SiteError(
            f"train.participation = {config.train.participation:g} draws {each} of {len(cards)} sites for "
            f"a round, and "
            f"exchange.min_sites asks for {config.exchange.min_sites}: raise the one or lower the other"
        )
    if not begun:
        write_json(path, {"sites": given})
    first = next(iter(cards.values()))
    width = len(first.classes)
    samples = Samples(
        images=np.zeros((0, *first.shape), dtype=np.uint8),
        labels=np.zeros(0, dtype=np.int64)
        if first.task == "single"
        else np.zeros((0, width), dtype=np.float32),
        classes=first.classes,
        task=first.task,
        ids=np.zeros(0, dtype=str),
        fingerprint=hashlib.sha256(json.dumps(given, sort_keys=True).encode()).hexdigest(),
    )
    none, mask = np.zeros(0, dtype=np.int64), np.ones(width, dtype=bool)
    partial = any(card.partial for card in cards.values())
    holdings = tuple(Holding(site, none, none, none, mask if partial else None) for site in cards)
    return Roster(samples, holdings, cards)


def _usable(given: Mapping[str, Any], tell: Tell) -> dict[str, Card]:
    """The cards of the sites a run can begin with. Of the others it is told why they are left out."""
    cards = {}
    for site, table in given.items():
        try:
            cards[site] = Card.model_validate(table)
        except ValidationError as error:
            first = error.errors(include_url=False, include_input=False)[0]
            place = ".".join(map(str, first["loc"]))
            what = (
                f"'{shown(place)}' is not in order" if place else first["msg"].removeprefix("Value error, ")
            )
            reason = f"site '{site}' does not say in order what it holds: {what}; it needs the same Equipoise"
            tell("left out", site=site, reason=reason)
    return _agreed(cards, tell)


def _agreed(cards: Mapping[str, Card], tell: Tell) -> dict[str, Card]:
    """The cards of the most sites that mean the same by class 3 and have images of one size."""
    alike: dict[tuple[Any, ...], list[str]] = {}
    for site, card in cards.items():
        alike.setdefault((card.task, card.classes, card.shape), []).append(site)
    groups = sorted(alike.values(), key=len, reverse=True)
    for others in groups[1:]:
        first = groups[0][0]
        reasons = {site: _difference(first, cards[first], site, cards[site]) for site in others}
        if len(others) == len(groups[0]):
            raise SiteError(reasons[others[0]])
        for site, reason in reasons.items():
            tell("left out", site=site, reason=reason)
    return {site: card for site, card in cards.items() if site in groups[0]} if groups else {}


def _difference(first: str, one: Card, site: str, card: Card) -> str:
    what = next(what for what in ("task", "classes", "shape") if getattr(one, what) != getattr(card, what))
    return (
        f"sites '{first}' and '{site}' do not agree on their {what} ({_short(getattr(one, what))} and "
        f"{_short(getattr(card, what))}): name the same classes in data.classes in the same order, and the "
        f"same "
        "data.image_size, at every site"
    )


def _short(value: Any) -> str:
    return shown(", ".join(map(str, value)) if isinstance(value, tuple) else str(value))
