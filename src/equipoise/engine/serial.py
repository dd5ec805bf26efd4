"""One site after the other, in this process."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from equipoise.engine.host import Host
from equipoise.engine.members import RUN, Members, concealed
from equipoise.exchange.question import Question


class Serial:
    """The simplest engine, and the one to debug with. `members` mask answers, where that is asked for."""

    run = RUN

    def __init__(self, host: Host, members: Members | None = None) -> None:
        self.host, self.members = host, members

    def ask(self, question: Question, sites: Sequence[str]) -> Iterator[tuple[str, bytes]]:
        for site in sites:
            call, letter = question.call(site), question.letters.get(site)
            answer = self.host.answer(call, question.payload, question.each.get(site))
            if letter is not None and self.members is not None:
                masks = self.members.masks(call, question.payload, letter)
                answer = concealed(answer, masks, self.members.options)
            yield site, answer

    def relay(self, step: str, letters: Mapping[str, bytes], round: int) -> Iterator[tuple[str, bytes]]:
        assert self.members is not None
        yield from self.members.relay(step, letters)

    def close(self) -> None:
        pass
