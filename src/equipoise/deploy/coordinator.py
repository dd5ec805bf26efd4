"""The coordinator's run: the same loop as a simulation, with the sites behind Flower and no image in sight.

What it must know of the data (classes, how images are prepared, how many there are) the sites say when they
accept the invitation. The answer is kept in `roster.json`, so that a run that is resumed has the same sites
in the same order. Its config says `data.kind = "sites"`.
"""

from __future__ import annotations

import base64
import hashlib
import json
import secrets
from collections.abc import Mapping
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from equipoise.blueprint import Input
from equipoise.config import DEFAULTS, Config, resolve
from equipoise.data import SitesData
from equipoise.deploy.card import SPLITS, Card, rows
from equipoise.deploy.late import Late
from equipoise.deploy.policy import MIN_SITES
from equipoise.deploy.site import OURS, apart
from equipoise.engine.flower.fleet import FlowerEngine, Grid, Tell, Tickets
from equipoise.errors import ConfigError, EquipoiseError, SiteError, StorageError
from equipoise.exchange.codec import shown
from equipoise.initial import chosen
from equipoise.partition import Census, Column, Facts, Held
from equipoise.run_folder import AGAIN, CONFIG, JOURNAL, PLAN, ROSTER, TICKETS, RunFolder
from equipoise.running import Plan, Result, Watch, claim, one_thread, prepare, train
from equipoise.server import Journal, countable, drawn
from equipoise.setup import LOOK, fits
from equipoise.site import START
from equipoise.text import parse_toml
from equipoise.trust import of_folder, only, recorded
from equipoise.version import __version__


def plan(
    config: Config, folder: Path, keys: Mapping[str, bytes], rehearsal: Mapping[str, Any] | None = None
) -> Config:
    """Make a run folder for these sites; the config as it is run there. A folder that was begun is resumed.

    `rehearsal` is the kind and name of the data that one machine divides among the sites of a rehearsal.
    """
    config = at_sites(federated(config))
    countable(len(keys))
    run = RunFolder(folder)
    claim(run, config)
    if not run.has(PLAN):
        table = {
            "run": secrets.token_hex(8),
            "keys": {site: base64.b64encode(key).decode() for site, key in keys.items()},
        } | ({} if rehearsal is None else {"rehearsal": dict(rehearsal)})
        run.write(PLAN, table)
    read_plan(run)
    if run.has(ROSTER):
        read_roster(run)
    return config


def federated(config: Config) -> Config:
    """The config without what only a simulation can do.

    Sums are over three sites at least, unless it says how many.
    """
    apart(config)
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


def at_sites(config: Config) -> Config:
    """The config without data of its own: the sites have theirs, and say what a run must know of them."""
    name = config.data.name
    data = SitesData(kind="sites", name=name) if name else SitesData(kind="sites")
    return replace(config, data=data, partition=Column())


def unused(config: Config) -> list[str]:
    """A sentence for each section of a config that a federation does not use, if it says anything."""
    data, partition = config.data, config.partition
    usual = {"data": (DEFAULTS["data"]["kind"], "sites"), "partition": (DEFAULTS["partition"]["kind"],)}
    return [
        f"[{name}] of the config is not used: the sites' own images are, as their site.toml describes them"
        for name, section in (("data", data), ("partition", partition))
        if section.kind not in usual[name] or section.model_fields_set - {"kind", "name"}
    ]


def coordinate(grid: Grid, folder: Path, watch: Watch | None = None) -> Result:
    """Run, or resume, the federation planned in a folder."""
    run = RunFolder(folder)
    with run.alone(), closing(Journal(run / JOURNAL)) as journal:
        try:
            return _coordinate(grid, run, journal, watch or (lambda event, facts: None))
        except EquipoiseError as error:
            journal.write("stopped", reason=str(error))
            raise


def _coordinate(grid: Grid, folder: RunFolder, journal: Journal, watch: Watch) -> Result:
    config = resolve(parse_toml(folder.text(CONFIG)), allow=only(recorded(folder)))
    config = replace(config, allow=of_folder(folder))  # for trackers: `plan` has noted them as trusted
    run, keys = read_plan(folder)
    options = config.engine
    fleet = FlowerEngine(
        grid,
        run,
        keys,
        journal.write,
        deadline=options.deadline,
        retries=options.retries,
        tickets=Tickets(folder / TICKETS),
        head=lambda: journal.head,
    )
    with one_thread():
        cards = roster(config, folder, fleet, tuple(sorted(keys)))
        facts = facts_of(cards)
        fits(config, facts.task)
        config.train.try_views(facts.shape[2], facts.shape[0])
        told = {name for card in cards.values() for name in card.model_fields_set}
        joining = rows(facts.classes, facts.shape, told)
        begun = prepare(config, facts)
        startable(begun)
        same_frozen(begun, cards)
        fleet.marks = begun.blueprint.marks
        return train(begun, fleet, journal, folder, watch, joining=joining)


def startable(plan: Plan) -> None:
    """Refuse to start from another run where that sets tensors that stay at the sites: nobody sends those."""
    config, blueprint = plan.config, plan.blueprint
    tensors = chosen(plan.built.net, blueprint, config.train, config.base)
    kept = [name for name in (*blueprint.private, *blueprint.frozen) if name in tensors]
    if kept:
        raise ConfigError(
            f"train.init sets '{kept[0]}', which stays at the sites with this method and network, and a site "
            f'reads no file of the coordinator\'s: use train.init_parts = "body" if that leaves it out, or '
            f"net.weights, which sites can have too"
        )


