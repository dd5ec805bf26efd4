"""The ledger: every leaf that leaves a site, its kind, shape and bytes, and who can read it.

It is made by asking each question of two small made-up sites (see `engine.probe`), so it shows what the code
does, not what a method says of itself. The guard then holds every real answer against it.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import torch

from equipoise.errors import MethodError
from equipoise.exchange.reduction import tensors_of
from equipoise.leaves import Kind, Mean, Upload
from equipoise.listing import Listing
from equipoise.site.privacy import COUNTS

Shape = tuple[int | None, ...]
"""None stands for a length that differs from site to site (one row per sample, say)."""

READERS: dict[str, str] = {
    "sum": "coordinator: keeps the sum over sites only",
    "mean": "coordinator: keeps the weighted mean and the summed weight only",
    "each": "coordinator: this site's own value",
}
COMPARED = "coordinator: this site's own value, to compare it with the others' (exchange.reduce)"
"""who reads a mean where sites are compared instead of added up"""


GIVEN = f"yes, given the {COUNTS}"
"""said of private training whose loss knows how many images of each class a site has"""


@dataclass(frozen=True)
class Entry:
    """One tensor of one leaf."""

    leaf: str
    tensor: str
    kind: Kind
    dtype: str
    shape: Shape
    weight: Shape | None = None

    def bytes(self, rows: int = 1) -> int:
        """Size on the wire, with `rows` for every length that varies."""
        item = getattr(torch, self.dtype).itemsize
        size = item * math.prod(rows if n is None else n for n in self.shape)
        result: int = size + (
            0 if self.weight is None else 8 * math.prod(rows if n is None else n for n in self.weight)
        )
        return result

    @property
    def name(self) -> str:
        return f"{self.leaf}/{self.tensor}" if self.tensor else self.leaf


@dataclass(frozen=True)
class Line:
    """One question, as it is from round `since` on."""

    question: str
    since: int
    up: tuple[Entry, ...]
    down_bytes: int
    passes: int = 0
    """with differential privacy: passes over a site's images in clipped, noisy steps"""
    reads: tuple[str, ...] = ()
    """and what else of its data the answer is computed from"""
    fine: frozenset[str] = field(default=frozenset(), compare=False)
    """the means among its leaves whose weights may be fractions"""

    @property
    def covered(self) -> str:
        """Whether ε counts for this answer, in a few words."""
        if others := [what for what in self.reads if what != COUNTS]:
            return f"no: {', '.join(others)}"
        if COUNTS in self.reads:
            return GIVEN if self.passes else f"no: {COUNTS}"
        return "yes" if self.passes else "reads no images"

    @property
    def up_bytes(self) -> int:
        return sum(entry.bytes() for entry in self.up)


@dataclass(frozen=True)
class Ledger:
    """What a run exchanges."""

    lines: tuple[Line, ...]
    private: bool = False
    """whether training has differential privacy"""
    training: tuple[tuple[int, int], ...] = ()
    """(round, passes): from that round on, passes over a site's images in private steps"""
    ending: int = 0
    """such passes of the method's ending"""

    compared: bool = False
    """whether means are combined by comparing the sites' values (`exchange.reduce`)"""

    def passes(self, round: int) -> int:
        """Passes over a site's images in one round, counted from 0."""
        return max(((since, passes) for since, passes in self.training if since <= round), default=(0, 0))[1]

    def line(self, question: str, round: int) -> Line | None:
        """The line in force for a question in a round."""
        lines = [line for line in self.lines if line.question == question and line.since <= round]
        return max(lines, key=lambda line: line.since, default=None)

    def rows(self) -> list[dict[str, Any]]:
        """A row per leaf, for tables and JSON: tensors of one leaf are counted together."""
        rows = []
        for line in self.lines:
            for leaf in dict.fromkeys(entry.leaf for entry in line.up):
                entries = [entry for entry in line.up if entry.leaf == leaf]
                shape = (
                    "×".join("n" if n is None else str(n) for n in entries[0].shape) or "1"
                    if len(entries) == 1
                    else f"{len(entries)} tensors"
                )
                rows.append(
                    {
                        "question": line.question,
                        "from_round": line.since,
                        "leaf": leaf,
                        "kind": entries[0].kind,
                        "shape": shape,
                        "dtype": entries[0].dtype,
                        "bytes": sum(entry.bytes() for entry in entries),
                        "varies": any(None in entry.shape for entry in entries),
                        "read_by": self.reader(entries[0].kind),
                    }
                    | ({"covered": line.covered} if self.private else {})
                )
        return rows

    def reader(self, kind: Kind) -> str:
        """Who reads what of a leaf."""
        return COMPARED if self.compared and kind == "mean" else READERS[kind]

    def __repr__(self) -> str:
        lines = [f"Ledger of {len(self.lines)} questions, per site and round"]
        for line in self.lines:
            kinds = {entry.leaf: entry.kind for entry in line.up}
            leaves = ", ".join(f"{leaf} ({kind})" for leaf, kind in kinds.items())
            since = f" from round {line.since + 1}" if line.since else ""
            sizes = f"{line.up_bytes:,} bytes up, {line.down_bytes:,} down"
            lines.append(f"  {line.question}{since}: {leaves}; {sizes}")
        return "\n".join(lines)

    def _repr_html_(self) -> str:
        rows = self.rows()
        cells = tuple(tuple(row.values()) for row in rows)
        return Listing(tuple(rows[0]) if rows else (), cells)._repr_html_()


def entries(upload: Upload) -> tuple[Entry, ...]:
    """The ledger entries of one answer."""
    listed = []
    for name, leaf in upload.items():
        weight = tuple(torch.as_tensor(leaf.weight).shape) if isinstance(leaf, Mean) else None
        for i, (path, x) in enumerate(sorted(tensors_of(leaf).items())):
            dtype = str(x.dtype).removeprefix("torch.")
            listed.append(Entry(name, path, leaf.kind, dtype, tuple(x.shape), weight if i == 0 else None))
    return tuple(listed)


def fractions(upload: Upload) -> frozenset[str]:
    """The means of an answer whose weight is not a whole number."""
    weights = {name: torch.as_tensor(leaf.weight) for name, leaf in upload.items() if isinstance(leaf, Mean)}
    return frozenset(name for name, weight in weights.items() if bool((weight != weight.round()).any()))


def merge(answers: Sequence[tuple[Entry, ...]]) -> tuple[Entry, ...]:
    """Entries of the same question from different sites as one list: a length that differs becomes None."""
    first, *others = answers
    if any(len(other) != len(first) for other in others):
        raise MethodError(
            "the method gives different leaves at different sites: give the same ones everywhere, empty if "
            "need be"
        )
    merged = []
    for i, entry in enumerate(first):
        same = [other[i] for other in others]
        if any(
            (o.leaf, o.tensor, o.kind, o.dtype, len(o.shape)) != (*_identity(entry), len(entry.shape))
            for o in same
        ):
            raise MethodError(
                f"the leaf '{entry.name}' is not the same at every site: give it one kind, dtype and rank "
                f"everywhere"
            )
        shape = tuple(n if all(o.shape[d] == n for o in same) else None for d, n in enumerate(entry.shape))
        merged.append(Entry(*_identity(entry), shape, entry.weight))
    return tuple(merged)


def _identity(entry: Entry) -> tuple[str, str, Kind, str]:
    return entry.leaf, entry.tensor, entry.kind, entry.dtype
