"""How large answers are beside each other: one site alone cannot move the model so far that the others can no longer train it."""

from __future__ import annotations

import math
import statistics
from collections.abc import Collection, Iterable, Iterator, Mapping

import torch
from torch import Tensor

from equipoise.exchange.guard import Bounds
from equipoise.exchange.ledger import Line
from equipoise.exchange.reduction import tensors_of
from equipoise.leaves import Upload

HARMLESS = 0.1
"""a change of the model by this share of what it changes is never too large"""
LENIENT = 10.0
"""how much further than models other means, such as class prototypes, may lie apart at honest sites"""


class Sizes:
    """How large the answers to one question are, leaf by leaf, against each other and against those of earlier rounds.

    What counts is the norm of a leaf's value, less what a site with more images than others may move further. An answer passes at
    once if it is harmless, or not large for what earlier rounds have shown; any other is judged when all have come, so that no
    order of arrival matters. One site alone can raise neither the median nor what is remembered of it, and where fewer than three
    answer there is no majority to judge by.
    """

    def __init__(
        self, line: Line, bounds: Bounds, ratio: float, known: Mapping[str, float], sent: Mapping[str, Tensor]
    ) -> None:
        self._bounds, self._question = bounds, line.question
        self._rules = dict(_rules(line, bounds, ratio, sent))
        self._known = {leaf: known.get(f"{line.question}.{leaf}", 0.0) for leaf in self._rules}
        self._found: dict[str, dict[str, float]] = {}

    def measure(self, site: str, upload: Upload) -> bool:
        """Take note of an answer; whether it passes without a look at the others."""
        size = self._bounds.size(site)
        self._found[site] = {leaf: _length(tensors_of(upload[leaf]).values()) / size for leaf in self._rules}
        return not any(self._large(site))

    def _large(self, site: str) -> Iterator[str]:
        for leaf, norm in self._found[site].items():
            floor, ratio = self._rules[leaf]
            if norm > max(floor, ratio * self._known[leaf]):
                yield leaf

    def problem(self, site: str) -> str | None:
        """What is wrong with an answer beside all others, in words."""
        for leaf in self._large(site):
            norm, ratio = self._found[site][leaf], self._rules[leaf][1]
            others = sorted(found[leaf] for one, found in self._found.items() if one != site)
            usual = max(self._known[leaf], others[len(others) // 2] if len(others) > 1 else 0.0)
            if usual and norm > ratio * usual:
                return f"leaf '{leaf}' is {norm / usual:.3g} times as large as usual, and exchange.max_ratio allows {ratio:g}"
        return None

    def remembered(self, good: Collection[str]) -> dict[str, float]:
        """By question.leaf: the largest median so far, over the answers that counted."""
        if len(good) < 3:
            return {}
        middle = {leaf: statistics.median_low(self._found[site][leaf] for site in good) for leaf in self._rules}
        return {f"{self._question}.{leaf}": max(norm, self._known[leaf]) for leaf, norm in middle.items()}


def _rules(line: Line, bounds: Bounds, ratio: float, sent: Mapping[str, Tensor]) -> Iterator[tuple[str, tuple[float, float]]]:
    """By leaf: the norm up to which it is harmless, and how many times the median it may be.

    Judged are real numbers, as many at every site, that no limit of their own bounds. A leaf with the names and shapes of tensors
    that were sent changes those.
    """
    known = {name.partition("/")[2]: x for name, x in sent.items() if "/" in name}
    for leaf in dict.fromkeys(entry.leaf for entry in line.up):
        found = [entry for entry in line.up if entry.leaf == leaf]
        bounded = found[0].kind == "sum" or (found[0].kind == "each" and f"{line.question}.{leaf}" in bounds.limits)
        count = sum(math.prod(n or 0 for n in entry.shape) for entry in found)
        fixed = all(getattr(torch, entry.dtype).is_floating_point and None not in entry.shape for entry in found)
        if bounded or not fixed or count < 2:
            continue
        if all(entry.tensor in known and known[entry.tensor].shape == entry.shape for entry in found):
            yield leaf, (HARMLESS * _length(known[entry.tensor] for entry in found), ratio)
        else:
            yield leaf, (0.0, ratio) if found[0].kind == "each" else (count**0.5, LENIENT * ratio)


def _length(tensors: Iterable[Tensor]) -> float:
    """The Euclidean norm of all values together."""
    return math.hypot(*(float(torch.linalg.vector_norm(x.reshape(-1))) for x in tensors))
