"""Statistics that cannot be true: what a site counts must add up to the images it said it has."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

from equipoise.partition import Held
from equipoise.site.measure import FIXED_POINT


def doubt(stats: Mapping[str, Tensor], held: Held) -> str | None:
    """What cannot be true of `measure`'s statistics of these images, in words."""
    largest = {"calibration": FIXED_POINT * held.images * max(1, len(held.counts))}
    for name, x in stats.items():
        if x.numel() and int(x.min()) < 0:
            return f"'{name}' has negative counts"
        if x.numel() and int(x.max()) > largest.get(name, held.images):
            return f"'{name}' counts more than the {held.images:,} images there are"
    single = "confusion" in stats
    decided = stats["confusion" if single else "binary"]
    members = decided.sum(1) if single else decided[:, 1].sum(1)
    sizes = decided.sum().expand(len(decided)) if single else decided.sum((1, 2))
    known = [held.images] * len(decided) if held.known is None else held.known
    for size, expected in zip(sizes.tolist(), known, strict=True):
        if size != expected and (expected is not None or size > held.images):
            there = held.images if expected is None else expected
            return f"its decisions are about {size:,} images, and there are {there:,}"
    pairs = zip(held.counts, members.tolist(), strict=True)
    if any(expected is not None and expected != counted for expected, counted in pairs):
        return "its decisions are about other classes than there are images of"
    scores = stats["scores"]
    if not torch.equal(scores[:, 1].sum(1), members) or not torch.equal(scores.sum((1, 2)), sizes):
        return "its histograms and its decisions count different images"
    right = decided.diagonal().sum() if single else decided[:, 0, 0].sum() + decided[:, 1, 1].sum()
    return _calibration(stats["calibration"], int(decided.sum()), int(right))


def boasts(metrics: Mapping[str, Mapping[str, Tensor]]) -> str | None:
    """What cannot be true of one site's metrics in the form that is added up, in words."""
    for name, value in metrics["sum"].items():
        if not 0 <= float(value) <= int(metrics["count"][name]) <= 1:
            return f"'{name}' is {float(value):g}, and a metric lies between 0 and 1"
    return None


def _calibration(calibration: Tensor, decisions: int, right: int) -> str | None:
    count, correct, confidence = calibration.unbind(1)
    if int(count.sum()) != decisions or int(correct.sum()) != right or bool((correct > count).any()):
        return "its calibration and its decisions count different images"
    edges = torch.arange(1, len(calibration) + 1, dtype=torch.float64) / len(calibration) * FIXED_POINT
    # A bin may hold those of emptied bins below it as well, which `coarse` has put there: it begins where the
    # last filled one ends. Each confidence was rounded to a whole number, so a sum may be off by as many as
    # there are.
    ends = torch.where(count > 0, edges, 0.0).cummax(0).values
    begin = torch.cat([torch.zeros(1, dtype=torch.float64), ends[:-1]])
    if bool((confidence < count * begin - count).any()) or bool((confidence > count * edges + count).any()):
        return "its confidences lie outside their bins"
    return None
