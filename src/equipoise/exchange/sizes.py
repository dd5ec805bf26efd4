"""How large answers are beside each other: no site alone moves the model so far that the others cannot train
it."""

from __future__ import annotations

import math
import statistics
from collections.abc import Collection, Iterator, Mapping

import torch
from torch import Tensor

from equipoise.exchange.clip import Part, norm_of
from equipoise.exchange.guard import Bounds
from equipoise.exchange.ledger import Line
from equipoise.exchange.reduction import part_of, tensors_of
from equipoise.leaves import Upload

HARMLESS = 0.1
"""a change of the model by this share of what it changes is never too large"""
SLOWED = 1 / 3
"""the share of the largest ratio from which on a leaf is made smaller"""
LENIENT = 10.0
"""how much further than models other means, such as class prototypes, may lie apart at honest sites"""


class Sizes:
    """How large the answers to one question are, leaf by leaf, against each other and against those of
    earlier rounds.

    What counts is the norm of a leaf's value. An answer passes at once if it is harmless, or not large for
    what earlier rounds have shown; any other is judged when all have come, so that no order of arrival
    matters: it is taken as it is, made smaller, or left out. One site alone can raise neither the median nor
    what is remembered of it. Where fewer than three answer and nothing is remembered there is no majority to
    judge by, and a change is only held against the tensors it changes. Where all images are in one
    place (`ratio` is None) there are no others to protect, and nothing is judged: one answer may be as many
    steps as all sites of a federation take together.
    """

    def __init__(
        self,
        line: Line,
        bounds: Bounds,
        ratio: float | None,
        known: Mapping[str, float],
        sent: Mapping[str, Tensor],
    ) -> None:
        self._question = line.question
        self._rules = {} if ratio is None else dict(_rules(line, bounds, ratio, sent))
        self._known = {part: known.get(self._name(part), 0.0) for part in self._rules}
        self._norms: dict[str, dict[Part, float]] = {}

    def _name(self, part: Part) -> str:
        return ".".join((self._question, *filter(None, part)))

    def measure(self, site: str, upload: Upload) -> bool:
        """Take note of an answer; whether it passes without a look at the others."""
        self._norms[site] = {
            (leaf, kind): norm_of(x for path, x in tensors_of(upload[leaf]).items() if part_of(path) == kind)
            for leaf, kind in self._rules
        }
        return not any(self._large(site))

    def _large(self, site: str) -> Iterator[Part]:
        for part, norm in self._norms[site].items():
            floor, ratio = self._rules[part]
            if norm > max(floor, SLOWED * ratio * self._known[part]):
                yield part

    def _times(self, site: str) -> Iterator[tuple[Part, float, float]]:
        """The parts of an answer that are large: how many times as large as usual, and how many times they
        may be."""
        for part in self._large(site):
            floor, ratio = self._rules[part]
            others = sorted(norms[part] for one, norms in self._norms.items() if one != site)
            usual = (
                max(self._known[part], others[len(others) // 2] if len(others) > 1 else 0.0)
                or floor / HARMLESS
            )
            if usual:
                yield part, self._norms[site][part] / usual, ratio

    def problem(self, site: str) -> str | None:
        """Why an answer is left out, when it is held beside all others."""
        for (leaf, _), times, ratio in self._times(site):
            if times > ratio:
                return (
                    f"leaf '{leaf}' is {times:.3g} times as large as usual, and exchange.max_ratio "
                    f"allows {ratio:g}"
                )
        return None

    def slowed(self, site: str) -> dict[Part, float]:
        """By part: what an answer that is not left out must be multiplied by, so that it does not run ahead
        of the others."""
        return {
            part: SLOWED * ratio / times for part, times, ratio in self._times(site) if times > SLOWED * ratio
        }

    def remembered(self, good: Collection[str]) -> dict[str, float]:
        """By question and leaf: the largest median so far, over the answers that counted."""
        if len(good) < 3:
            return {}
        middle = {
            part: statistics.median_low(self._norms[site][part] for site in good) for part in self._rules
        }
        return {self._name(part): max(norm, self._known[part]) for part, norm in middle.items()}


def _rules(
    line: Line, bounds: Bounds, ratio: float, sent: Mapping[str, Tensor]
) -> Iterator[tuple[Part, tuple[float, float]]]:
    """By part: the norm up to which it is harmless, and how many times the median it may be.

    Judged are real numbers, as many at every site, that no limit of their own bounds. A leaf with the names
    and shapes of tensors that were sent changes those.
    """
    for part in dict.fromkeys((entry.leaf, part_of(entry.tensor)) for entry in line.up):
        judged = [entry for entry in line.up if (entry.leaf, part_of(entry.tensor)) == part]
        bounded = judged[0].kind == "sum" or (
            judged[0].kind == "each" and f"{line.question}.{part[0]}" in bounds.limits
        )
        count = sum(math.prod(n or 0 for n in entry.shape) for entry in judged)
        fixed = all(
            getattr(torch, entry.dtype).is_floating_point and None not in entry.shape for entry in judged
        )
        if bounded or not fixed or count < 2:
            continue
        if all(entry.tensor in sent and sent[entry.tensor].shape == entry.shape for entry in judged):
            yield part, (HARMLESS * norm_of(sent[entry.tensor] for entry in judged), ratio)
        else:
            yield part, (0.0, ratio) if judged[0].kind == "each" else (count**0.5, LENIENT * ratio)
