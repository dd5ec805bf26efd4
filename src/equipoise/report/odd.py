"""Which site looks different: a class that the received model finds everywhere but there."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from statistics import median
from typing import Any

from equipoise.report.figure import Figure, rate
from equipoise.report.folder import Run
from equipoise.report.plots import WRONG, Bar, Part, bars

FEWEST = 5
"""images of a class that a site needs for its recall to say anything"""
ODD = 0.3
"""how much less a class must be found at a site than elsewhere to be shown"""


@dataclass(frozen=True)
class Gap:
    """A class at a site, how much of it the model finds there, and at the median of the other sites."""

    site: str
    name: str
    images: int
    here: float
    elsewhere: float

    @property
    def size(self) -> float:
        return self.elsewhere - self.here


def gaps(run: Run) -> list[Gap]:
    """By site its widest gap, the widest first; none where the sites' own predictors are others than the
    received model, which agree with wrong labels that they were trained on."""
    if run.test is None or run.config["evaluate"]["own"] != "received":
        return []
    by_site = (list(_gaps(run, site, metrics)) for site, metrics in run.test["sites"].items())
    widest = [max(gaps, key=lambda gap: gap.size) for gaps in by_site if gaps]
    return sorted(widest, key=lambda gap: -gap.size)


def _gaps(run: Run, site: str, metrics: dict[str, Any]) -> Iterator[Gap]:
    assert run.test is not None
    for i, name in enumerate(run.data["classes"]):
        others = [
            other["recall"][i]
            for one, other in run.test["sites"].items()
            if one != site and other["support"][i] >= FEWEST
        ]
        if metrics["support"][i] >= FEWEST and len(others) > 1:
            yield Gap(site, name, metrics["support"][i], metrics["recall"][i], median(others))


def different(run: Run) -> Iterator[Figure]:
    """The sites at which the received model misses a class that it finds elsewhere."""
    odd = [gap for gap in gaps(run) if gap.size >= ODD]
    if not odd:
        return
    rows = [
        Bar(
            gap.site,
            (Part(gap.size, f"{gap.name}: {gap.here:.0%} there, {gap.elsewhere:.0%} elsewhere", WRONG),),
            f"{100 * gap.size:.0f}",
            gap.name,
        )
        for gap in odd
    ]
    yield Figure(
        "different",
        "Which sites look different",
        bars("recall that is missing at a site", rows, lambda x: f"{100 * x:.3g}"),
        "The class that the received model finds least at a site, in points of recall below the median of "
        f"the other sites, where that is {100 * ODD:.0f} or more: images that are labelled otherwise there, "
        "or look otherwise. It is no proof of either.",
        ("site", "class", "test images", "recall there, %", "elsewhere, %"),
        tuple((gap.site, gap.name, gap.images, rate(gap.here), rate(gap.elsewhere)) for gap in odd),
    )
