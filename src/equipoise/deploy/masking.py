"""A hospital's end of secure aggregation: its keys, the roster, and a book of what it helped to unmask."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from equipoise.config import Config
from equipoise.deploy.policy import Policy, Refused
from equipoise.deploy.roster import own_identity, read_roster, same_key
from equipoise.engine.flower.wire import Request
from equipoise.exchange import unpack
from equipoise.exchange.secure.keys import Forged, Roster, system
from equipoise.exchange.secure.letters import Order, read
from equipoise.exchange.secure.masks import Masks, conceal, left_out
from equipoise.exchange.secure.member import Member
from equipoise.keeping import read_json, write_json

if TYPE_CHECKING:
    from equipoise.deploy.site import SiteOptions

BOOK = "unmasked.json"
LEAVE = "restore it, or delete the run's folder to leave the run"


class Kept:
    """The book of one run, in its folder: written before anything is revealed, so it counts after a restart
    too."""

    def __init__(self, folder: Path) -> None:
        self.path = folder / BOOK

    def read(self, round: int, question: str) -> tuple[str, ...] | None:
        sites = self._all().get(f"{round} {question}")
        return None if sites is None else tuple(sites)

    def write(self, round: int, question: str, sites: tuple[str, ...]) -> None:
        write_json(self.path, self._all() | {f"{round} {question}": list(sites)})

    def _all(self) -> dict[str, list[str]]:
        return read_json(self.path, LEAVE) if self.path.exists() else {}


def make_member(folder: Path, options: SiteOptions, run: str) -> Member:
    """This site in a run: its key signs, the roster in its folder says who the others are."""
    sites = read_roster(folder / options.roster, folder / options.certificate)
    identity = own_identity(folder / options.key)
    same_key(sites, options.name, identity)
    return Member(options.name, run, identity, Roster(sites), system, Kept(folder / "runs" / run))


def bind(member: Member, policy: Policy, config: Config) -> Member:
    """A member that keeps to what policy and config say now."""
    if not config.exchange.secure:
        raise Refused("the run is not one with exchange.secure: nothing is masked in it")
    member.least = max(policy.min_sites, config.exchange.least)
    return member


def step(member: Member, name: str, letter: bytes) -> bytes:
    """The answer to a letter; what must not be done is refused with its reason."""
    try:
        return member.step(name, letter)
    except Forged as error:
        raise Refused(f"secure aggregation: {error}") from error


def masks_of(member: Member, call: Request, data: Mapping[str, bytes]) -> Masks:
    """What this site adds to its answer, before any image is looked at."""
    if "letter" not in data:
        raise Refused("secure aggregation: the question does not say how its answer is to be masked")
    if "extra" in data:
        common = _names(data["payload"]) & _names(data["extra"])
        if common:
            raise Refused(
                f"secure aggregation: '{min(common)[:40]}' is sent to this site alone and to all at once"
            )
    try:
        order = read(Order, data["letter"])
        if not set(order.sites) <= set(call.asked):
            raise Forged("an answer is to be masked for sites that are not asked")
        broadcast = hashlib.sha256(data["payload"]).hexdigest()
        return member.masks(order, call.round, call.question, broadcast)
    except Forged as error:
        raise Refused(f"secure aggregation: {error}") from error


def masked(answer: bytes, masks: Masks, config: Config) -> bytes:
    """The answer as it leaves; one that breaks the exchange's rules does not."""
    made = conceal(answer, masks, config.exchange)
    if reason := left_out(made):
        raise Refused(
            "secure aggregation: our own answer breaks a rule of the exchange; our journal says which"
        ) from ValueError(reason)
    return made


def _names(data: bytes) -> set[str]:
    """The first names of a message's tensors: what they are to the method."""
    return {name.partition("/")[0] for name in unpack(data, views=True)[1]}
