"""The guard: no answer reaches the sums before it has been held against the ledger and its site's images.

A bad answer raises `Rejected` with the site's name and the rule it broke; the round goes on with the other
sites.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import torch
from pydantic import Field, model_validator
from torch import Tensor

from equipoise.errors import Rejected
from equipoise.exchange.clip import ROUNDING, updates
from equipoise.exchange.codec import CodecError, decode_upload, shown
from equipoise.exchange.ledger import Entry, Line, Shape, entries
from equipoise.exchange.reduction import LARGEST, largest_whole, spread, tensors_of
from equipoise.exchange.robust import Robust, Rule
from equipoise.leaves import SAMPLES, Limit, Mean, Upload
from equipoise.options import Options

SLACK = 1e-6
"""a bound is exceeded by more than rounding"""
FEWEST_MASKED = 3
"""sites of a masked sum, at least: a sum of two tells each of them the other's value"""
MOST_MASKED = 1024
"""and at most: every two of them share a mask"""
VARIANCE = "running_var"
"""what tensors are called that no network can work with below 0"""


class ExchangeOptions(Options):
    """Limits on what is taken from a site."""

    max_norm: float = Field(1e5, gt=0)
    """largest Euclidean norm of one leaf's value (sums are exempt: they grow with the data)"""
    max_weight: float = Field(1e6, gt=0, le=LARGEST)
    """largest weight a site may claim; its training images, or a method's own bound, are mostly far below"""
    max_ratio: float = Field(30.0, gt=1)
    """a site that moves the model so many times as far as the median is left out; from a third of it on it is
    slowed down (a federation of one site has no others to compare with, and none to protect)"""
    clip: float | None = Field(None, gt=0)
    """a site makes its update smaller, before it is sent or masked, where the Euclidean norm is larger than
    this; left out, it sends the update as it is"""
    max_rows: int = Field(100_000, gt=0)
    """longest accepted length where the ledger leaves a length open"""
    min_sites: int = Field(1, ge=1)
    """a round with fewer usable answers stops the run"""
    secure: bool = False
    """sites mask their answers, so that the coordinator learns sums of at least three sites and nothing else
    (docs/privacy.md)"""
    reduce: Rule = "mean"
    """how updates are combined: by their mean, or against broken and hostile sites by `"median"`, `"trimmed"`
    mean or `"krum"`, for which the coordinator reads each site's own and every site must allow it"""
    hostile: float = Field(0.2, ge=0, lt=0.5)
    """trimmed, krum: the share of sites that may be broken or hostile, rounded up to whole sites"""
    picks: int | None = Field(None, ge=1)
    """krum: how many updates are picked and averaged: 1 is Krum; left out, all but the hostile ones and two
    more are (Multi-Krum)"""

    @model_validator(mode="after")
    def _hidden_or_compared(self) -> ExchangeOptions:
        if self.compare is not None and self.secure:
            raise ValueError(
                f'reduce = "{self.reduce}" compares the sites\' updates, and secure hides them: leave one out'
            )
        return self

    @model_validator(mode="after")
    def _clipped_within_the_limit(self) -> ExchangeOptions:
        if self.clip is not None and self.clip > self.max_norm:
            raise ValueError(
                f"clip = {self.clip:g} is larger than max_norm = {self.max_norm:g}, beyond which an answer "
                "is left out: set a smaller clip"
            )
        return self

    @property
    def least(self) -> int:
        """The fewest sites of a sum: a masked one has three at least."""
        return max(FEWEST_MASKED, self.min_sites) if self.secure else self.min_sites

    @property
    def compare(self) -> Robust | None:
        """How means are combined by comparing the sites' values; None: they are only added up."""
        return None if self.reduce == "mean" else Robust(self.reduce, self.hostile, self.picks)


@dataclass(frozen=True)
class Bounds:
    """What is known beforehand of honest answers: the method's limits, and how many images each site has."""

    limits: Mapping[str, Limit] = field(default_factory=dict)
    """by question.leaf"""
    images: Mapping[str, Mapping[str, int]] = field(default_factory=dict)
    """by site and split, as told when it joined; a site that is not named is not bound"""

    @cached_property
    def totals(self) -> Mapping[str, int]:
        """By split: the images of all sites."""
        return sum((Counter(images) for images in self.images.values()), Counter())

    def problem(self, site: str, question: str, upload: Upload) -> str | None:
        """What is wrong with weights or values, in words."""
        for name, leaf in upload.items():
            limit = self.limits.get(f"{question}.{name}", SAMPLES if isinstance(leaf, Mean) else None)
            if limit is None or site not in self.images:
                continue
            total = self.totals.get(limit.split, 0) if limit.total else 0
            most = limit.plain + limit.images * self.images[site].get(limit.split, 0) + limit.total * total
            least = -most if limit.signed else limit.least
            what = f"the weight of '{name}'" if isinstance(leaf, Mean) else f"leaf '{name}'"
            for x in [torch.as_tensor(leaf.weight)] if isinstance(leaf, Mean) else tensors_of(leaf).values():
                if not x.numel():
                    continue
                low, high = (float(edge) for edge in torch.aminmax(x.to(torch.float64)))
                if low < least - SLACK * (1 + abs(least)):
                    return f"{what} has {low:g}, and nothing below {least:g} is possible"
                if high > most * (1 + SLACK) + SLACK:
                    return (
                        f"{what} has {high:g}, and at most {most:g} are possible with the images the site has"
                    )
        return None


def table_cap(line: Line) -> int:
    """More bytes than the table of any honest answer to this question can have."""
    return 4096 + sum(256 + 2 * len(entry.name) for entry in line.up)


