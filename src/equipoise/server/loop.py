"""The only training loop: rounds, checkpoints, journal. It knows no method by name."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Protocol

import torch

from equipoise.engine import Engine
from equipoise.exchange import ExchangeOptions, Ledger
from equipoise.methods.base import Method
from equipoise.seeds import generator
from equipoise.server.ask import Exchange
from equipoise.server.checkpoint import Checkpoints, Header
from equipoise.server.journal import Journal
from equipoise.tree import Tree, digest


def drawn(participation: float, sites: int) -> int:
    """How many sites take part in a round: ⌊share · sites⌋, at least one."""
    return max(1, int(participation * sites + 1e-9))


class Observer(Protocol):
    """Told of every finished round before it is committed; may ask the sites (evaluation) and pin rounds."""

    def wants_tuned(self, round: int) -> bool: ...

    def observe(self, done: int, server: Tree, ask: Exchange, facts: Mapping[str, Any]) -> None: ...

    def pinned(self) -> frozenset[int]: ...


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
    progress: Callable[[str, str], None] | None = None

    def exchange(self, round: int, versions: Mapping[str, str], sites: tuple[str, ...], **kwargs: Any) -> Exchange:
        """A conversation with some sites."""
        return Exchange(
            engine=self.engine,
            ledger=self.ledger,
            limits=self.limits,
            journal=self.journal,
            sites=sites,
            round=round,
            rounds=self.rounds,
            seed=self.seed,
            versions=versions,
            progress=self.progress,
            **kwargs,
        )

    def participants(self, round: int) -> tuple[str, ...]:
        """The sites drawn for a round, in the federation's order."""
        count = drawn(self.participation, len(self.sites))
        order = torch.randperm(len(self.sites), generator=generator(self.seed, round, "participants"))
        return tuple(self.sites[i] for i in sorted(order[:count].tolist()))

    def run(self, first: Callable[[], Tree]) -> Tree:
        """Train to the end, from the newest checkpoint if there is one. Returns the final server tree."""
        found = self.checkpoints.newest()
        if found is None:
            server = first()
            header = self._commit(server, 0, {}, parent="", finished=False)
        else:
            server, header = found
        if header.finished:
            return server
        for round in range(header.round, self.rounds):
            ask = self.exchange(round, header.versions, self.participants(round), tuned=self.observer.wants_tuned(round))
            server = self.method.round(server, ask)
            header = self._close(server, round + 1, ask, header)
        ask = self.exchange(self.rounds, header.versions, self.sites, tuned=self.observer.wants_tuned(self.rounds))
        finished = self.method.finish(server, ask)
        if digest(finished) != header.state or ask.versions != header.versions:
            # Post-training changed something: it counts as one more step, tested like a round.
            self._observe(finished, self.rounds + 1, ask)
        self._commit(finished, self.rounds, ask.versions, parent=header.parent, finished=True)
        return finished

    def _close(self, server: Tree, done: int, ask: Exchange, header: Header) -> Header:
        self._observe(server, done, ask)
        return self._commit(server, done, ask.versions, parent=header.state, finished=False)

    def _observe(self, server: Tree, done: int, ask: Exchange) -> None:
        facts = {**ask.numbers, "sites": list(ask.sites), "bytes_up": ask.bytes_up, "bytes_down": ask.bytes_down}
        listen = self.exchange(done - 1, ask.versions, self.sites, writes=False)
        self.observer.observe(done, server, listen, facts)

    def _commit(self, server: Tree, done: int, versions: Mapping[str, str], parent: str, finished: bool) -> Header:
        header = Header(done, self.config_hash, digest(server), parent, dict(versions), finished)
        self.checkpoints.save(server, header, self.observer.pinned())
        self.journal.write("committed", round=done, state=header.state, finished=finished)
        return header
