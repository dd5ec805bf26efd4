"""A site's side of the protocol. What it must never do, it refuses here, whatever the coordinator asks."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol

from equipoise.exchange.guard import FEWEST_MASKED
from equipoise.exchange.secure import shamir
from equipoise.exchange.secure.keys import (
    Forged,
    Identity,
    Roster,
    Source,
    agree,
    derived,
    lock,
    public_of,
    unlock,
)
from equipoise.exchange.secure.letters import (
    ADVERTISE,
    SHARE,
    UNMASK,
    Advert,
    Arrived,
    Group,
    Order,
    Revealed,
    Shared,
    about,
    deal_of,
    read,
    threshold,
    write,
)
from equipoise.exchange.secure.masks import Masks
from equipoise.exchange.secure.streams import KEY_BYTES, Stream

KEPT = 4
"""sets of secrets that a site keeps: of this question, of the next, and of messages that were lost"""


class Book(Protocol):
    """Which sites' sum this site has helped to unmask, by round and question; it outlives the process."""

    def read(self, round: int, question: str) -> tuple[str, ...] | None: ...

    def write(self, round: int, question: str, sites: tuple[str, ...]) -> None: ...


class Memory(dict[tuple[int, str], tuple[str, ...]]):
    """A book that does not outlive the process, for simulations."""

    def read(self, round: int, question: str) -> tuple[str, ...] | None:
        return self.get((round, question))

    def write(self, round: int, question: str, sites: tuple[str, ...]) -> None:
        self[round, question] = sites


@dataclass(frozen=True)
class Secrets:
    """What is behind one advert. It is kept in memory only: after a restart there is nothing to reveal."""

    advert: Advert
    mask: bytes
    box: bytes
    seed: bytes
    entropy: tuple[bytes, bytes]


@dataclass
class Deal:
    """What a group of sites has shared for one question."""

    name: str
    group: Mapping[str, Advert]
    secrets: Secrets
    own: tuple[bytes, bytes]
    """our shares of our own seed and key"""
    shares: dict[str, tuple[bytes, bytes]] = field(default_factory=dict)
    """by site: our shares of its seed and of its key"""
    about: str = ""
    """the question it serves, once there is one"""
    asked: tuple[int, str] = (0, "")
    sites: tuple[str, ...] = ()
    shared: Shared | None = None
    """what we have said of it; a letter that was lost is answered with the same words"""
    revealed: tuple[tuple[str, ...], Revealed] | None = None
    """the sites whose sum we have helped to unmask, and what we have said"""


