"""`ask`: how a method's round reaches the sites. Guarding, reducing, journalling and private versions happen
here, once."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from equipoise.engine import Engine, Question
from equipoise.errors import MethodError, Rejected, SiteError
from equipoise.exchange import (
    Answers,
    Bounds,
    ExchangeOptions,
    Ledger,
    Line,
    Reduction,
    Sizes,
    check,
    decode_upload,
    pack,
    rejected,
    smaller,
)
from equipoise.leaves import Upload
from equipoise.seeds import generator
from equipoise.server.journal import Journal
from equipoise.tree import Tree, flatten

Objection = Callable[[str, str, Upload], str | None]
"""objection(question, site, upload): what is wrong with an answer that keeps the guard's rules, in words"""
IN_MEMORY = 2**26
"""bytes of waiting answers that are kept in memory; more of them wait on disk"""


class Exchange:
    """One round's (or one evaluation's) conversation. `sites` shrinks when an answer is bad or missing: a
    site that fell out of a round stays out until the next."""

    def __init__(
        self,
        *,
        engine: Engine,
        ledger: Ledger,
        limits: ExchangeOptions,
        journal: Journal,
        sites: tuple[str, ...],
        round: int,
        rounds: int,
        seed: int,
        versions: Mapping[str, str],
        everyone: tuple[str, ...] = (),
        step: int | None = None,
        durable: Mapping[str, str] | None = None,
        pinned: Sequence[Mapping[str, str]] = (),
        writes: bool = True,
        tuned: bool = False,
        bounds: Bounds = Bounds(),
        norms: Mapping[str, float] | None = None,
        objection: Objection | None = None,
        progress: Callable[[str, str], None] | None = None,
        told: Callable[[str], None] | None = None,
    ) -> None:
        self.sites, self.round, self.rounds = sites, round, rounds
        self.versions = dict(versions)
        """private versions as they will be if this conversation is committed"""
        self.bytes_up = self.bytes_down = 0
        self.numbers: dict[str, float] = {}
        """every single number the sites' answers came to, train.loss for one"""
        self.norms = dict(norms or {})
        """by question.leaf: how large answers usually are, as far as earlier rounds have shown"""
        self.durable = versions if durable is None else durable
        """private versions of the newest checkpoint known to be on disk, if it is not the one this
        conversation starts from"""
        self._start, self._pinned = versions, pinned
        self._engine, self._ledger, self._limits, self._journal = engine, ledger, limits, journal
        self._seed, self._writes, self._tuned, self._progress = seed, writes, tuned, progress
        self._bounds, self._objection, self._told = bounds, objection, told
        self._everyone, self._fallen = everyone or sites, set[str]()
        # Private versions are named by it; the endings of several rounds are conversations of the same round.
        self._step, self._count = round if step is None else step, 0

    def generator(self, *purpose: object) -> torch.Generator:
        """Draws of the coordinator for one purpose in this round."""
        return generator(self._seed, self.round, "server", *purpose)

    def _kept(self, site: str) -> tuple[str, ...]:
        """The private versions a site must not drop in this conversation."""
        return tuple(sorted({one[site] for one in (self._start, self.durable, *self._pinned) if site in one}))

    def __call__(
        self, question: Any, *, each: Mapping[str, Tree] | None = None, everyone: bool = False, **down: Any
    ) -> Answers:
        """Ask all sites still in the conversation; their reduced leaves.

        `everyone` asks the whole federation but the sites that fell out, also sites that were not drawn for
        this round. Such a question only looks: nothing is kept at the sites, and who answers it does not join
        the round.
        """
        name, writes = question.__name__, self._writes and not everyone
        sites = tuple(site for site in self._everyone if site not in self._fallen) if everyone else self.sites
        line = self._ledger.line(name, self.round)
        if line is None:
            raise MethodError(
                f"the question '{name}' of round {self.round} is not in the ledger: say so in the method's "
                f"phases()"
            )
        asked = Question(
            name=name,
            round=self.round,
            payload=pack({}, flatten(down)),
            each={site: pack({}, flatten(each[site])) for site in sites if each and site in each},
            read={site: version for site, version in self.versions.items() if site in sites},
            write=f"{self._step}.{self._count}" if writes else None,
            # The checkpoint of the round before may or may not have reached the disk: a crash resumes from it
            # or from the one before that. Pinned are the private versions of rounds that may be selected.
            keep={site: kept for site in sites if (kept := self._kept(site))},
            asked=sites,
            tuned=self._tuned and writes,
        )
        self._count += 1
        reduction, good = Reduction(self._limits.min_sites), set[str]()
        sent = flatten(down) | flatten(next(iter((each or {}).values()), {}))
        received = {name.partition("/")[2]: x for name, x in sent.items() if "/" in name}
        for site, header, upload in self._answers(asked, line, received):
            reduction.add(site, upload)
            good.add(site)
            if header.get("wrote") is True and asked.write is not None:
                self.versions[site] = asked.write
            if self._progress:
                self._progress(name, site)
        missing = [site for site in sites if site not in good]
        if missing:
            self._journal.write("missing", round=self.round, question=name, sites=missing)
        self._fallen.update(missing)
        self.sites = tuple(site for site in self.sites if site not in self._fallen)
        if len(good) < self._limits.min_sites or not good:
            raise SiteError(
                f"round {self.round}: only {len(good)} of {len(sites)} sites gave a usable answer to "
                f"'{name}', "
                f"{self._limits.min_sites} are needed; the journal names the others and why"
            )
        answers = reduction.result(sites)
        self.numbers |= {
            f"{name}.{leaf}": float(answers[leaf])
            for leaf in answers
            if isinstance(answers[leaf], torch.Tensor) and answers[leaf].dim() == 0
        }
        return answers

    def _answers(
        self, asked: Question, line: Line, sent: Mapping[str, Tensor]
    ) -> Iterator[tuple[str, dict, Upload]]:
        """The answers that count. Those that are larger than usual wait until the others are known."""
        sizes = Sizes(line, self._bounds, self._limits.max_ratio, self.norms, sent)
        waiting, good = list[tuple[str, int]](), set[str]()
        with tempfile.SpooledTemporaryFile(IN_MEMORY) as large:
            for site, data in self._arriving(asked):
                try:
                    header, upload = check(site, data, line, self._limits, self._bounds, self.round, sent)
                    if self._objection and (problem := self._objection(asked.name, site, upload)):
                        raise rejected(site, asked.name, problem)
                except Rejected as error:
                    self._reject(site, asked.name, error)
                    continue
                if sizes.measure(site, upload):
                    good.add(site)
                    yield site, header, upload
                else:
                    large.write(data)
                    waiting.append((site, len(data)))
            large.seek(0)
            for site, length in waiting:
                data = large.read(length)
                if problem := sizes.problem(site):
                    self._reject(site, asked.name, rejected(site, asked.name, problem))
                    continue
                header, upload = decode_upload(data)
                factors = sizes.slowed(site)
                if factors:
                    facts = {leaf: round(factor, 6) for (leaf, _), factor in factors.items()}
                    self._journal.write(
                        "slowed", site=site, round=self.round, question=asked.name, factors=facts
                    )
                good.add(site)
                yield site, header, smaller(upload, factors)
        self.norms |= sizes.remembered(good)

    def _arriving(self, asked: Question) -> Iterator[tuple[str, bytes]]:
        """What the engine brings, once from every site that was asked."""
        seen = set[str]()
        for site, data in self._engine.ask(asked, asked.asked):
            self.bytes_down += len(asked.payload) + len(asked.each.get(site, b""))
            self.bytes_up += len(data)
            if site in asked.asked and site not in seen:
                seen.add(site)
                yield site, data
                continue
            self._journal.write(
                "ignored",
                site=site,
                round=self.round,
                question=asked.name,
                reason="not asked, or answered already",
            )

    def _reject(self, site: str, question: str, error: Rejected) -> None:
        self._journal.write("rejected", site=site, round=self.round, question=question, reason=str(error))
        if self._told:
            self._told(f"round {self.round + 1}: {error}")