def size_cap(line: Line, options: ExchangeOptions) -> int:
    """More bytes than any honest answer to this question can have."""
    return table_cap(line) + sum(entry.bytes(options.max_rows) for entry in line.up)


def check(
    site: str,
    data: bytes,
    line: Line,
    options: ExchangeOptions,
    bounds: Bounds = Bounds(),
    round: int | None = None,
    sent: Mapping[str, Tensor] | None = None,
    sites: int = 1,
) -> tuple[dict[str, Any], Upload]:
    """The header and leaves of an answer that keeps every rule; `Rejected` otherwise.

    `sent` are the tensors the site received, by the names they have in its answer (none: not known, so a
    change cannot be judged). `sites` is how many were asked: all their answers must fit into one sum.
    """

    def reject(reason: str) -> Rejected:
        return rejected(site, line.question, reason)

    cap = size_cap(line, options)
    if len(data) > cap:
        raise reject(f"its answer has {len(data):,} bytes, at most {cap:,} are possible")
    try:
        header, upload = decode_upload(data, table_cap(line))
    except CodecError as error:
        raise reject(str(error)) from error
    asked = {"site": site, "question": line.question, "round": round}
    for what, value in asked.items():
        if value is not None and header.get(what, value) != value:
            raise reject(f"its answer is of another {what}")
    # By leaf and path: joined names would let a leaf called "a/b" pass for tensor b of leaf a.
    given = {(entry.leaf, entry.tensor): entry for entry in entries(upload)}
    expected = {(entry.leaf, entry.tensor): entry for entry in line.up}
    if set(given) != set(expected):
        extra, missing = sorted(set(given) - set(expected)), sorted(set(expected) - set(given))
        raise reject(
            f"extra tensor '{shown(given[extra[0]].name)}'"
            if extra
            else f"missing tensor '{expected[missing[0]].name}'"
        )
    for key, entry in expected.items():
        if problem := _mismatch(entry, given[key], options):
            raise reject(f"tensor '{entry.name}' {problem}")
    for name, leaf in upload.items():
        tensors = list(tensors_of(leaf).values())
        weight = torch.as_tensor(leaf.weight, dtype=torch.float64) if isinstance(leaf, Mean) else None
        if weight is not None and (problem := _bad_weight(weight, options)):
            raise reject(f"the weight of '{shown(name)}' {problem}")
        if problem := _bad_values(tensors, weight, options, leaf.kind != "sum", sites):
            raise reject(f"leaf '{shown(name)}' {problem}")
    problem = bounds.problem(site, line.question, upload) or _bad_variance(upload, sent)
    if problem := problem or _not_clipped(upload, sent, options):
        raise reject(problem)
    return header, upload


def rejected(site: str, question: str, reason: str) -> Rejected:
    """The error of one answer that is left out."""
    return Rejected(f"site '{site}' was left out of '{question}': {reason}")


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
        (0 <= g <= rows if e is None else g == e)
        for g, e in zip(given, expected, strict=True)
        if g is not None
    )


def _bad_weight(weight: Tensor, options: ExchangeOptions) -> str | None:
    if not torch.isfinite(weight).all():
        return "is not finite"
    if (weight < 0).any():
        return "is negative"
    if (weight > options.max_weight).any():
        return f"is {weight.max().item():g}, larger than exchange.max_weight = {options.max_weight:g}"
    return None


def _bad_variance(upload: Upload, sent: Mapping[str, Tensor] | None) -> str | None:
    """A variance below 0 makes every score of a network NaN, however small it is.

    A tensor with the name and shape of one that was sent tells how that has changed; any other tells things
    as they are.
    """
    for name, leaf in upload.items():
        for path, x in tensors_of(leaf).items():
            if sent is None or not path.endswith(VARIANCE):
                continue
            received = sent.get(path, torch.zeros(()))
            received = received if received.shape == x.shape else torch.zeros(())
            if bool((received + x < -SLACK * (1 + received)).any()):
                return f"tensor '{name}/{path}' makes a variance negative"
    return None


def _not_clipped(upload: Upload, sent: Mapping[str, Tensor] | None, options: ExchangeOptions) -> str | None:
    """An update that its site should have made smaller."""
    if options.clip is None:
        return None
    for name, norm in updates(upload, sent or {}):
        if norm > options.clip * (1 + ROUNDING):
            return f"leaf '{name}' has norm {norm:g}, and its site did not clip it to {options.clip:g}"
    return None


def _bad_values(
    tensors: list[Tensor], weight: Tensor | None, options: ExchangeOptions, bounded: bool, sites: int
) -> str | None:
    norm, most = 0.0, largest_whole(sites)
    for x in tensors:
        if not x.is_floating_point() and weight is None:
            if x.dtype == torch.int64 and bool(((x > most) | (x < -most)).any()):
                return f"has a whole number above 2^{most.bit_length() - 1}"
            continue
        x = x if x.is_floating_point() else x.to(torch.float64)
        if not x.numel():
            continue
        low, high = (float(edge) for edge in torch.aminmax(x))
        if not math.isfinite(low) or not math.isfinite(high):
            return "has values that are not finite"
        norm = math.hypot(norm, float(torch.linalg.vector_norm(x.reshape(-1))))
        largest = max(-low, high)
        if weight is not None and x.numel():
            largest = float((x.abs() * spread(weight, x)).max()) if weight.dim() else largest * float(weight)
        if largest > LARGEST:
            return f"times its weight reaches {largest:g}, more than the fixed-point range {LARGEST:g}"
    if bounded and norm > options.max_norm:
        return f"has norm {norm:g}, larger than exchange.max_norm = {options.max_norm:g}"
    return None
