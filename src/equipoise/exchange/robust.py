"""Robust sums: the sites' values of a `Mean` combined so that a few of them cannot decide the result.

| rule | what it gives | source |
|---|---|---|
| median | value by value the median over sites | Yin et al. 2018, Definition 1 |
| trimmed | value by value the mean without the f smallest and the f largest | Yin et al. 2018, Definition 2 |
| krum | the update with the smallest Σ ‖x_i - x_j‖² over its n - f - 2 nearest | Blanchard et al. 2017, §4 |

f is the share `exchange.hostile` of the sites that were asked, rounded up. Every site counts once where it
is decided what to leave out: how much a site weighs is its own word, and by weight one site alone could be a
majority. A weight of 0 says that the site has no such value. What is left is averaged by weight, so that
with nothing left out each of these but the median is the plain mean, bit for bit.

To compare sites one must have the values of all: memory grows with the sites, and whoever adds up reads each
of them. Ties go to the site that stands first in the federation, so no order of arrival matters.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from equipoise.exchange.reduction import PIECE, Reduction, part_of, spread
from equipoise.leaves import Mean

Rule = Literal["mean", "median", "trimmed", "krum"]
Values = Sequence[dict[str, Tensor]]
"""by site: the tensors of one leaf"""


@dataclass(frozen=True)
class Robust:
    """One of the rules above; see `ExchangeOptions` for its fields."""

    rule: Rule
    hostile: float
    picks: int | None = None

    def bad(self, asked: int) -> int:
        """f: how many of so many sites may be broken or hostile."""
        return math.ceil(self.hostile * asked - 1e-9)

    def needed(self, asked: int) -> int:
        """How many of so many sites must answer for the others to outvote the bad ones."""
        bad = self.bad(asked)
        return {"median": 3, "trimmed": max(3, 2 * bad + 1), "krum": 2 * bad + 3}[self.rule]

    def combine(self, values: Values, weights: Sequence[Tensor], asked: int) -> dict[str, Tensor]:
        """One leaf of all sites, in the federation's order, as one."""
        if self.rule == "krum":
            return krum(values, weights, self.bad(asked), self.picks)
        made: dict[str, Tensor] = {}
        for path in values[0]:
            tensors = [tensors[path] for tensors in values]
            made[path] = (
                median(tensors, weights)
                if self.rule == "median"
                else trimmed(tensors, weights, self.bad(asked))
            )
        return made


