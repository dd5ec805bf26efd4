"""How answers are combined: exact sums in 64-bit fixed point, so that neither arrival order nor masking
changes a bit.

A float x with weight w contributes round(w · x · 2^28) as an int64. With |w · x| ≤ 2^22 at each of up to
4,096 sites a sum stays below 2^62; the guard refuses anything larger. For every doubling of the sites asked
beyond that the scale has one bit less: 2^23 for 100,000. Answers are added as they arrive, so memory does not
grow with sites. A mean does not depend on the unit of its weights, so weights below 1 keep what this rounding
takes away: another int64, in units of 2^-78 (of 2^-69 for 100,000 sites). A weight of 10^-15 counts as
exactly as one of 1; below that unit (3 · 10^-24) it is 0.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Literal, Protocol

import torch
from torch import Tensor

from equipoise.errors import SiteError
from equipoise.leaves import Each, Kind, Leaf, Mean, Upload
from equipoise.tree import Tree, flatten, unflatten

ROOM = 62
"""bits of a sum: what is added up stays below 2^62, whatever the number of sites"""
FRACTION_BITS, FINE_BITS, VALUE_BITS, WHOLE_BITS = 28, 50, 22, 52
SCALE = float(2**FRACTION_BITS)
FINE = float(2**FINE_BITS)
LARGEST = float(2**VALUE_BITS)
FEW_SITES = 2 ** (ROOM - VALUE_BITS - FRACTION_BITS)
"""sites up to which the scale is the finest"""
MOST_SITES = 100_000
PIECE = 2**15
Part = tuple[Literal["sum", "rest", "weight", "weight rest"], str, str]
"""one of the sums that a reduction keeps: what it is, its leaf, and its tensor (none for weights)"""
ROUNDER = 1.5 * 2.0**52
ROUNDER_BITS = int(torch.tensor(ROUNDER, dtype=torch.float64).view(torch.int64))


def scale_of(sites: int) -> float:
    """What floats are multiplied by, so that the sum over so many sites has room: 2^28 for up to 4,096."""
    return float(2 ** min(FRACTION_BITS, ROOM - VALUE_BITS - _doublings(sites)))


def fine_of(sites: int) -> float:
    """What the rests of rounding are multiplied by: each is at most half a unit."""
    return float(2 ** min(FINE_BITS, ROOM + 1 - _doublings(sites)))


def largest_whole(sites: int) -> int:
    """The largest whole number that each of so many sites may add: whole numbers are summed as they are."""
    return int(2 ** min(WHOLE_BITS, ROOM - _doublings(sites)))


def _doublings(sites: int) -> int:
    """How many bits a sum over so many sites has more than one of them."""
    if sites > MOST_SITES:
        raise SiteError(f"sums are over at most {MOST_SITES:,} sites, not {sites:,}")
    return max(0, sites - 1).bit_length()


def fixed(x: Tensor, weight: Tensor | None = None, scale: float = SCALE) -> Tensor:
    """round(weight · x · scale) as int64; whole-number tensors without a weight are kept as they are."""
    if weight is None and not x.is_floating_point():
        return x.to(torch.int64, copy=True)
    y = x.to(torch.float64) * scale
    if weight is not None:
        y = y.mul_(spread(weight, x))
    return y.round_().to(torch.int64)


def fixed_fine(x: Tensor, weight: Tensor, scale: float = SCALE, fine: float = FINE) -> tuple[Tensor, Tensor]:
    """round(weight · x · scale) and what that left over, times `fine`, both as int64."""
    y = x.to(torch.float64) * scale * spread(weight, x)
    whole = y.round()
    return whole.to(torch.int64), ((y - whole) * fine).round_().to(torch.int64)


def add_fixed(total: Tensor, x: Tensor, weight: float, scale: float = SCALE) -> None:
    """total += fixed(x, weight, scale), a piece at a time: pieces stay in the processor's cache, where whole
    models would not.

    Adding 1.5 · 2^52 to a float64 below 2^51 leaves it rounded to a whole number in its lowest bits, half to
    even as `round` does; read as an int64 and less the constant's own bits, that is the number. A conversion
    would take several times longer.
    """
    scaled = torch.empty(min(PIECE, x.numel()), dtype=torch.float64)
    for y, out in zip(x.reshape(-1).split(PIECE), total.view(-1).split(PIECE), strict=True):
        part = scaled[: len(y)].copy_(y).mul_(weight * scale).add_(ROUNDER)
        out.add_(part.view(torch.int64)).sub_(ROUNDER_BITS)


def quotient(total: Tensor, divisor: float, dtype: torch.dtype) -> Tensor:
    """total / divisor in the given precision, a piece at a time."""
    result = torch.empty(total.shape, dtype=dtype)
    scaled = torch.empty(min(PIECE, total.numel()), dtype=torch.float64)
    for y, out in zip(total.view(-1).split(PIECE), result.view(-1).split(PIECE), strict=True):
        out.copy_(scaled[: len(y)].copy_(y).div_(divisor))
    return result


def with_rest(total: Tensor, rest: Tensor | None, fine: float = FINE) -> Tensor:
    """A sum in fixed point as float64, with the rests of its rounding where they were kept."""
    value = total.to(torch.float64)
    return value if rest is None else value + rest.to(torch.float64) / fine


def spread(weight: Tensor, x: Tensor) -> Tensor:
    """A weight over the first dimensions of x, shaped to broadcast against x."""
    return weight.to(torch.float64).reshape(weight.shape + (1,) * (x.dim() - weight.dim()))


def tensors_of(leaf: Leaf) -> dict[str, Tensor]:
    """The tensors of a leaf by name; a leaf that is one tensor has the name ""."""
    return flatten(leaf.value) if isinstance(leaf.value, Mapping) else {"": leaf.value}


STATISTICS = "running_"
"""how tensors are called that a network measures instead of training them: much larger, so judged by
themselves"""


def part_of(path: str) -> str:
    """Which part of a leaf a tensor belongs to: the statistics that a network measures, or all others."""
    return STATISTICS if path.rpartition(".")[2].startswith(STATISTICS) else ""


def whole(tensors: Mapping[str, Tensor]) -> Any:
    """The inverse of `tensors_of`."""
    return tensors[""] if set(tensors) == {""} else unflatten(tensors)


class Answers:
    """What the coordinator may know of one question: reduced leaves by name.

    `answers["delta"]` is a sum, a mean, or (for `Each`) a dict by site in the federation's order. `weight`
    has the summed weight of every mean; where it is 0 the mean is 0. `sites` are those whose answer counted.
    """

    def __init__(self, leaves: dict[str, Any], weight: dict[str, Tensor], sites: tuple[str, ...]) -> None:
        self.leaves, self.weight, self.sites = leaves, weight, sites

    def __getitem__(self, name: str) -> Any:
        return self.leaves[name]

    def __contains__(self, name: str) -> bool:
        return name in self.leaves

    def __iter__(self) -> Iterator[str]:
        return iter(self.leaves)


class Compare(Protocol):
    """Combines means by comparing the sites' values instead of adding them up, see `exchange.robust`."""

    def needed(self, asked: int) -> int: ...

    def combine(
        self, values: Sequence[dict[str, Tensor]], weights: Sequence[Tensor], asked: int
    ) -> dict[str, Tensor]: ...


