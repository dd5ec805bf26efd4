"""`ask` of a run: its questions go through an engine, and every answer past the guard and into the
journal."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from torch import Tensor

from equipoise.engine import Engine, Question
from equipoise.errors import MethodError, Rejected, SiteError
from equipoise.exchange import (
    Ask,
    Bounds,
    ExchangeOptions,
    Ledger,
    Line,
    Sizes,
    check,
    decode_upload,
    rejected,
    smaller,
)
from equipoise.exchange.codec import heap
from equipoise.leaves import Upload
from equipoise.server.journal import Journal

Objection = Callable[[str, str, Upload], str | None]
"""objection(question, site, upload): what is wrong with an answer that keeps the guard's rules, in words"""
IN_MEMORY = 2**26
"""bytes of waiting answers that are kept in memory; more of them wait on disk"""


class Exchange(Ask):
    """A conversation with real sites. `sites` shrinks when an answer is bad or missing: a site that fell out
    of a round stays out until the next. `compared` says whether answers are held against each other: not
    where all images are in one place, and nobody else can be harmed."""

    def __init__(
        self,
        *,
        engine: Engine,
        ledger: Ledger,
        limits: ExchangeOptions,
        journal: Journal,
        bounds: Bounds = Bounds(),
        compared: bool = True,
        norms: Mapping[str, float] | None = None,
        objection: Objection | None = None,
        progress: Callable[[str, str], None] | None = None,
        on_rejected: Callable[[str], None] | None = None,
        **conversation: Any,
    ) -> None:
        room = getattr(engine, "room", heap)
        super().__init__(**conversation, least=limits.least, compare=limits.compare, room=room)
        self.bytes_up = self.bytes_down = 0
        self.norms = dict(norms or {})
        """by question.leaf: how large answers usually are, as far as earlier rounds have shown"""
        self._ratio = limits.max_ratio if compared else None
        self._engine, self._ledger, self._limits, self._journal = engine, ledger, limits, journal
        self._bounds, self._objection = bounds, objection
        self._progress, self._on_rejected = progress, on_rejected
        self._fallen = set[str]()

    def _present(self) -> tuple[str, ...]:
        return tuple(site for site in self._everyone if site not in self._fallen)

    def _answers(self, question: Question, sent: Mapping[str, Tensor]) -> Iterator[tuple[str, bool, Upload]]:
        line, good = self._ledger.line(question.name, self.round), set[str]()
        if line is None:
            raise MethodError(
                f"the question '{question.name}' of round {self.round} is not in the ledger: say so in the "
                f"method's phases()"
            )
        for site, header, upload in self._usable(question, line, sent):
            good.add(site)
            yield site, header.get("wrote") is True, upload
            if self._progress:
                self._progress(question.name, site)
        missing = [site for site in question.asked if site not in good]
        if missing:
            self._journal.write("missing", round=self.round + 1, question=question.name, sites=missing)
        self._fallen.update(missing)
        self.sites = tuple(site for site in self.sites if site not in self._fallen)
        if len(good) < self._limits.least or not good:
            raise self._too_few(question, len(good), self._limits.least)

    def _too_few(self, question: Question, usable: int, needed: int) -> SiteError:
        return SiteError(
            f"round {self.round + 1}: only {usable} of {len(question.asked)} sites gave a usable answer to "
            f"'{question.name}', {needed} are needed; the journal names the others and why"
        )

    def _usable(
        self, question: Question, line: Line, sent: Mapping[str, Tensor]
    ) -> Iterator[tuple[str, dict[str, Any], Upload]]:
        """The answers that keep the rules. Those that are larger than usual wait until the others are
        known."""
        sizes = Sizes(line, self._bounds, self._ratio, self.norms, sent)
        waiting, good = list[tuple[str, int]](), set[str]()
        with tempfile.SpooledTemporaryFile(IN_MEMORY) as large:
            for site, data in self._arriving(question, question.asked):
                try:
                    header, upload = check(
                        site, data, line, self._limits, self._bounds, self.round, sent, len(question.asked)
                    )
                    if self._objection and (problem := self._objection(question.name, site, upload)):
                        raise rejected(site, question.name, problem)
                except Rejected as error:
                    self._reject(site, question.name, error)
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
                    self._reject(site, question.name, rejected(site, question.name, problem))
                    continue
                header, upload = decode_upload(data)
                factors = sizes.slowed(site)
                if factors:
                    facts = {leaf: round(factor, 6) for (leaf, _), factor in factors.items()}
                    self._journal.write(
                        "slowed", site=site, round=self.round + 1, question=question.name, factors=facts
                    )
                good.add(site)
                yield site, header, smaller(upload, factors)
        self.norms |= sizes.remembered(good)

    def _arriving(self, question: Question, sites: tuple[str, ...]) -> Iterator[tuple[str, bytes]]:
        """What the engine brings, once from every site that was asked."""
        wanted, seen = set(sites), set[str]()
        for site, data in self._engine.ask(question, sites):
            self.bytes_down += len(question.payload) + len(question.each.get(site, b""))
            self.bytes_up += len(data)
            if site in wanted and site not in seen:
                seen.add(site)
                yield site, data
                continue
            reason = "not asked, or answered already"
            self._journal.write(
                "ignored", site=site, round=self.round + 1, question=question.name, reason=reason
            )

    def _reject(self, site: str, question: str, error: Rejected) -> None:
        self._journal.write("rejected", site=site, round=self.round + 1, question=question, reason=str(error))
        if self._on_rejected:
            self._on_rejected(f"round {self.round + 1}: {error}")
