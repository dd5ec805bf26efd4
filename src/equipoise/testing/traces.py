"""What a run leaves behind: every answer as it left a site, and all that a repeated run must have too."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import torch
from torch import Tensor

from equipoise.config import Config
from equipoise.engine import Question, Serial
from equipoise.exchange import Ledger, decode_upload
from equipoise.running import Result, prepare
from equipoise.server.journal import read as read_journal
from equipoise.setup import material


@dataclass(frozen=True)
class Answer:
    """One answer as it left a site, and what the site kept to itself with it."""

    question: Question
    site: str
    data: bytes
    kept: Mapping[str, Tensor]


@dataclass
class Tap:
    """Stands between the loop and the serial engine: writes every answer down, can turn the order round and
    lose answers."""

    engine: Serial
    reverse: bool = False
    lose: Callable[[Question, str], bool] = field(default=lambda question, site: False)
    answers: list[Answer] = field(default_factory=list)

    def ask(self, question: Question, sites: Sequence[str]) -> Iterator[tuple[str, bytes]]:
        for site, data in self.engine.ask(question, list(reversed(sites)) if self.reverse else sites):
            store = self.engine.host.store
            wrote = question.write is not None and decode_upload(data)[0]["wrote"]
            self.answers.append(
                Answer(question, site, data, store.read(site, question.write or "") if wrote else {})
            )
            if not self.lose(question, site):
                yield site, data

    def close(self) -> None:
        self.engine.close()


@dataclass(frozen=True)
class Trace:
    """All that must be the same when a run is repeated, and the answers that were given on the way."""

    result: Result
    tensors: Mapping[str, Tensor]
    """the server tree and every site's private tree"""
    answers: tuple[Answer, ...]
    """none where sites ran in other processes"""
    config: Config
    tap: Tap | None

    def ledger(self) -> Ledger:
        """What the run said it would exchange."""
        if self.tap is None:
            raise AssertionError("a ledger is looked at where the sites run in this process")
        dataset = material(self.config)
        return prepare(self.config, dataset.facts, dataset).ledger

    def difference(self, other: Trace) -> str | None:
        """Where two runs part, or None where they agree to the bit."""
        if set(self.tensors) != set(other.tensors):
            return f"only one of the runs has '{min(set(self.tensors) ^ set(other.tensors))}'"
        for name, tensor in self.tensors.items():
            if not same_bits(tensor, other.tensors[name]):
                return f"'{name}' differs by up to {distance(tensor, other.tensors[name]):.3g}"
        for mine, theirs in zip(self.result.history, other.result.history, strict=True):
            if json.dumps(mine, sort_keys=True) != json.dumps(theirs, sort_keys=True):
                keys = [key for key in mine if mine[key] != theirs.get(key)]
                return f"the metrics of round {mine['round']} differ in {', '.join(keys)}"
        return None


def same_bits(a: Tensor, b: Tensor) -> bool:
    """Same kind, shape and bits; other than `==`, a NaN equals itself and 0 does not equal -0."""
    return a.dtype == b.dtype and a.shape == b.shape and raw(a) == raw(b)


def raw(x: Tensor) -> bytes:
    """The bytes of a tensor."""
    return x.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy().tobytes()


def distance(a: Tensor, b: Tensor) -> float:
    return float((a.double() - b.double()).abs().max()) if a.shape == b.shape and a.numel() else math.inf


def expect(condition: bool, otherwise: str) -> None:
    """Like `assert`, also under `python -O`."""
    if not condition:
        raise AssertionError(otherwise)


def same(a: Trace, b: Trace, otherwise: str) -> None:
    """Two runs agree to the bit."""
    difference = a.difference(b)
    expect(difference is None, f"{otherwise}: {difference}")


def finite(trace: Trace) -> None:
    """All numbers of a run are numbers."""
    for name, tensor in trace.tensors.items():
        expect(
            not tensor.is_floating_point() or bool(torch.isfinite(tensor).all()), f"'{name}' is not finite"
        )
    for row in trace.result.history:
        expect(
            not re.search(r"\b(NaN|Infinity)\b", json.dumps(row)),
            f"a metric of round {row['round']} is not finite",
        )


def rejected(folder: Path) -> list[str]:
    """Why answers were turned away."""
    return [
        line["reason"] for line in read_journal(folder / "journal.jsonl")[0] if line["event"] == "rejected"
    ]


def nobody_lost(trace: Trace, sites: Iterable[str]) -> None:
    """Every site counts in every round."""
    reasons = rejected(trace.result.folder)
    expect(not reasons, f"an answer was turned away: {reasons[0] if reasons else ''}")
    for row in trace.result.history:
        lost = sorted(set(sites) - set(row["sites"]))
        expect(not lost, f"site '{lost[0] if lost else ''}' was left out of round {row['round']}")
