"""The coordinator's end: questions go out to Flower's nodes, answers come back in any order.

A site that does not answer within the deadline is asked again as often as `retries` says and then left out of
the question. One that was started anew while it owed an answer is asked again at once. Every message has a
ticket, a number that only grows; a site repeats it in its answer, so that an answer to another message,
another question or another run is noticed and ignored. Messages and answers also carry the head of the
sender's journal, and the other side writes it into its own.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

from flwr.app import Message, RecordDict

from equipoise.engine.flower.wire import INVITATION, MASKS, array, message_type, unwrap, wrap
from equipoise.errors import SiteError
from equipoise.exchange.codec import CodecError, shown
from equipoise.exchange.question import Question
from equipoise.keeping import FIRST, as_hash, read_json, write_json

Tell = Callable[..., None]
"""told of what goes wrong: tell(event, site=…, reason=…), as a journal's `write`"""
Newcomers = Callable[[], Mapping[str, bytes]]
"""sites that were not known when last asked, with their keys"""
UNAVAILABLE = 5
"""Flower's code for a node that has not been heard of for too long"""
ECHOED = ("run", "ticket", "site", "round", "question")
BLOCK = 1000
"""tickets that one writing of their file stands for"""
LOOK = 1.0
"""seconds between two looks at who is online"""


class Node(Protocol):
    """What Flower knows of a node that is online."""

    node_id: int
    public_key: bytes
    last_activated_at: str


class Grid(Protocol):
    """The part of Flower's grid that is used here."""

    def get_nodes(self) -> Any: ...

    def push_messages(self, messages: Any) -> Any: ...

    def pull_messages(self, message_ids: Any) -> Any: ...


class Tickets:
    """Numbers that only grow, whatever the clock says: a file keeps one that none so far has reached.

    The clock counts where it is ahead of the file. So a coordinator that was started anew is not taken for a
    replay of itself.
    """

    def __init__(self, path: Path | None = None) -> None:
        self.path = path
        try:
            kept = (
                read_json(path, "delete it; tickets then begin at the clock's time")["ticket"] if path else 0
            )
        except FileNotFoundError:
            kept = 0
        self._last = self._kept = max(kept, time.time_ns())

    def next(self) -> int:
        """A ticket that no message has had."""
        self._last += 1
        if self.path is not None and self._last > self._kept:
            self._kept = self._last + BLOCK
            write_json(self.path, {"ticket": self._kept})
        return self._last


@dataclass
class Owed:
    """An answer that is waited for."""

    due: float
    """when to give up on the newest message"""
    tries: int = 0
    since: str = ""
    """when the site was started, as of the newest message"""
    sent: dict[str, dict[str, Any]] = field(default_factory=dict)
    """by message id: the table that went with it"""


