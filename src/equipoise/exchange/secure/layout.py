"""An answer as one vector of words: what the reduction would add up of it, in a fixed order.

A site's words are its sums as `Reduction` keeps them after this one answer, so that the sum of all sites'
words is what `Reduction` has after all answers, bit for bit. Which words there are depends on the ledger
alone, never on a value: where weights may be fractions (`fine`), the rests of their rounding are always
there.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from equipoise.errors import MethodError, Rejected
from equipoise.exchange.ledger import Entry
from equipoise.exchange.reduction import LARGEST, SCALE, Part, Reduction
from equipoise.leaves import Mean, Upload

WHOLE = 2.0**52
"""the largest whole number a site may send"""


@dataclass(frozen=True)
class Layout:
    """The order of words in an answer with these entries; `fine` are the leaves with fractional weights."""

    entries: tuple[Entry, ...]
    fine: frozenset[str]

    @classmethod
    def of(cls, up: Sequence[Entry], fine: Collection[str]) -> Layout:
        """The layout of the leaves that can be masked."""
        entries = sorted((one for one in up if maskable(one)), key=lambda one: (one.leaf, one.tensor))
        return cls(tuple(entries), frozenset(fine))

    def parts(self) -> Iterator[tuple[Part, Entry, tuple[int, ...]]]:
        """Every part in order: what it is, the entry it belongs to, its shape."""
        for entry in self.entries:
            shape = tuple(n or 0 for n in entry.shape)
            yield ("sum", entry.leaf, entry.tensor), entry, shape
            if entry.leaf in self.fine:
                yield ("rest", entry.leaf, entry.tensor), entry, shape
            if entry.weight is not None:
                weight = tuple(n or 0 for n in entry.weight)
                yield ("weight", entry.leaf, ""), entry, weight
                if entry.leaf in self.fine:
                    yield ("weight rest", entry.leaf, ""), entry, weight

    @property
    def count(self) -> int:
        """How many words there are."""
        return sum(math.prod(shape) for _, _, shape in self.parts())

    def words(self, upload: Upload) -> Tensor:
        """The words of one site's answer, an int64 vector."""
        for name, leaf in upload.items():
            if isinstance(leaf, Mean) and name not in self.fine:
                weight = torch.as_tensor(leaf.weight)
                if bool(((weight > 0) & (weight < 1)).any()):
                    raise MethodError(
                        f"the weight of '{name}' is below 1, and the ledger has seen whole weights only: "
                        "exchange.secure cannot mask it; weigh by whole numbers, or by fractions everywhere"
                    )
        reduction = Reduction()
        reduction.add("", upload)
        words = torch.zeros(self.count, dtype=torch.int64)
        place = 0
        for part, _, shape in self.parts():
            size = math.prod(shape)
            summed = reduction.part(part)
            if summed is not None:
                words[place : place + size] = summed.reshape(-1)
            place += size
        return words

    def take(self, words: Tensor, reduction: Reduction) -> None:
        """Put the summed words of all sites into a reduction."""
        place = 0
        for part, entry, shape in self.parts():
            size = math.prod(shape)
            part_words = words[place : place + size].view(shape)
            reduction.take(part, entry.kind, getattr(torch, entry.dtype), part_words)
            place += size

    def implausible(self, words: Tensor, sites: int, heaviest: float) -> str | None:
        """Why summed words cannot be those of so many sites, in words: masks that are left are far too
        large."""
        place = 0
        for (kind, leaf, _), entry, shape in self.parts():
            size = math.prod(shape)
            part_words = words[place : place + size]
            place += size
            if not size:
                continue
            low, high = (float(edge) for edge in torch.aminmax(part_words))
            whole = not getattr(torch, entry.dtype).is_floating_point and entry.kind == "sum"
            most = sites * (WHOLE if whole else LARGEST * SCALE)
            if kind.endswith("rest"):
                most = sites * 2.0**50
            if kind == "weight":
                most = sites * heaviest * SCALE
                if low < 0:
                    return f"the weights of '{leaf}' add up to less than 0"
            if max(-low, high) > most * (1 + 1e-9):
                return f"'{leaf}' adds up to more than {sites} sites can have sent"
        return None


def maskable(entry: Entry) -> bool:
    """Whether a tensor can be masked: it is added up, and as long at every site."""
    return entry.kind != "each" and None not in entry.shape and None not in (entry.weight or ())


def checked(up: Sequence[Entry]) -> None:
    """Refuse sums whose length differs from site to site: neither masked nor allowed to be read."""
    for entry in up:
        if entry.kind != "each" and not maskable(entry):
            raise Rejected(f"'{entry.name}' is a sum as long as a site has images: it cannot be masked")
