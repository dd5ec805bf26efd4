"""Bad answers: what a broken or hostile site may send, and what it is turned away with.

`KINDS` has them by name, each a change of an honest answer's bytes and a part of the reason. They are tried
on a whole tiny run in one process (tests/server), through Flower's messages (tests/flower), and by a site of
its own over TLS (tests/flower/actor.py).
"""

from __future__ import annotations

import json
import struct
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
    """An engine in which one site's answer to a question in the given rounds is changed, or lost."""

    def __init__(
        self, engine: Engine, site: str, change: Change, rounds: Collection[int], question: str = "train"
    ) -> None:
        self.engine, self.site, self.change, self.rounds, self.question = (
            engine,
            site,
            change,
            rounds,
            question,
        )

    def ask(self, question: Question, sites: Sequence[str]) -> Iterator[tuple[str, bytes]]:
        for site, data in self.engine.ask(question, sites):
            if (site, question.name) == (self.site, self.question) and question.round in self.rounds:
                changed = self.change(data)
                if changed is not None:
                    yield site, changed
            else:
                yield site, data

    def close(self) -> None:
        self.engine.close()


def delta(
    change: Callable[[dict[str, torch.Tensor]], Any], weight: Callable[[float], float] = float
) -> Change:
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


def scaled(factor: float) -> Change:
    """An answer that moves all but the statistics of BatchNorm so many times as far."""

    def stretch(value: dict[str, torch.Tensor]) -> None:
        value.update({name: tensor * factor for name, tensor in value.items() if "running" not in name})

    return delta(stretch)


def headed(change: Callable[[dict[str, Any]], Any]) -> Change:
    """An answer whose header is changed in place."""

    def spoil(data: bytes) -> bytes:
        header, upload = decode_upload(data)
        change(header)
        header.pop("leaves", None)
        return encode_upload(upload, header)

    return spoil


def tabled(change: Callable[[dict[str, Any]], dict[str, Any] | str | bytes | None]) -> Change:
    """An answer whose table of tensors is changed in place, or another in its stead; the bytes behind it
    stay."""

    def spoil(data: bytes) -> bytes:
        (size,) = struct.unpack_from("<Q", data)
        table = json.loads(bytes(data[8 : 8 + size]))
        other = change(table)
        other = table if other is None else other
        text = (
            other
            if isinstance(other, bytes)
            else (other if isinstance(other, str) else json.dumps(other)).encode()
        )
        text += b" " * (-len(text) % 8)
        return struct.pack("<Q", len(text)) + text + bytes(data[8 + size :])

    return spoil


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
    "weight above its images": (delta(lambda value: None, lambda w: 1e5), "at most"),
    "huge change": (scaled(3000.0), "times as large as usual"),
    "nested deep": (
        tabled(lambda table: table.update({"delta/" + "x/" * 1200: table.pop(f"delta/{W}")})),
        "levels deep",
    ),
    "nested header": (
        tabled(lambda table: table["__metadata__"].update(equipoise="[" * 1200)),
        "not readable",
    ),
    "wrong kind": (
        with_leaf(loss=Sum(torch.tensor(1.0, dtype=torch.float64))),
        "is a 'sum' leaf, not 'mean'",
    ),
    "oversize": (lambda data: data + bytes(10**7), "bytes, at most"),
    "truncated": (lambda data: data[: len(data) // 2], "message"),
    "garbage": (lambda data: bytes(range(256)) * 10, "message"),
    "empty": (lambda data: b"", "message"),
}
