"""The coordinator's side: it passes letters on, and takes what is left of the masks out of the sum."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Protocol

from torch import Tensor

from equipoise.errors import SiteError
from equipoise.exchange.guard import FEWEST_MASKED
from equipoise.exchange.question import Question
from equipoise.exchange.secure import shamir
from equipoise.exchange.secure.keys import Forged, agree, derived, public_of
from equipoise.exchange.secure.letters import (
    ADVERTISE,
    SHARE,
    UNMASK,
    Advert,
    Arrived,
    Group,
    Letter,
    Order,
    Revealed,
    Shared,
    about,
    deal_of,
    read,
    threshold,
    write,
)
from equipoise.exchange.secure.member import pair_stream
from equipoise.exchange.secure.streams import KEY_BYTES, Stream, add_streams


class Relay(Protocol):
    """An engine that passes letters on beside questions."""

    run: str

    def relay(self, step: str, letters: Mapping[str, bytes], round: int) -> Iterator[tuple[str, bytes]]: ...


@dataclass(frozen=True)
class Dealt:
    """What a group has shared for one question."""

    group: Mapping[str, Advert]
    boxes: Mapping[str, Mapping[str, str]]
    """by sender and receiver"""
    bound: frozenset[str] | None
    """the sites whose sum was unmasked before for this question of this round"""

    @property
    def sites(self) -> tuple[str, ...]:
        """Those that have shared, so can be asked; only those of an earlier sum, where there was one."""
        return tuple(sorted(site for site in self.boxes if self.bound is None or site in self.bound))


@dataclass(frozen=True)
class Opened:
    """One masked question on its way."""

    dealt: Dealt
    question: Question
    context: str
    """the hash of all its masks depend on"""

    @property
    def sites(self) -> tuple[str, ...]:
        return self.dealt.sites

    @property
    def needed(self) -> int:
        """Answers without which there is no sum."""
        return max(FEWEST_MASKED, threshold(len(self.dealt.group)))


class Masking:
    """The protocol of a whole run; `tell` is told of letters that are not in order: tell(site, reason)."""

    def __init__(self, relay: Relay, tell: Callable[[str, str], None]) -> None:
        self._relay, self._tell = relay, tell
        self._adverts: dict[str, Advert] = {}
        self._ready: Dealt | None = None
        self.bytes_up = self.bytes_down = 0
        """of letters, so far"""

    def open(self, asked: Question, fine: Sequence[str], words: int) -> Opened:
        """A question with an order for every site that can mask its answer."""
        ready, self._ready = self._ready, None
        if ready is None or set(ready.sites) != set(asked.asked):
            ready = self._deal(asked)
        sites, fine = ready.sites, tuple(sorted(fine))
        orders = {
            site: Order(
                deal=deal_of(self._relay.run, list(ready.group.values())),
                sites=sites,
                boxes={other: ready.boxes[other][site] for other in sites if other != site},
                fine=fine,
                words=words,
            )
            for site in sites
        }
        if not orders:
            raise SiteError(
                f"round {asked.round + 1}: no site shared what masks the answers to '{asked.name}'"
            )
        broadcast = hashlib.sha256(asked.payload).hexdigest()
        context = about(
            self._relay.run, asked.round, asked.name, broadcast, next(iter(orders.values())).model_dump()
        )
        letters = {site: write(order) for site, order in orders.items()}
        return Opened(ready, replace(asked, letters=letters), context)

    def close(self, opened: Opened, arrived: Collection[str], total: Tensor) -> None:
        """Take what is left of the masks out of the sum of the words that arrived, in place."""
        survivors = tuple(sorted(arrived))
        following = [self._adverts.pop(site) for site in survivors if site in self._adverts]
        group = Group(adverts=tuple(following)) if len(following) == len(survivors) else None
        deal = deal_of(self._relay.run, list(opened.dealt.group.values()))
        letter = Arrived(deal=deal, sites=survivors, next=group)
        revealed = {
            site: reply
            for site, reply in self._send(UNMASK, dict.fromkeys(survivors, write(letter)), opened.question)
            if isinstance(reply, Revealed)
        }
        needed = threshold(len(opened.dealt.group))
        if len(revealed) < needed:
            raise SiteError(
                f"round {opened.question.round + 1}: only {len(revealed)} of {len(survivors)} sites helped "
                f"to unmask their answers to '{opened.question.name}', {needed} are needed; nothing is known "
                "of the sum"
            )
        add_streams(total, self._left(opened, survivors, revealed))
        shared = {site: one.shared for site, one in revealed.items() if one.shared is not None}
        if group is not None:
            self._ready = self._dealt(group.adverts, shared)

    # Before a question --------------------------------------------------------------------------------------

    def _deal(self, asked: Question) -> Dealt:
        """Have the sites of a question share their secrets."""
        unheard = {site: b"{}" for site in asked.asked if site not in self._adverts}
        for site, advert in self._send(ADVERTISE, unheard, asked):
            if isinstance(advert, Advert) and advert.site == site:
                self._adverts[site] = advert
        known = [self._adverts.pop(site) for site in asked.asked if site in self._adverts]
        group = Group(adverts=tuple(known), round=asked.round, question=asked.name)
        letter = write(group)
        replies = self._send(SHARE, {one.site: letter for one in known}, asked)
        return self._dealt(group.adverts, {s: one for s, one in replies if isinstance(one, Shared)})

    def _dealt(self, adverts: Sequence[Advert], replies: Mapping[str, Shared]) -> Dealt:
        group = {one.site: one for one in sorted(adverts, key=lambda one: one.site)}
        deal, boxes = deal_of(self._relay.run, adverts), {}
        bound: frozenset[str] | None = None
        for site, reply in replies.items():
            if reply.next.site == site:
                self._adverts[site] = reply.next
            if reply.deal != deal or set(reply.boxes) != set(group) - {site}:
                self._tell(site, "it has not shared its secrets with the others")
                continue
            boxes[site] = reply.boxes
            bound = frozenset(reply.bound) if reply.bound is not None else bound
        return Dealt(group, boxes, bound)

    def _send(
        self, step: str, letters: Mapping[str, bytes], asked: Question
    ) -> Iterator[tuple[str, Advert | Shared | Revealed]]:
        """Letters out and their answers back; whatever is no answer is told and left out."""
        kinds: dict[str, type[Advert] | type[Shared] | type[Revealed]] = {
            ADVERTISE: Advert,
            SHARE: Shared,
            UNMASK: Revealed,
        }
        if not letters:
            return
        seen = set[str]()
        for site, data in self._relay.relay(step, letters, asked.round):
            self.bytes_down += len(letters.get(site, b""))
            self.bytes_up += len(data)
            if site not in letters or site in seen:
                continue
            seen.add(site)
            try:
                yield site, _read(kinds[step], data)
            except Forged as error:
                self._tell(site, str(error))

    # After it -----------------------------------------------------------------------------------------------

    def _left(
        self, opened: Opened, survivors: Sequence[str], revealed: Mapping[str, Revealed]
    ) -> list[Stream]:
        """What is left of the masks in the sum, with the sign that takes it away."""
        group, context = opened.dealt.group, opened.context
        places = {site: place for place, site in enumerate(group, 1)}
        streams: list[Stream] = []
        for site in survivors:
            shares = {places[one]: said.own.get(site) for one, said in revealed.items()}
            seed = self._joined(
                site, shares, lambda secret: hashlib.sha256(secret).digest(), group[site].seed
            )
            streams.append((-1, derived(seed, KEY_BYTES, "own", context)))
        for gone in (site for site in opened.sites if site not in survivors):
            shares = {places[one]: said.keys.get(gone) for one, said in revealed.items()}
            key = self._joined(gone, shares, public_of, group[gone].mask)
            for site in survivors:
                sign, stream = pair_stream(agree(key, bytes.fromhex(group[site].mask)), context, site, gone)
                streams.append((-sign, stream))
        return streams

    @staticmethod
    def _joined(
        site: str, shares: Mapping[int, str | None], mark: Callable[[bytes], bytes], expected: str
    ) -> bytes:
        """A secret from its shares, held against what its site has advertised; one false share among them
        is found and left out."""
        given = {place: bytes.fromhex(share) for place, share in shares.items() if share is not None}
        for without in (None, *given):
            try:
                secret = shamir.join({place: share for place, share in given.items() if place != without})
            except ValueError:
                continue
            if mark(secret).hex() == expected:
                return secret
        raise SiteError(f"the sites' shares do not give back what masks '{site}': the sum cannot be unmasked")


def _read(kind: type[Letter], data: bytes) -> Letter:
    return read(kind, data)
