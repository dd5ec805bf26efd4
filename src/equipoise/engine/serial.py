"""One site after the other, in this process."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from equipoise.engine.host import Host
from equipoise.exchange.question import Question


class Serial:
    """The simplest engine, and the one to debug with."""

    def __init__(self, host: Host) -> None:
        self.host = host

    def ask(self, question: Question, sites: Sequence[str]) -> Iterator[tuple[str, bytes]]:
        for site in sites:
            yield site, self.host.answer(question.call(site), question.payload, question.each.get(site))

    def close(self) -> None:
        pass
