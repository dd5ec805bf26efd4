"""`ask` of a run with secure aggregation: answers come masked, and only their sum is ever read."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from equipoise.engine import Engine, Question
from equipoise.errors import Rejected, SiteError
from equipoise.exchange import Line, Reduction, check, rejected
from equipoise.leaves import Upload
from equipoise.server.ask import Exchange
from equipoise.server.journal import Journal

if TYPE_CHECKING:
    from equipoise.exchange.secure.coordinator import Masking


def make_masking(engine: Engine, journal: Journal) -> Masking:
    """The coordinator's side of the protocol, for a whole run."""
    from equipoise.exchange.secure.coordinator import Masking

    def tell(site: str, reason: str) -> None:
        journal.write("ignored", site=site, reason=reason)

    return Masking(engine, tell)  # type: ignore[arg-type]


class Masked(Exchange):
    """A conversation whose sums are masked. Of a single answer nothing can be judged but its length; sites
    check their own answers, and here the sum is looked at."""

    def __init__(self, *, masking: Masking, **conversation: Any) -> None:
        super().__init__(**conversation)
        self._masking = masking
        self._sums: tuple[Any, Tensor] | None = None

    def _usable(
        self, question: Question, line: Line, sent: Mapping[str, Tensor]
    ) -> Iterator[tuple[str, dict[str, Any], Upload]]:
        from equipoise.exchange.secure.layout import Layout
        from equipoise.exchange.secure.masks import left_out, masked_line, words_of

        layout = Layout.of(line.up, line.fine)
        total = torch.zeros(layout.count, dtype=torch.int64)
        spent = self._masking.bytes_up, self._masking.bytes_down
        opened = self._masking.open(question, sorted(layout.fine), layout.count)
        expected, answers = masked_line(line, layout.count), dict[str, tuple[dict[str, Any], Upload]]()
        for site, data in self._arriving(opened.question, opened.sites):
            try:
                if reason := left_out(data):
                    raise rejected(site, question.name, reason)
                header, upload = check(site, data, expected, self._limits, self._bounds, self.round, sent)
                words, rest = words_of(upload)
                if self._objection and rest and (problem := self._objection(question.name, site, rest)):
                    raise rejected(site, question.name, problem)
            except Rejected as error:
                self._reject(site, question.name, error)
                continue
            total.add_(words)
            answers[site] = header, rest
        if len(answers) < max(opened.needed, self._limits.least):
            raise self._too_few(question, len(answers), max(opened.needed, self._limits.least))
        self._masking.close(opened, answers, total)
        self.bytes_up += self._masking.bytes_up - spent[0]
        self.bytes_down += self._masking.bytes_down - spent[1]
        if problem := layout.implausible(total, len(answers), self._limits.max_weight):
            raise SiteError(
                f"round {self.round + 1}: the sum of the answers to '{question.name}' cannot be right "
                f"({problem}): a site was sent other tensors than the others, or has sent other words than "
                "it should have"
            )
        self._sums = layout, total
        for site, (header, rest) in answers.items():
            yield site, header, rest

    def _completed(self, reduction: Reduction) -> Reduction:
        assert self._sums is not None
        layout, total = self._sums
        layout.take(total, reduction)
        return reduction
