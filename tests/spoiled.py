"""Bad answers: what a broken or hostile site may send, and what it is turned away with.

`KINDS` has them by name, each a change of an honest answer's bytes and a part of the reason. They are tried on a whole tiny run in
one process (tests/server), through Flower's messages (tests/flower), and by a site of its own over TLS (tests/flower/actor.py).
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Sequence
from typing import Any

import torch

from equipoise.engine import Engine, Question
from equipoise.exchange import decode_upload, encode_upload
from equipoise.leaves import Each, Mean, Sum

Change = Callable[[bytes], bytes | None]
"""other bytes for an answer; None loses it"""
W = "body.conv1.weight"


class Spoil:
    """An engine in which one site's `train` answer of the given rounds is changed, or lost."""

    def __init__(self, engine: Engine, site: str, change: Change, rounds: Collection[int]) -> None:
        self.engine, self.site, self.change, self.rounds = engine, site, change, rounds

    def ask(self, question: Question, sites: Sequence[str]) -> Iterator[tuple[str, bytes]]:
        for site, data in self.engine.ask(question, sites):
            if (site, question.name) == (self.site, "train") and question.round in self.rounds:
                changed = self.change(data)
                if changed is not None:
                    yield site, changed
            else:
                yield site, data

    def close(self) -> None:
        self.engine.close()


def delta(change: Callable[[dict[str, torch.Tensor]], Any], weight: Callable[[float], float] = float) -> Change:
    """An answer whose delta is changed in place, and its weight by a function."""

    def spoil(data: bytes) -> bytes:
        header, upload = decode_upload(data)
        leaf = upload["delta"]
        assert isinstance(leaf, Mean)
        value = {name: tensor.clone() for name, tensor in leaf.value.items()}
        change(value)
        return encode_upload({**upload, "delta": Mean(value, weight(float(leaf.weight)))}, header)

    return spoil


def put(make: Callable[[torch.Tensor], torch.Tensor]) -> Callable[[dict[str, torch.Tensor]], None]:
    return lambda value: value.update({W: make(value[W])})


def with_leaf(**leaves: Any) -> Change:
    """An answer with other leaves beside or in place of its own."""

    def spoil(data: bytes) -> bytes:
        header, upload = decode_upload(data)
        return encode_upload({**upload, **leaves}, header)

    return spoil


KINDS: dict[str, tuple[Change, str]] = {
    "NaN": (delta(put(lambda x: x * torch.nan)), "not finite"),
    "Inf": (delta(put(lambda x: x + torch.inf)), "not finite"),
    "wrong shape": (delta(put(lambda x: x.transpose(0, 1))), "has shape"),
    "broadcastable shape": (delta(put(lambda x: x[:1])), "has shape"),
    "dtype": (delta(put(lambda x: x.double())), "has dtype float64"),
    "extra tensor": (delta(lambda value: value.update(more=torch.ones(2))), "extra tensor 'delta/more'"),
    "extra leaf": (with_leaf(images=Each(torch.ones(3))), "extra tensor 'images'"),
    "missing tensor": (delta(lambda value: value.__delitem__(W)), f"missing tensor 'delta/{W}'"),
    "negative weight": (delta(lambda value: None, lambda w: -w), "negative"),
    "NaN weight": (delta(lambda value: None, lambda w: float("nan")), "not finite"),
    "huge weight": (delta(lambda value: None, lambda w: 1e9), "max_weight"),
    "huge values": (delta(put(lambda x: x + 1e6)), "more than the fixed-point range"),
    "wrong kind": (with_leaf(loss=Sum(torch.tensor(1.0, dtype=torch.float64))), "is a 'sum' leaf, not 'mean'"),
    "oversize": (lambda data: data + bytes(10**7), "bytes, at most"),
    "truncated": (lambda data: data[: len(data) // 2], "message"),
    "garbage": (lambda data: bytes(range(256)) * 10, "message"),
    "empty": (lambda data: b"", "message"),
}