def same_frozen(plan: Plan, cards: Mapping[str, Card]) -> None:
    """Refuse a run whose sites have other frozen tensors than we: nobody sends those."""
    for site, card in cards.items():
        if card.frozen != plan.blueprint.frozen_sha256:
            raise SiteError(
                f"site '{site}' has other frozen tensors than the coordinator: every site needs the same "
                "file of weights, and the same versions of Equipoise and torch"
            )


def read_plan(folder: RunFolder) -> tuple[str, dict[str, bytes]]:
    """The run's name and the public key of every site."""
    try:
        table = folder.read(PLAN)
        return str(table["run"]), {site: base64.b64decode(key) for site, key in table["keys"].items()}
    except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise StorageError(f"{folder / PLAN} is missing or damaged: {AGAIN}") from error


def read_roster(folder: RunFolder) -> dict[str, Any]:
    """What the sites of a run that was begun said they hold."""
    damaged = StorageError(f"{folder / ROSTER} is damaged: {folder.fix(ROSTER)}")
    try:
        given: dict[str, Any] = folder.read(ROSTER)["sites"]
        cards = [Card.model_validate(card) for card in given.values()]
    except (ValidationError, LookupError, AttributeError) as error:
        raise damaged from error
    if not cards:
        raise damaged
    return given


def roster(config: Config, folder: RunFolder, fleet: FlowerEngine, sites: tuple[str, ...]) -> dict[str, Card]:
    """The sites of the run and what they hold: asked once, then kept. Who does not join now is not in the
    run."""
    begun = folder.has(ROSTER)
    if begun:
        given = read_roster(folder)
    else:
        table = {key: value for key, value in config.table().items() if key not in OURS}
        del table["evaluate"]["trackers"]
        table["train"] = {key: value for key, value in table["train"].items() if key not in START}
        late = Late(folder, sites)
        given = fleet.invite({"config": table, "version": __version__}, sites, config.engine.patience, late)
        sites = tuple(sorted({*sites, *late.keep()}))
    cards = _usable({site: given[site] for site in sites if site in given}, fleet.tell)
    least = config.exchange.least
    if len(cards) < least:
        raise SiteError(
            f"only {len(cards)} of {len(sites)} sites joined, {least} are "
            f"needed; the journal says who did not and why"
        )
    each = drawn(config.train.participation, len(cards))
    if each < least:
        raise SiteError(
            f"train.participation = {config.train.participation:g} draws {each} of {len(cards)} sites for a "
            f"round, and exchange.min_sites asks for {least}: raise the one or lower the "
            f"other"
        )
    if not begun:
        for site, card in cards.items():
            if sentence := withholding(site, card):
                fleet.tell("withheld", site=site, rule="small_cell", reason=sentence)
        folder.write(ROSTER, {"sites": {site: given[site] for site in cards}})
    return cards


def withholding(site: str, card: Card) -> str:
    """What a site does not tell as it has too few images, in words; nothing where it tells all."""
    parts = [
        f"of its {split} images {', '.join(shown(card.classes[number]) for number in numbers)}"
        for split, numbers in card.withheld.items()
        if numbers
    ]
    if not parts:
        return ""
    return (
        f"policy rule 'small_cell': site '{site}' tells nothing of classes with fewer than {card.small_cell} "
        f"images ({'; '.join(parts)}); it trains on them, and tests of them lack its images"
    )


def facts_of(cards: Mapping[str, Card]) -> Facts:
    """What the run must know of its data, as the sites said when they joined."""
    first = next(iter(cards.values()))
    tables = {site: card.model_dump(mode="json", exclude_defaults=True) for site, card in cards.items()}
    sites = {
        site: {
            split: Held(
                images=card.images[split],
                counts=card.counts[split],
                known=None if card.known is None else card.known[split],
                withheld=card.withheld.get(split, ()),
            )
            for split in SPLITS
        }
        for site, card in cards.items()
    }
    return Facts(
        task=first.task,
        classes=first.classes,
        shape=first.shape,
        fingerprint=hashlib.sha256(json.dumps(tables, sort_keys=True).encode()).hexdigest(),
        census=Census.of(sites, {site: card.small_cell for site, card in cards.items()}),
        partial=any(card.partial for card in cards.values()),
        look=first.input.model_dump(include=LOOK),
    )


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
    """The cards of the most sites that mean the same by class 3 and prepare images alike."""
    alike: dict[tuple[Any, ...], list[str]] = {}
    for site, card in cards.items():
        alike.setdefault((card.task, card.classes, card.shape, card.input), []).append(site)
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
    what = next(
        what for what in ("task", "classes", "shape", "input") if getattr(one, what) != getattr(card, what)
    )
    if what == "input":
        key = next(key for key in Input.model_fields if getattr(one.input, key) != getattr(card.input, key))
        return (
            f"sites '{first}' and '{site}' do not prepare their images alike: data.{key} is "
            f"{_short(getattr(one.input, key))} and {_short(getattr(card.input, key))}: set the same in "
            f"every site.toml"
        )
    return (
        f"sites '{first}' and '{site}' do not agree on their {what} ({_short(getattr(one, what))} and "
        f"{_short(getattr(card, what))}): name the same classes in data.classes in the same order, and the "
        "same data.image_size, at every site"
    )


def _short(value: Any) -> str:
    return shown(", ".join(map(str, value)) if isinstance(value, tuple) else str(value))
