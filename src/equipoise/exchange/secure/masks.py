"""A masked answer: one leaf of masked words as bytes, and beside it the leaves that cannot be masked."""

from __future__ import annotations

import json
from dataclasses import dataclass

import torch
from torch import Tensor

from equipoise.errors import Rejected
from equipoise.exchange.codec import CodecError, decode_upload, encode_upload, shown
from equipoise.exchange.guard import ExchangeOptions, check
from equipoise.exchange.ledger import Entry, Line, entries
from equipoise.exchange.secure.layout import Layout, maskable
from equipoise.exchange.secure.streams import Stream, add_streams
from equipoise.leaves import Each, Sum, Upload

MASKED = "@masked"
"""the leaf of masked words, as bytes"""
LEFT_OUT = "left_out"
"""in the header of an answer: why the site has left itself out"""
SHORT = 4096
"""bytes of such an answer, at most"""


@dataclass(frozen=True)
class Masks:
    """What one site adds to one answer."""

    streams: tuple[Stream, ...]
    fine: tuple[str, ...]
    words: int

    def to_bytes(self) -> bytes:
        streams = [(sign, key.hex()) for sign, key in self.streams]
        return json.dumps({"streams": streams, "fine": self.fine, "words": self.words}).encode()

    @classmethod
    def from_bytes(cls, data: bytes) -> Masks:
        table = json.loads(bytes(data))
        streams = tuple((sign, bytes.fromhex(key)) for sign, key in table["streams"])
        return cls(streams, tuple(table["fine"]), table["words"])


def conceal(data: bytes, masks: Masks, options: ExchangeOptions) -> bytes:
    """A site's answer, masked. The site checks it first by the coordinator's rules, which nobody else can
    any more; an answer that breaks one is not sent, only why."""
    header, upload = decode_upload(data)
    up = entries(upload)
    layout = Layout.of(up, masks.fine)
    try:
        check(str(header["site"]), data, Line(str(header["question"]), 0, up, 0), options)
        if layout.count != masks.words:
            raise Rejected(f"its answer has {layout.count:,} words, and {masks.words:,} are expected")
    except Rejected as error:
        return encode_upload({}, {**header, LEFT_OUT: str(error)})
    words = layout.words({name: leaf for name, leaf in upload.items() if not isinstance(leaf, Each)})
    add_streams(words, masks.streams)
    each = {name: leaf for name, leaf in upload.items() if isinstance(leaf, Each)}
    return encode_upload({MASKED: Sum(words.view(torch.uint8)), **each}, header)


def masked_line(line: Line, words: int) -> Line:
    """What the ledger says of a masked answer."""
    rest = tuple(entry for entry in line.up if not maskable(entry))
    return Line(line.question, line.since, (Entry(MASKED, "", "sum", "uint8", (8 * words,)), *rest), 0)


def words_of(upload: Upload) -> tuple[Tensor, Upload]:
    """The masked words of an answer, and its other leaves."""
    value = upload[MASKED].value
    assert isinstance(value, Tensor)
    return value.view(torch.int64), {name: leaf for name, leaf in upload.items() if name != MASKED}


def left_out(data: bytes) -> str | None:
    """Why a site has left itself out, if its answer says so."""
    if len(data) > SHORT:
        return None
    try:
        reason = decode_upload(data)[0].get(LEFT_OUT)
    except CodecError:
        return None
    return shown(str(reason), 300) if reason else None