class Member:
    """One site in one run. `least` is the fewest sites it takes part in a sum of."""

    def __init__(
        self,
        name: str,
        run: str,
        identity: Identity,
        roster: Roster,
        source: Source,
        book: Book,
        least: int = FEWEST_MASKED,
    ) -> None:
        self.name, self.run, self.least = name, run, least
        self._identity, self._roster, self._source, self._book = identity, roster, source, book
        self._count = 0
        self._fresh: dict[str, Secrets] = {}
        self._deals: dict[str, Deal] = {}

    def step(self, step: str, letter: bytes) -> bytes:
        """The answer to a letter that comes without a question."""
        if step == ADVERTISE:
            return write(self.advertise())
        if step == SHARE:
            return write(self.share(read(Group, letter)))
        if step == UNMASK:
            return write(self.unmask(read(Arrived, letter)))
        raise Forged("secure aggregation has no such step")

    def advertise(self) -> Advert:
        """Fresh keys."""
        self._count += 1
        mask, box, seed, *entropy = (
            self._source(f"{self._count} {purpose}") for purpose in ("mask", "box", "seed", "first", "second")
        )
        facts = {
            "site": self.name,
            "mask": public_of(mask).hex(),
            "box": public_of(box).hex(),
            "seed": hashlib.sha256(seed).hexdigest(),
        }
        bare = Advert(**facts, signature="00")
        advert = Advert(**facts, signature=self._identity.sign(bare.signed(self.run)).hex())
        self._fresh[advert.mask] = Secrets(advert, mask, box, seed, (entropy[0], entropy[1]))
        _forget(self._fresh)
        return advert

    def share(self, letter: Group) -> Shared:
        """Boxes for every site of a group, once its adverts are seen to be signed by sites of the roster."""
        group = {one.site: one for one in sorted(letter.adverts, key=lambda one: one.site)}
        if len(group) < len(letter.adverts):
            raise Forged("a group names a site twice")
        self._enough(len(group))
        name, needed = deal_of(self.run, letter.adverts), threshold(len(group))
        if name in self._deals and (said := self._deals[name].shared) is not None:
            return said
        if self.name not in group or group[self.name].mask not in self._fresh:
            raise Forged("a group has other keys of this site than it has advertised, or used ones")
        for site, advert in group.items():
            if site != self.name:
                self._roster.verify(site, advert.signed(self.run), bytes.fromhex(advert.signature))
        secrets = self._fresh.pop(group[self.name].mask)
        if group[self.name] != secrets.advert:
            raise Forged("a group has other keys of this site than it has advertised")
        seeds = shamir.split(secrets.seed, needed, len(group), secrets.entropy[0])
        keys = shamir.split(secrets.mask, needed, len(group), secrets.entropy[1])
        boxes, own = {}, (b"", b"")
        for (site, advert), seed, key in zip(group.items(), seeds, keys, strict=True):
            if site == self.name:
                own = (seed, key)
                continue
            known = agree(secrets.box, bytes.fromhex(advert.box))
            boxes[site] = lock(derived(known, 32, "box", name, self.name, site), seed + key).hex()
        bound = None
        if letter.round is not None and letter.question is not None:
            bound = self._book.read(letter.round, letter.question)
        said = Shared(deal=name, boxes=boxes, next=self.advertise(), bound=bound)
        self._deals[name] = Deal(name, group, secrets, own, shared=said)
        _forget(self._deals)
        return said

    def masks(self, order: Order, round: int, question: str, broadcast: str) -> Masks:
        """The masks of an answer; refused where it could be read, or told apart from another one."""
        deal = self._deal(order.deal)
        sites, unknown = tuple(sorted(set(order.sites))), set(order.sites) - set(deal.group)
        if unknown or self.name not in sites or len(sites) < threshold(len(deal.group)):
            raise Forged("an answer is to be masked for other sites than have shared their secrets")
        self._enough(len(sites))
        bound = self._book.read(round, question)
        if bound is not None and not set(bound) <= set(sites):
            raise Forged("this question of this round was answered for another set of sites")
        table = order.model_dump()
        context = about(self.run, round, question, broadcast, table)
        if deal.about not in ("", context) or deal.revealed is not None:
            raise Forged("these keys were used for another question")
        for site in sites:
            deal.shares[site] = deal.own if site == self.name else self._open(deal, site, order.boxes)
        deal.about, deal.asked, deal.sites = context, (round, question), sites
        streams: list[Stream] = [(1, derived(deal.secrets.seed, KEY_BYTES, "own", context))]
        for site in sites:
            if site != self.name:
                known = agree(deal.secrets.mask, bytes.fromhex(deal.group[site].mask))
                streams.append(pair_stream(known, context, self.name, site))
        return Masks(streams=tuple(streams), fine=order.fine, words=order.words)

    def unmask(self, letter: Arrived) -> Revealed:
        """Shares that unmask the sum of the sites whose answers arrived, for one such set only."""
        deal = self._deal(letter.deal)
        arrived = tuple(sorted(set(letter.sites)))
        if not deal.about or not set(arrived) <= set(deal.sites) or self.name not in arrived:
            raise Forged("the sum to be unmasked is not of sites that were asked together")
        if len(arrived) < threshold(len(deal.group)):
            raise Forged("two thirds of the sites or fewer have answered: their sum is not unmasked")
        self._enough(len(arrived))
        bound = self._book.read(*deal.asked)
        if (bound or arrived) != arrived or (deal.revealed and deal.revealed[0] != arrived):
            raise Forged("a sum of another set of sites was unmasked for this question of this round")
        if deal.revealed is None:
            self._book.write(*deal.asked, arrived)  # before anything is said
            said = Revealed(
                own={site: deal.shares[site][0].hex() for site in arrived},
                keys={site: deal.shares[site][1].hex() for site in deal.sites if site not in arrived},
                shared=None if letter.next is None else self.share(letter.next),
            )
            deal.revealed = (arrived, said)
        return deal.revealed[1]

    def _enough(self, sites: int) -> None:
        least = max(FEWEST_MASKED, self.least)
        if sites < least:
            raise Forged(
                f"this site takes part in sums of at least {least} sites, and this is one of {sites}"
            )

    def _deal(self, name: str) -> Deal:
        if name not in self._deals:
            raise Forged("this site has shared no secrets for that, or no longer has them")
        return self._deals[name]

    def _open(self, deal: Deal, site: str, boxes: Mapping[str, str]) -> tuple[bytes, bytes]:
        if site not in boxes:
            raise Forged(f"the box of '{site}' is missing")
        known = agree(deal.secrets.box, bytes.fromhex(deal.group[site].box))
        data = unlock(derived(known, 32, "box", deal.name, site, self.name), bytes.fromhex(boxes[site]))
        if len(data) != 2 * shamir.SHARE_BYTES:
            raise Forged(f"the box of '{site}' does not hold two shares")
        return data[: shamir.SHARE_BYTES], data[shamir.SHARE_BYTES :]


def pair_stream(known: bytes, context: str, ours: str, theirs: str) -> Stream:
    """The mask that two sites share: the one whose name comes first adds it, the other takes it away."""
    first, second = sorted((ours, theirs))
    return (1 if ours == first else -1), derived(known, KEY_BYTES, "pair", context, first, second)


def _forget(kept: dict[str, Any]) -> None:
    """Drop the oldest of more than `KEPT`."""
    while len(kept) > KEPT:
        del kept[next(iter(kept))]
