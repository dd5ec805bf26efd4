"""The guard: no answer reaches the sums before it has been held against the ledger.

A bad answer raises `Rejected` with the site's name and the rule it broke; the round goes on with the other sites.
"""

from __future__ import annotations

import math

import torch
from pydantic import Field
from torch import Tensor

from equipoise.errors import Rejected
from equipoise.exchange.codec import CodecError, decode_upload
from equipoise.exchange.ledger import Entry, Line, Shape, entries
from equipoise.exchange.reduction import LARGEST, spread, tensors_of
from equipoise.leaves import Mean, Upload
from equipoise.options import Options


class ExchangeOptions(Options):
    """Limits on what is taken from a site."""

    max_norm: float = Field(1e5, gt=0)
    """largest Euclidean norm of one leaf's value (sums are exempt: they grow with the data)"""
    max_weight: float = Field(1e6, gt=0, le=LARGEST)
    """largest weight a site may claim (samples, for FedAvg)"""
    max_rows: int = Field(100_000, gt=0)
    """longest accepted length where the ledger leaves a length open"""
    min_sites: int = Field(1, ge=1)
    """a round with fewer usable answers stops the run"""


def size_cap(line: Line, options: ExchangeOptions) -> int:
    """More bytes than any honest answer to this question can have."""
    return 4096 + sum(256 + 2 * len(entry.name) + entry.bytes(options.max_rows) for entry in line.up)


def check(site: str, data: bytes, line: Line, options: ExchangeOptions) -> tuple[dict, Upload]:
    """The header and leaves of an answer that keeps every rule; `Rejected` otherwise."""

    def reject(reason: str) -> Rejected:
        return Rejected(f"site '{site}' was left out of '{line.question}': {reason}")

    cap = size_cap(line, options)
    if len(data) > cap:
        raise reject(f"its answer has {len(data):,} bytes, at most {cap:,} are possible")
    try:
        header, upload = decode_upload(data)
    except CodecError as error:
        raise reject(str(error)) from error
    # By leaf and path: joined names would let a leaf called "a/b" pass for tensor b of leaf a.
    given = {(entry.leaf, entry.tensor): entry for entry in entries(upload)}
    expected = {(entry.leaf, entry.tensor): entry for entry in line.up}
    if set(given) != set(expected):
        extra, missing = sorted(set(given) - set(expected)), sorted(set(expected) - set(given))
        raise reject(f"extra tensor '{given[extra[0]].name}'" if extra else f"missing tensor '{expected[missing[0]].name}'")
    for key, entry in expected.items():
        if problem := _mismatch(entry, given[key], options):
            raise reject(f"tensor '{entry.name}' {problem}")
    for name, leaf in upload.items():
        tensors = list(tensors_of(leaf).values())
        weight = torch.as_tensor(leaf.weight, dtype=torch.float64) if isinstance(leaf, Mean) else None
        if weight is not None and (problem := _bad_weight(weight, options)):
            raise reject(f"the weight of '{name}' {problem}")
        if problem := _bad_values(tensors, weight, options, leaf.kind != "sum"):
            raise reject(f"leaf '{name}' {problem}")
    return header, upload


def _mismatch(entry: Entry, given: Entry, options: ExchangeOptions) -> str | None:
    if given.kind != entry.kind:
        return f"is a '{given.kind}' leaf, not '{entry.kind}'"
    if given.dtype != entry.dtype:
        return f"has dtype {given.dtype}, not {entry.dtype}"
    if not _fits(given.shape, entry.shape, options.max_rows):
        return f"has shape {given.shape}, not {entry.shape}"
    if given.weight != entry.weight:
        return f"has a weight of shape {given.weight}, not {entry.weight}"
    return None


def _fits(given: Shape, expected: Shape, rows: int) -> bool:
    return len(given) == len(expected) and all(
        (0 <= g <= rows if e is None else g == e) for g, e in zip(given, expected, strict=True) if g is not None
    )


def _bad_weight(weight: Tensor, options: ExchangeOptions) -> str | None:
    if not torch.isfinite(weight).all():
        return "is not finite"
    if (weight < 0).any():
        return "is negative"
    if (weight > options.max_weight).any():
        return f"is {weight.max().item():g}, larger than exchange.max_weight = {options.max_weight:g}"
    return None


def _bad_values(tensors: list[Tensor], weight: Tensor | None, options: ExchangeOptions, bounded: bool) -> str | None:
    square = 0.0
    for x in tensors:
        if not x.is_floating_point() and weight is None:
            # Whole numbers are summed as they are: keep 1,024 sites from overflowing an int64.
            if x.dtype == torch.int64 and bool(((x > 2**52) | (x < -(2**52))).any()):
                return "has a whole number above 2^52"
            continue
        x = x if x.is_floating_point() else x.to(torch.float64)
        if not x.numel():
            continue
        low, high = (float(edge) for edge in torch.aminmax(x))
        if not math.isfinite(low) or not math.isfinite(high):
            return "has values that are not finite"
        square += float(torch.linalg.vector_norm(x.reshape(-1))) ** 2
        largest = max(-low, high)
        if weight is not None and x.numel():
            largest = float((x.abs() * spread(weight, x)).max()) if weight.dim() else largest * float(weight)
        if largest > LARGEST:
            return f"times its weight reaches {largest:g}, more than the fixed-point range {LARGEST:g}"
    if bounded and square**0.5 > options.max_norm:
        return f"has norm {square**0.5:g}, larger than exchange.max_norm = {options.max_norm:g}"
    return None