def median(tensors: Sequence[Tensor], weights: Sequence[Tensor]) -> Tensor:
    """Value by value the median over the sites that have one; of an even number the mean of the middle two;
    0 where there is none."""
    shape, dtype = tensors[0].shape, _real(tensors[0])
    middle = torch.zeros(tensors[0].numel(), dtype=dtype)
    flat = [x.reshape(-1) for x in tensors]
    there = _there(tensors, weights)
    for start in range(0, len(middle), PIECE):
        piece = slice(start, start + PIECE)
        x = torch.stack([values[piece].to(torch.float64) for values in flat])
        mask = torch.stack([mask[piece] for mask in there])
        ordered, count = x.masked_fill(~mask, math.inf).sort(dim=0).values, mask.sum(0)
        low, high = ((count - 1) // 2).clamp_min(0), count // 2
        both = ordered.gather(0, torch.stack([low, high.clamp_max(len(x) - 1)])).mean(0)
        middle[piece] = torch.where(count > 0, both, 0.0).to(dtype)
    return middle.reshape(shape)


def trimmed(tensors: Sequence[Tensor], weights: Sequence[Tensor], bad: int) -> Tensor:
    """Value by value the weighted mean without the `bad` smallest and largest, or all but the middle where
    there are not that many."""
    there = torch.stack(_there(tensors, weights))
    x = torch.stack([x.reshape(-1).to(torch.float64) for x in tensors]).masked_fill(~there, math.inf)
    rank = x.argsort(dim=0, stable=True).argsort(dim=0)
    count = there.sum(0)
    cut = ((count - 1) // 2).clamp(0, bad)
    kept = there & (rank >= cut) & (rank < count - cut)
    shape = tensors[0].shape
    return _mean(
        tensors, [spread(w, x) * k.view(shape) for w, x, k in zip(weights, tensors, kept, strict=True)]
    )


def krum(values: Values, weights: Sequence[Tensor], bad: int, picks: int | None) -> dict[str, Tensor]:
    """The weighted mean of the `picks` updates that lie closest to the others; without a number, of all but
    f + 2.

    What a network trains and what it measures (BatchNorm's statistics, which are much larger) are two
    vectors, each picked by itself. With a weight per class, every class is a vector of its own.
    """
    made: dict[str, Tensor] = {}
    for part in dict.fromkeys(map(part_of, values[0])):
        paths = [path for path in values[0] if part_of(path) == part]
        if weights[0].dim() == 0:
            vectors = [[tensors[path] for path in paths] for tensors in values]
            chosen = _picked(vectors, [bool(w > 0) for w in weights], bad, picks)
            kept = [w * float(i in chosen) for i, w in enumerate(weights)]
            made |= {path: _mean([tensors[path] for tensors in values], kept) for path in paths}
            continue
        for path in paths:
            tensors = [one[path] for one in values]
            kept = [w.clone() for w in weights]
            rows = [x.reshape(w.numel(), -1) for x, w in zip(tensors, weights, strict=True)]
            for place in range(weights[0].numel()):
                there = [bool(w.view(-1)[place] > 0) for w in weights]
                chosen = _picked([[one[place]] for one in rows], there, bad, picks)
                for i, weight in enumerate(kept):
                    weight.view(-1)[place] *= float(i in chosen)
            made[path] = _mean(tensors, kept)
    return made


def scores(distances: Tensor, bad: int) -> Tensor:
    """Krum's score of every vector: the sum of the squared distances to its n - f - 2 nearest others."""
    nearest = max(1, len(distances) - bad - 2)
    others = distances + torch.diag(torch.full((len(distances),), math.inf, dtype=distances.dtype))
    return others.sort(dim=1).values[:, :nearest].sum(1)


def _picked(
    vectors: Sequence[Sequence[Tensor]], there: Sequence[bool], bad: int, picks: int | None
) -> set[int]:
    """Which of the sites that have a vector are picked; all of them, where they are too few to compare."""
    sites = [i for i, has in enumerate(there) if has]
    n = len(sites)
    if n < 3:
        return set(sites)
    bad = min(bad, (n - 3) // 2)
    distances = torch.zeros(n, n, dtype=torch.float64)
    for i in range(n):
        for j in range(i):
            pairs = zip(vectors[sites[i]], vectors[sites[j]], strict=True)
            distances[i, j] = distances[j, i] = sum(_squared(a, b) for a, b in pairs)
    best = scores(distances, bad).argsort(stable=True)
    best = best[: max(1, n - bad - 2) if picks is None else min(picks, n - bad)]
    return {sites[i] for i in best.tolist()}


def _squared(a: Tensor, b: Tensor) -> float:
    pieces = zip(a.reshape(-1).split(PIECE), b.reshape(-1).split(PIECE), strict=True)
    return sum(float((x.to(torch.float64) - y).square().sum()) for x, y in pieces)


def _mean(tensors: Sequence[Tensor], weights: Sequence[Tensor]) -> Tensor:
    """The plain weighted mean, as `Reduction` has it."""
    plain = Reduction()
    for i, (x, weight) in enumerate(zip(tensors, weights, strict=True)):
        plain.add(str(i), {"x": Mean(x, weight)})
    mean: Tensor = plain.result(())["x"]
    return mean


def _there(tensors: Sequence[Tensor], weights: Sequence[Tensor]) -> list[Tensor]:
    """By site: which values of a tensor, flattened, it has."""
    return [
        (spread(weight, x) > 0).expand(x.shape).reshape(-1)
        for x, weight in zip(tensors, weights, strict=True)
    ]


def _real(x: Tensor) -> torch.dtype:
    return x.dtype if x.is_floating_point() else torch.float64
