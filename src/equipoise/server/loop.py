"""The only training loop: rounds, checkpoints, journal. It knows no method by name."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Protocol

import torch

from equipoise.engine import Engine
from equipoise.errors import ConfigError
from equipoise.exchange import Bounds, ExchangeOptions, Ledger
from equipoise.exchange.guard import MOST_MASKED
from equipoise.exchange.reduction import MOST_SITES
from equipoise.methods.base import Method
from equipoise.seeds import generator
from equipoise.server.ask import Exchange, Objection
from equipoise.server.checkpoint import Checkpoints, Commits, Header
from equipoise.server.journal import Journal
from equipoise.server.masked import Masked, make_masking
from equipoise.tree import Tree, digest


def drawn(participation: float, sites: int) -> int:
    """How many sites take part in a round: ⌊share · sites⌋, at least one."""
    return max(1, int(participation * sites + 1e-9))


def sample(sites: Sequence[str], count: int, draw: torch.Generator) -> tuple[str, ...]:
    """So many of the sites, in their order."""
    order = torch.randperm(len(sites), generator=draw)
    return tuple(sites[i] for i in sorted(order[:count].tolist()))


def countable(sites: int) -> None:
    """Refuse more sites than the sums have room for."""
    if sites > MOST_SITES:
        raise ConfigError(
            f"a run has at most {MOST_SITES:,} sites, beyond which sums are not exact, and this one has "
            f"{sites:,}"
        )


class Observer(Protocol):
    """Told of every finished round before it is committed; may ask the sites (evaluation) and pin rounds.

    Pinned are the rounds that would be reported if this were the end: their state stays, and the method's
    ending starts from it.
    """

    def wants_tuned(self, round: int) -> bool: ...

    def observe(self, done: int, server: Tree, ask: Exchange, facts: Mapping[str, Any]) -> None: ...

    def pinned(self) -> frozenset[int]: ...

    def mark(self) -> str:
        """The hash of all that was observed so far; a checkpoint holds it."""
        ...


@dataclass
class Federation:
    """All the loop needs."""

    method: Method
    engine: Engine
    ledger: Ledger
    limits: ExchangeOptions
    journal: Journal
    checkpoints: Checkpoints
    sites: tuple[str, ...]
    rounds: int
    seed: int
    participation: float
    config_hash: str
    observer: Observer
    tested: tuple[str, ...] = ()
    """the sites at which rounds are evaluated; none: at all"""
    bounds: Bounds = field(default_factory=Bounds)
    objection: Objection | None = None
    progress: Callable[[str, str], None] | None = None
    on_rejected: Callable[[str], None] | None = None
    """told, in a sentence, of every answer that is left out"""
    data: str = ""
    """the fingerprint of the data"""
    stopped: Callable[[], tuple[int, str] | None] = lambda: None
    """the round after which training ends early, and why; None: it goes on. Asked after every round, and
    again when a run is resumed"""

    spending: Callable[[int, int], Mapping[str, Any]] = lambda rounds, endings: {}
    """what so many rounds and endings of the method cost in privacy, for the row of a round"""

    def __post_init__(self) -> None:
        countable(len(self.sites))
        present = drawn(self.participation, len(self.sites))
        if self.limits.secure and present < self.limits.least:
            raise ConfigError(
                f"exchange.secure adds up no fewer than {self.limits.least} sites, and a round of this run "
                f"has {present}: raise train.participation, or have more sites"
            )
        if self.limits.secure and len(self.sites) > MOST_MASKED:
            raise ConfigError(
                f"exchange.secure masks the answers of at most {MOST_MASKED:,} sites, and this run has "
                f"{len(self.sites):,}"
            )
        self._masking = make_masking(self.engine, self.journal) if self.limits.secure else None

    def exchange(
        self,
        round: int,
        versions: Mapping[str, str],
        sites: tuple[str, ...],
        durable: Mapping[str, str],
        **kwargs: Any,
    ) -> Exchange:
        """A conversation with some sites."""
        kind: Callable[..., Exchange] = Exchange
        if self._masking is not None:
            kind = partial(Masked, masking=self._masking)
        return kind(
            engine=self.engine,
            ledger=self.ledger,
            limits=self.limits,
            journal=self.journal,
            sites=sites,
            everyone=self.sites,
            compared=len(self.sites) > 1 and self.method.standard != "pooled",
            round=round,
            rounds=self.rounds,
            seed=self.seed,
            versions=versions,
            durable=durable,
            bounds=self.bounds,
            objection=self.objection,
            progress=self.progress,
            on_rejected=self.on_rejected,
            **kwargs,
        )

    def participants(self, round: int) -> tuple[str, ...]:
        """The sites drawn for a round, in the federation's order."""
        count = drawn(self.participation, len(self.sites))
        return sample(self.sites, count, generator(self.seed, round, "participants"))

    def run(self, first: Callable[[], Tree]) -> Tree:
        """Train to the end, from the newest checkpoint if there is one. Returns the final server tree."""
        server, header = self.checkpoints.newest() or (None, None)
        if server is not None and header is not None and header.finished:
            return server
        facts = (self.config_hash, header, self._committed, self.data, self._marks, self.journal.sync)
        with Commits(self.checkpoints, *facts) as commits:
            return self._rounds(commits, first() if server is None else server)

    def _rounds(self, commits: Commits, server: Tree) -> Tree:
        if commits.durable is None:
            begin, versions, norms = 0, dict[str, str](), dict[str, float]()
            commits.save(server, 0, versions)
        else:
            begin, versions, norms = commits.durable.round, commits.durable.versions, commits.durable.norms
        pins = self._pins(begin)
        for round in range(begin, self.rounds):
            if self.stopped() is not None:
                break
            durable = commits.durable.versions if commits.durable else {}
            ask = self.exchange(
                round,
                versions,
                self.participants(round),
                durable,
                norms=norms,
                pinned=tuple(pins.values()),
                tuned=self.observer.wants_tuned(round),
            )
            server, versions, norms = self.method.round(server, ask), ask.versions, ask.norms
            self._observe(server, round + 1, ask, self.spending(round + 1, 0))
            pinned = self.observer.pinned()
            pins[round + 1] = versions
            pins = {number: saved for number, saved in pins.items() if number in pinned}
            commits.save(server, round + 1, versions, pinned, norms)
        return self._end(commits, server, pins)

    def _end(self, commits: Commits, server: Tree, pins: dict[int, Mapping[str, str]]) -> Tree:
        """The method's ending of every round that is to be reported, each a step of its own, tested and
        committed like a round. To the sites it is the round after the last planned one, also where training
        ended early.

        A method without an ending changes nothing, and the run ends as its last round left it.
        """
        last = commits.settle()
        assert last is not None
        done, versions, norms = last.round, last.versions, last.norms
        rounds = self._trained()
        starts = [round for round in sorted(self.observer.pinned()) if round <= rounds] or [rounds]
        for i, start in enumerate(starts):
            before, header = self.checkpoints.load(start)
            ask = self.exchange(
                self.rounds,
                header.versions,
                self.sites,
                versions,
                step=done,
                norms=norms,
                pinned=tuple(pins.values()),
                tuned=self.observer.wants_tuned(self.rounds),
            )
            after = self.method.finish(before, ask)
            if digest(after) == header.state and ask.versions == header.versions:
                break
            server, versions, norms, done = after, ask.versions, ask.norms, done + 1
            self._observe(server, done, ask, {"ending_of": start, **self.spending(rounds, i + 1)})
            pinned = self.observer.pinned()
            pins[done] = versions
            pins = {number: saved for number, saved in pins.items() if number in pinned}
            # Until this is on disk, a crash has the ending start again: what it started from must stay, at
            # the sites too.
            pinned |= set(starts[i:])
            commits.save(server, done, versions, pinned, norms, finished=start == starts[-1])
            commits.settle()
        else:
            return server
        commits.save(server, done, versions, self.observer.pinned(), norms, finished=True)
        return server

    def _trained(self) -> int:
        """The last round of training; an early end is written down."""
        end = self.stopped()
        if end is None or end[0] == self.rounds:
            return self.rounds
        self.journal.write("stopped early", round=end[0], rounds=self.rounds, reason=end[1])
        return end[0]

    def _pins(self, done: int) -> dict[int, Mapping[str, str]]:
        """By pinned round up to now: the sites' private versions, so that a site's own predictor of that
        round stays too."""
        there = (round for round in self.observer.pinned() if round <= done)
        rounds = (round for round in there if self.checkpoints.path(round).exists())
        return {round: self.checkpoints.load(round)[1].versions for round in rounds}

    def _observe(self, server: Tree, done: int, ask: Exchange, more: Mapping[str, Any]) -> None:
        facts = {**more, **ask.numbers, "sites": list(ask.sites)}
        facts |= {"bytes_up": ask.bytes_up, "bytes_down": ask.bytes_down}
        tested = self.tested or self.sites
        listen = self.exchange(ask.round, ask.versions, tested, ask.durable, writes=False)
        self.observer.observe(done, server, listen, facts)

    def _marks(self) -> tuple[str, str]:
        """What a checkpoint says of metrics and journal."""
        return self.observer.mark(), self.journal.head

    def _committed(self, header: Header) -> None:
        self.journal.write("committed", round=header.round, state=header.state, finished=header.finished)