class FlowerEngine:
    """Sites behind a Flower grid. `keys` are the sites' public keys: they say which node is which site."""

    def __init__(
        self,
        grid: Grid,
        run: str,
        keys: Mapping[str, bytes],
        tell: Tell,
        *,
        deadline: float,
        retries: int,
        poll: float = 0.1,
        tickets: Tickets | None = None,
        head: Callable[[], str] = lambda: FIRST,
    ) -> None:
        self.grid, self.run, self.tell = grid, run, tell
        self.deadline, self.retries, self.poll = deadline, retries, poll
        self._sites = {key: site for site, key in keys.items()}
        self._tickets, self._head = tickets or Tickets(), head
        self.marks: Mapping[str, str] = {}
        """the digest of the run's blueprint, by parts; known when the sites have said what they hold"""

    def online(self) -> dict[str, Node]:
        """The sites Flower can reach now."""
        return {
            self._sites[node.public_key]: node
            for node in self.grid.get_nodes()
            if node.public_key in self._sites
        }

    def invite(
        self,
        table: Mapping[str, Any],
        sites: Sequence[str],
        patience: float,
        newcomers: Newcomers = lambda: {},
    ) -> dict[str, dict[str, Any]]:
        """Ask sites to join a run; what each that accepts tells of itself. Sites have `patience` seconds to
        come online. `newcomers` are sites that were listed since, by their keys: as long as anybody is waited
        for, they are invited too."""

        def letter(site: str, ticket: int) -> tuple[dict[str, Any], RecordDict]:
            call = {
                "run": self.run,
                "ticket": ticket,
                "site": site,
                "round": 0,
                "question": "",
                "journal": self._head(),
            }
            return call, wrap({**table, **call})

        cards = {}
        self.tell("invited", sites=list(sites), seconds=patience)

        def more() -> list[str]:
            new = newcomers()
            self._sites |= {key: site for site, key in new.items()}
            if new:
                self.tell("invited", sites=sorted(new), seconds=patience)
            return sorted(new)

        for site, reply, _ in self._converse(sites, INVITATION, letter, 0, patience, more):
            if isinstance(reply.get("card"), dict):
                cards[site] = reply["card"]
                self.tell("joined", site=site)
            else:
                self.tell(
                    "ignored",
                    site=site,
                    round=0,
                    question="",
                    reason="accepted the run without saying what it holds",
                )
        return cards

    def ask(self, question: Question, sites: Sequence[str]) -> Iterator[tuple[str, bytes]]:
        payload = array(question.payload)

        def letter(site: str, ticket: int) -> tuple[dict[str, Any], RecordDict]:
            call = question.call(site).model_dump(mode="json") | {
                "run": self.run,
                "ticket": ticket,
                "journal": self._head(),
                "blueprint": dict(self.marks),
            }
            more = {"extra": question.each.get(site), "letter": question.letters.get(site)}
            arrays = {name: array(data) for name, data in more.items() if data is not None}
            return call, wrap(call, {"payload": payload, **arrays})

        for site, _, data in self._converse(
            sites, message_type(question), letter, question.round + 1, self.deadline
        ):
            if "answer" in data:
                yield site, data["answer"]
            else:
                self.tell(
                    "ignored",
                    site=site,
                    round=question.round + 1,
                    question=question.name,
                    reason="sent no answer",
                )

    def relay(self, step: str, letters: Mapping[str, bytes], round: int) -> Iterator[tuple[str, bytes]]:
        """Letters of secure aggregation. A site answers them in no time, unless it is at work for another
        run: they may take as long as a question."""

        def letter(site: str, ticket: int) -> tuple[dict[str, Any], RecordDict]:
            call = {
                "run": self.run,
                "ticket": ticket,
                "site": site,
                "round": round,
                "question": "",
                "step": step,
                "journal": self._head(),
            }
            return call, wrap(call, {"letter": array(letters[site])})

        for site, _, data in self._converse(list(letters), MASKS, letter, round + 1, self.deadline):
            if "answer" in data:
                yield site, data["answer"]

    def close(self) -> None:
        pass

    # One conversation ---------------------------------------------------------------------------------------

    def _converse(
        self,
        sites: Sequence[str],
        kind: str,
        letter: Callable[[str, int], tuple[dict[str, Any], RecordDict]],
        round: int,
        patience: float,
        more: Callable[[], Sequence[str]] = lambda: (),
    ) -> Iterator[tuple[str, dict[str, Any], dict[str, bytes]]]:
        """Good answers as they come. A site has `patience` seconds to come online, and from then on until the
        deadline. `round` counts from 1, as a reader does; 0 is before the first."""
        owed = {site: Owed(due=time.monotonic() + patience) for site in sites}
        looked, began = float("-inf"), time.monotonic()
        while owed:
            if time.monotonic() - looked >= LOOK:
                owed |= {site: Owed(due=time.monotonic() + patience) for site in more()}
                online, looked = self.online(), time.monotonic()
                back = [site for site in owed if site in online and self._wants(owed[site], online[site])]
                self._send(back, owed, online, kind, letter, round)
            asked, quiet = time.monotonic(), True
            replies = self.grid.pull_messages([number for debt in owed.values() for number in debt.sent])
            waited = time.monotonic() - asked
            for reply in replies:
                answered, quiet = self._read(reply, owed, round), False
                del reply  # it may be as large as a model
                if answered is not None:
                    del owed[answered[0]]
                    yield answered
                    answered = None
            late = [site for site, debt in owed.items() if not self._may_wait(debt)]
            again = [site for site in late if site in online and owed[site].tries <= self.retries]
            self._send(again, owed, online, kind, letter, round)
            for site in [site for site in late if site not in again]:
                debt = owed.pop(site)
                if debt.sent or debt.tries <= self.retries:  # otherwise its last failure was told already
                    what = (
                        f"no answer within {self.deadline:g} s"
                        if debt.tries
                        else f"not online within {patience:g} s"
                    )
                    self.tell("silent", site=site, round=round, tries=debt.tries, reason=what)
            if owed and quiet:
                # A look costs the server some work: seldom enough that it is a tenth of the wait at most. Our
                # own server lets us wait until there is an answer, which needs no pause.
                pause = max(self.poll, (time.monotonic() - began) / 10)
                time.sleep(max(0.0, min(LOOK, pause) - waited))

    def _wants(self, debt: Owed, node: Node) -> bool:
        """Whether a site that is online has nothing of ours to answer, or was started anew since it had; and
        may be asked."""
        return debt.tries <= self.retries and (not debt.sent or node.last_activated_at != debt.since)

    def _may_wait(self, debt: Owed) -> bool:
        """Whether there is still something to wait for."""
        return time.monotonic() < debt.due and (bool(debt.sent) or debt.tries <= self.retries)

    def _send(
        self,
        sites: Sequence[str],
        owed: Mapping[str, Owed],
        online: Mapping[str, Node],
        kind: str,
        letter: Callable[[str, int], tuple[dict[str, Any], RecordDict]],
        round: int,
    ) -> None:
        """Ask sites, all at once: what their messages have in common goes to Flower's server once."""
        if not sites:
            return
        calls, messages = list[dict[str, Any]](), list[Message]()
        for site in sites:
            call, content = letter(site, self._tickets.next())
            calls.append(call)
            messages.append(
                Message(content, online[site].node_id, kind, group_id=str(round), ttl=self.deadline + 60)
            )
        numbers = [*self.grid.push_messages(messages), *([None] * len(sites))]
        for site, call, number in zip(sites, calls, numbers, strict=False):
            if number is None:
                raise SiteError(
                    f"Flower did not take the message for site '{site}': is it too large, or the server's "
                    f"disk full?"
                )
            debt = owed[site]
            debt.sent[number] = call
            debt.tries, debt.due = debt.tries + 1, time.monotonic() + self.deadline
            debt.since = online[site].last_activated_at
            if debt.tries > 1:
                self.tell("asked again", site=site, round=round, question=call["question"], tries=debt.tries)

    def _read(
        self, reply: Message, owed: dict[str, Owed], round: int
    ) -> tuple[str, dict[str, Any], dict[str, bytes]] | None:
        """A good answer; of any other it is told what is wrong, and its site is asked again at the next look,
        if it has tries left."""
        number = reply.metadata.reply_to_message_id
        site = next((name for name, debt in owed.items() if number in debt.sent), None)
        if site is None:
            self.tell(
                "ignored",
                site=None,
                round=round,
                reason="an answer to a message that was never sent, or answered already",
            )
            return None
        debt = owed[site]
        call = debt.sent.pop(number)
        facts = {"site": site, "round": round, "question": call["question"]}
        if reply.has_error() and reply.error.code == UNAVAILABLE:
            self.tell("silent", **facts, tries=debt.tries, reason="no heartbeat for a minute")
            return None
        if reply.has_error():
            self.tell("failed", **facts, reason=f"Flower's error {reply.error.code}")
            return None
        try:
            table, data = unwrap(reply.content)
        except CodecError as error:
            self.tell("ignored", **facts, reason=str(error))
            return None
        head = as_hash(table.pop("journal", None))
        wrong = [key for key in ECHOED if table.get(key) != call[key]]
        if wrong:
            self.tell(
                "ignored",
                **facts,
                reason=f"an answer of another {wrong[0]}: replayed, stale or of another run",
            )
            return None
        if head is not None:
            self.tell("received", run=self.run, **facts, journal=head)
        if "refused" in table:
            self.tell("refused", **facts, reason=shown(str(table["refused"]), 500))
            del owed[site]
            return None
        if "failed" in table:
            self.tell("failed", **facts, reason=shown(str(table["failed"]), 100))
            return None
        return site, table, data
