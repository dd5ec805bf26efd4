"""What a run's private training costs every site: planned before it begins, and after every round.

The figures are of what the sites were asked. A hospital counts for itself what it has answered, and its
policy holds that against a budget.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from equipoise.exchange import Ledger
from equipoise.exchange.ledger import GIVEN
from equipoise.seeds import generator
from equipoise.server.loop import drawn, sample
from equipoise.site.accounting import epsilon
from equipoise.site.privacy import PrivacyOptions, steps_of

DIGITS = 10_000
"""ε is reported in steps of one over this, rounded up"""
UNIT = "one training image"


def planned_passes(ledger: Ledger, rounds: int, endings: int) -> int:
    """Private passes over a site's images, if it is asked in every round."""
    return sum(ledger.passes(round) for round in range(rounds)) + endings * ledger.ending


@dataclass(frozen=True)
class Spending:
    """The costs of a run, site by site."""

    privacy: PrivacyOptions
    ledger: Ledger
    images: Mapping[str, int]
    """training images of every site"""
    batch_size: int
    rounds: int
    endings: int
    """how often the method's ending is trained"""
    participation: float = 1.0
    seed: int = 0

    @cached_property
    def noise(self) -> dict[str, float]:
        """The noise of every site's training."""
        passes = planned_passes(self.ledger, self.rounds, self.endings)
        return {
            site: self.privacy.noise_of(images, self.batch_size, passes)
            for site, images in self.images.items()
        }

    def check(self) -> None:
        """Refuse a δ that is too large for some site."""
        for site, images in self.images.items():
            self.privacy.check_images(site, images)

    def epsilon(self, rounds: int, endings: int) -> dict[str, float | None]:
        """By site: ε of the first so many rounds and endings; none where it is infinite."""
        passes = dict.fromkeys(self.images, endings * self.ledger.ending)
        count = drawn(self.participation, len(self.images))
        for round in range(rounds):
            draw = generator(self.seed, round, "participants")
            for site in sample(tuple(self.images), count, draw):
                passes[site] += self.ledger.passes(round)
        spent = {}
        for site, count in passes.items():
            steps = steps_of(self.images[site], self.batch_size, count, self.noise[site])
            spent[site] = rounded(epsilon([steps], self.privacy.delta))
        return spent

    def planned(self) -> dict[str, float | None]:
        """By site: ε of the whole run."""
        return self.epsilon(self.rounds, self.endings)

    def facts(self, rounds: int, endings: int) -> dict[str, Any]:
        """What a row of the metrics says of it."""
        return {"epsilon": self.epsilon(rounds, endings)}

    @property
    def not_covered(self) -> list[str]:
        """What ε does not count."""
        return uncovered((line.question, line.covered) for line in self.ledger.lines)

    def sentence(self) -> str:
        """What the run will cost, for whoever starts it."""
        most, missing = largest(self.planned()), ", ".join(self.not_covered)
        return (
            f"differential privacy: ε ≤ {most} at δ = {self.privacy.delta:g} for {UNIT} of any site when "
            f"all {self.rounds} rounds are done; not covered: {missing or 'nothing'}"
        )


def largest(spent: Mapping[str, float | None]) -> str:
    """The largest ε of any site, as text."""
    values = [value for value in spent.values() if value is not None]
    return f"{max(values, default=0.0):g}" if len(values) == len(spent) else "∞"


def uncovered(answers: Iterable[tuple[str, str]]) -> list[str]:
    """What ε does not count, from questions and whether their answers are covered: answers and what they are
    read from, and class counts that a loss knows."""
    every = list(answers)
    not_covered = {question: covered for question, covered in every if covered.startswith("no")}
    texts = [f"{question} ({covered.removeprefix('no: ')})" for question, covered in not_covered.items()]
    counting = {question for question, covered in every if covered == GIVEN} - set(not_covered)
    return texts + [f"class counts, as the loss of {question} knows them" for question in sorted(counting)]


def rounded(value: float) -> float | None:
    """ε as it is reported: rounded up, never down."""
    return math.ceil(value * DIGITS) / DIGITS if math.isfinite(value) else None
