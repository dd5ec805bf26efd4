"""A site that does not behave: `python -m tests.flower.actor FOLDER PART` joins as `equipoise site join`
does, but plays a part.

    rogue                     in round r, answer `train` with the r-th of `PARTS`; behave in the others
    before | during | after   as in a power cut, be gone before, during or after the answer to `train` in
    round 1, once

Also what the tests in one process use to play the same parts.
"""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from flwr.app import Message, RecordDict
from tests.spoiled import KINDS

from equipoise.deploy import join, processes
from equipoise.engine.flower.wire import array, unwrap, wrap
from equipoise.server.journal import read as read_journal
from equipoise.site import Store

ECHOES: dict[str, Callable[[dict[str, Any]], dict[str, Any]]] = {
    "stale": lambda table: table | {"ticket": table["ticket"] - 1},
    "of another run": lambda table: table | {"run": "0123456789abcdef"},
    "of another site": lambda table: table | {"site": "site-00"},
    "of another round": lambda table: table | {"round": table["round"] + 1},
    "of another question": lambda table: table | {"question": "evaluate"},
}
PARTS = (*KINDS, "replayed", *ECHOES)
"""one per round, from round 0 on; a replay is the honest answer of the round before"""


def named(run: Path, site: str) -> None:
    """Hold a run's journal against the parts: each was turned away by the site's name and with its reason,
    and nothing else was."""
    lines = [
        line for line in read_journal(run / "journal.jsonl")[0] if line["event"] in ("rejected", "ignored")
    ]
    assert [(line["site"], line["round"], line["question"]) for line in lines] == [
        (site, r + 1, "train") for r in range(len(PARTS))
    ]
    for line, part in zip(lines, PARTS, strict=True):
        told = (
            ("rejected", KINDS[part][1])
            if part in KINDS
            else ("ignored", "replayed, stale or of another run")
        )
        assert line["event"] == told[0] and told[1] in line["reason"], f"{part}: {line}"


class Rogue:
    """Spoils a site's replies, as `PARTS` says."""

    def __init__(self) -> None:
        self._last = RecordDict()

    def __call__(self, asked: Message, reply: Message) -> Message:
        table, data = unwrap(reply.content)
        if asked.metadata.message_type != "train.train" or table["round"] >= len(PARTS):
            return reply
        honest, part = reply.content, PARTS[table["round"]]
        if part in KINDS:
            reply.content = wrap(table, {"answer": array(KINDS[part][0](data["answer"]) or b"")})
        elif part == "replayed":
            reply.content = self._last
        else:
            reply.content = wrap(ECHOES[part](table), {"answer": array(data["answer"])})
        self._last = honest
        return reply


def die() -> None:
    """What a power cut does: this process is gone."""
    for number in (*processes.family({os.getpid()}), os.getpid()):
        os.kill(number, signal.SIGKILL)


def main(folder: Path, part: str) -> None:
    respond = join.respond
    if part == "rogue":
        rogue = Rogue()
        join.respond = lambda message, desk: rogue(message, respond(message, desk))  # type: ignore[assignment, return-value]
    else:
        play(part, folder / f"died-{part}")
    join.join(folder)


def play(part: str, mark: Path) -> None:
    """Die once, at one moment of the answer to `train` in round 1."""
    respond, answer, write = join.respond, join.answer, Store.write
    moment = [False]

    def gone(now: str) -> None:
        if moment[0] and part == now and not mark.exists():
            mark.touch()
            die()

    def ask(message: Message, desk: Any) -> Message:
        table, _ = unwrap(message.content)
        moment[0] = (message.metadata.message_type, table["round"]) == ("train.train", 1)
        gone("before")
        return respond(message, desk)

    def keep(*given: Any) -> None:
        write(*given)
        gone("during")  # the private state of the round is written, and nothing was told

    def carry(desk: Any, node: Any) -> bool:
        answered = answer(desk, node)
        gone("after")
        return answered

    join.respond, join.answer, Store.write = ask, carry, keep  # type: ignore[method-assign, assignment]


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2])