class Reduction:
    """Adds up answers in any order, of at most so many `sites`, which choose the scale; gives no sum of fewer
    than `least`: a sum over one site is that site's value. `compare` is another way to combine means; it
    keeps every site's until the last is there."""

    def __init__(self, least: int = 1, sites: int = FEW_SITES, compare: Compare | None = None) -> None:
        self._least, self._most, self._compare = least, max(sites, FEW_SITES), compare
        self._scale, self._fine = scale_of(sites), fine_of(sites)
        self._kinds: dict[str, str] = {}
        self._dtypes: dict[tuple[str, str], torch.dtype] = {}
        self._sums: dict[tuple[str, str], Tensor] = {}
        self._rests: dict[tuple[str, str], Tensor] = {}
        self._weights: dict[str, Tensor] = {}
        self._weight_rests: dict[str, Tensor] = {}
        self._each: dict[str, dict[str, Any]] = {}
        self._singly: dict[str, dict[str, tuple[dict[str, Tensor], Tensor]]] = {}
        self._sites: dict[str, None] = {}
        self._added = 0

    def add(self, site: str, upload: Upload) -> None:
        """Count one site's answer in."""
        self._added += 1
        if self._added > self._most:
            raise SiteError(f"more than {self._most:,} answers to one question: their sum has no room")
        self._sites[site] = None
        for name, leaf in upload.items():
            self._kinds[name] = leaf.kind
            if isinstance(leaf, Each):
                # Copies: what arrived are views of the whole message, and only this part of it is to be kept.
                self._each.setdefault(name, {})[site] = whole(
                    {path: x.clone() for path, x in tensors_of(leaf).items()}
                )
                continue
            weight = torch.as_tensor(leaf.weight, dtype=torch.float64) if isinstance(leaf, Mean) else None
            small = weight is not None and bool(((weight > 0) & (weight < 1)).any())
            if weight is not None:
                whole_weight, rest = self._fixed_fine(weight, torch.ones(()))
                self._weights[name] = self._weights.get(name, 0) + whole_weight
                if small:
                    self._weight_rests[name] = self._weight_rests.get(name, 0) + rest
                if self._compare is not None:
                    copies = {path: x.clone() for path, x in tensors_of(leaf).items()}
                    self._singly.setdefault(name, {})[site] = copies, weight.clone()
                    continue
            for path, x in tensors_of(leaf).items():
                self._dtypes[name, path] = x.dtype
                if (name, path) not in self._sums:
                    self._sums[name, path] = torch.zeros(x.shape, dtype=torch.int64)
                total = self._sums[name, path]
                if weight is not None and small:
                    coarse, rest = self._fixed_fine(x, weight)
                    total.add_(coarse)
                    self._rests[name, path] = self._rests.get((name, path), 0) + rest
                elif x.is_floating_point() and (weight is None or weight.dim() == 0):
                    add_fixed(total, x, 1.0 if weight is None else float(weight), self._scale)
                else:
                    total.add_(fixed(x, weight, self._scale))

    def _fixed_fine(self, x: Tensor, weight: Tensor) -> tuple[Tensor, Tensor]:
        return fixed_fine(x, weight, self._scale, self._fine)

    def part(self, part: Part) -> Tensor | None:
        """One of the sums so far; None where nothing was added to it."""
        kind, leaf, path = part
        if kind in ("sum", "rest"):
            return (self._sums if kind == "sum" else self._rests).get((leaf, path))
        return (self._weights if kind == "weight" else self._weight_rests).get(leaf)

    def take(self, part: Part, kind: Kind, dtype: torch.dtype, total: Tensor) -> None:
        """One of the sums over all sites, added up elsewhere; `kind` and `dtype` are those of its leaf."""
        what, leaf, path = part
        self._kinds[leaf] = kind
        if what in ("sum", "rest"):
            self._dtypes[leaf, path] = dtype
            (self._sums if what == "sum" else self._rests)[leaf, path] = total
        else:
            (self._weights if what == "weight" else self._weight_rests)[leaf] = total

    def result(self, order: tuple[str, ...]) -> Answers:
        """The reduced leaves; `order` is the federation's order of sites."""
        if len(self._sites) < self._least:
            raise SiteError(
                f"only {len(self._sites)} sites answered, and no sum is given of fewer than {self._least}"
            )
        if self._singly and self._compare and len(self._sites) < self._compare.needed(len(order)):
            raise SiteError(
                f"only {len(self._sites)} sites answered, and exchange.reduce needs "
                f"{self._compare.needed(len(order))} of {len(order)} to outvote bad ones"
            )
        leaves: dict[str, Any] = {}
        weights = {
            name: with_rest(total, self._weight_rests.get(name), self._fine) / self._scale
            for name, total in self._weights.items()
        }
        for name, kind in self._kinds.items():
            if kind == "each":
                leaves[name] = {site: self._each[name][site] for site in order if site in self._each[name]}
                continue
            if self._compare is not None and name in self._singly:
                answers = [self._singly[name][site] for site in order if site in self._singly[name]]
                values, each_weight = [one for one, _ in answers], [weight for _, weight in answers]
                leaves[name] = whole(self._compare.combine(values, each_weight, len(order)))
                continue
            parts: Tree = {}
            for (leaf, path), total in self._sums.items():
                if leaf != name:
                    continue
                dtype = self._dtypes[leaf, path]
                if kind == "sum" and not dtype.is_floating_point:
                    parts[path] = total
                    continue
                weight = weights[name] if kind == "mean" else torch.ones((), dtype=torch.float64)
                dtype = dtype if dtype.is_floating_point else torch.float64
                rest = self._rests.get((leaf, path))
                if weight.dim() == 0 and rest is None:
                    parts[path] = (
                        quotient(total, self._scale * float(weight), dtype)
                        if weight > 0
                        else torch.zeros(total.shape, dtype=dtype)
                    )
                    continue
                each = spread(weight, total)
                floor = 1 / (self._scale * self._fine)
                value = with_rest(total, rest, self._fine) / (self._scale * each.clamp_min(floor))
                parts[path] = torch.where(each > 0, value, 0.0).to(dtype)
            leaves[name] = whole(parts) if parts else {}
        return Answers(leaves, weights, tuple(site for site in order if site in self._sites))
