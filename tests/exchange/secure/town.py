"""A handful of sites and a coordinator that speak the protocol in one process, for the tests beside this."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from hashlib import sha256

import torch
from torch import Tensor

from equipoise.exchange.question import Question
from equipoise.exchange.secure.coordinator import Masking
from equipoise.exchange.secure.keys import Forged, Roster, seeded, seeded_identity
from equipoise.exchange.secure.letters import Order, read
from equipoise.exchange.secure.member import Member, Memory
from equipoise.exchange.secure.streams import add_streams

RUN = "0123456789abcdef"


@dataclass
class Hamlet:
    """Members by name; `lost(step, site)` says which letters never arrive."""

    members: dict[str, Member]
    lost: Callable[[str, str], bool] = lambda step, site: False
    run: str = RUN
    steps: list[str] = field(default_factory=list)
    refused: dict[str, str] = field(default_factory=dict)

    def relay(self, step: str, letters: Mapping[str, bytes], round: int) -> Iterator[tuple[str, bytes]]:
        self.steps.append(step)
        for site, letter in letters.items():
            if self.lost(step, site):
                continue
            try:
                yield site, self.members[site].step(step, letter)
            except Forged as error:
                self.refused[site] = str(error)


def hamlet(count: int, least: int = 3) -> Hamlet:
    names = [f"s{i:02d}" for i in range(count)]
    people = {name: seeded_identity(1, name) for name in names}
    roster = Roster({name: one.public for name, one in people.items()})
    return Hamlet({n: Member(n, RUN, people[n], roster, seeded(1, n), Memory(), least) for n in names})


def question(
    sites: Sequence[str], round: int = 0, name: str = "train", payload: bytes = b"model"
) -> Question:
    return Question(name=name, round=round, payload=payload, asked=tuple(sites))


def values(site: str, count: int = 50) -> Tensor:
    draw = torch.Generator().manual_seed(sum(map(ord, site)))
    return torch.randint(-(2**40), 2**40, (count,), generator=draw)


def answer(town: Hamlet, site: str, asked: Question, payload: bytes = b"model", count: int = 50) -> Tensor:
    """A site's masked words."""
    order = read(Order, asked.letters[site])
    masks = town.members[site].masks(order, asked.round, asked.name, sha256(payload).hexdigest())
    words = values(site, count)
    add_streams(words, masks.streams)
    return words


def ask(
    town: Hamlet,
    masking: Masking,
    asked: Question,
    silent: Collection[str] = (),
    payloads: Mapping[str, bytes] | None = None,
) -> tuple[Tensor, list[str]]:
    """One masked question; the sum and who counted."""
    opened = masking.open(asked, [], 50)
    total, arrived = torch.zeros(50, dtype=torch.int64), list[str]()
    for site in opened.sites:
        if site not in silent:
            total += answer(town, site, opened.question, (payloads or {}).get(site, asked.payload))
            arrived.append(site)
    masking.close(opened, arrived, total)
    return total, arrived


def plain(sites: Collection[str]) -> Tensor:
    return torch.stack([values(site) for site in sites]).sum(0)


def masking_of(town: Hamlet) -> Masking:
    return Masking(town, lambda site, reason: town.refused.update({site: reason}))
