"""Statistics that cannot be true are told from those that can."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from equipoise.data.samples import Task
from equipoise.evaluate.plausible import doubt
from equipoise.partition import Held, together
from equipoise.site import measure
from equipoise.site.measure import coarse

Stats = dict[str, Tensor]


def honest(
    task: Task, n: int = 40, classes: int = 3, scale: float = 2.0, bins: int = 50
) -> tuple[Stats, Held]:
    draw = torch.Generator().manual_seed(n + classes)
    logits = scale * torch.randn(n, classes, generator=draw)
    if task == "single":
        labels = torch.randint(0, classes, (n,), generator=draw)
        counts = torch.bincount(labels, minlength=classes)
    else:
        labels = torch.randint(0, 2, (n, classes), generator=draw).float()
        counts = labels.sum(0).long()
    return measure(logits, labels, task=task, bins=bins), Held(images=n, counts=tuple(counts.tolist()))


@pytest.mark.parametrize("task", ["single", "multi"])
@pytest.mark.parametrize("n", [0, 1, 2, 40, 1000])
@pytest.mark.parametrize("scale", [0.0, 2.0, 1e4])
def test_what_was_measured_is_believed(task: Task, n: int, scale: float) -> None:
    stats, held = honest(task, n, scale=scale)
    assert doubt(stats, held) is None
    assert doubt(coarse(stats), held) is None  # what is told of one site alone
    assert doubt(stats, Held(images=n, counts=(None,) * 3)) is None
    other, more = honest(task, 17, scale=scale)
    pooled = {name: stats[name] + other[name] for name in stats}
    assert doubt(pooled, together([held, more])) is None


def test_a_class_that_one_site_says_nothing_of_is_not_told() -> None:
    parts = [Held(images=3, counts=(1, 2)), Held(images=5, counts=(None, 4))]
    assert together(parts) == Held(images=8, counts=(None, 6))


def moved(name: str, *changes: tuple[tuple[int, ...], int]) -> Callable[[Stats], Stats]:
    """Statistics with some cells changed by a number."""

    def change(stats: Stats) -> Stats:
        x = stats[name].clone()
        for cell, by in changes:
            x[cell] += by
        return stats | {name: x}

    return change


def put(name: str, value: int) -> Callable[[Stats], Stats]:
    return lambda stats: stats | {name: torch.full_like(stats[name], value)}


IMPOSSIBLE: dict[str, tuple[Task, Callable[[Stats], Stats], str]] = {
    "negative": ("single", put("confusion", -1), "negative"),
    "negative histogram": ("single", put("scores", -(2**52)), "negative"),
    "negative confidence": ("single", put("calibration", -1), "negative"),
    "huge": ("single", put("confusion", 2**52), "more than the 40 images"),
    "huge histogram": ("single", put("scores", 2**40), "more than the 40 images"),
    "huge calibration": ("multi", put("calibration", 2**52), "more than the 40 images"),
    "one image too many": ("single", moved("confusion", ((0, 0), 1)), "about 41 images"),
    "one image too few": (
        "single",
        lambda s: s | {"confusion": torch.tensor([[39, 0, 0], [0, 0, 0], [0, 0, 0]])},
        "39 images",
    ),
    "nothing": ("single", lambda s: {name: torch.zeros_like(x) for name, x in s.items()}, "about 0 images"),
    "other classes": ("single", lambda s: s | {"confusion": s["confusion"].roll(1, 0)}, "other classes"),
    "other histogram": ("single", lambda s: s | {"scores": s["scores"].roll(1, 0)}, "histograms"),
    "histogram of one image more": ("single", moved("scores", ((0, 0, 0), 1)), "histograms"),
    "more right than decided": ("single", moved("calibration", ((7, 1), 30), ((8, 1), -1)), "calibration"),
    "more decisions": ("single", moved("calibration", ((7, 0), 1)), "calibration"),
    "more right": ("single", moved("calibration", ((7, 1), 1)), "calibration"),
    "sure beyond its bin": ("single", moved("calibration", ((7, 2), 10**7)), "confidences"),
    "one label of more images": ("multi", moved("binary", ((1, 0, 0), 1)), "about 41 images"),
    "other labels": ("multi", lambda s: s | {"binary": s["binary"].flip(1)}, "other classes"),
    "histograms of other labels": ("multi", lambda s: s | {"scores": s["scores"].flip(1)}, "histograms"),
}


@pytest.mark.parametrize("name", IMPOSSIBLE)
def test_what_cannot_be_true_is_doubted(name: str) -> None:
    task, change, reason = IMPOSSIBLE[name]
    stats, held = honest(task)
    assert reason in str(doubt(change(stats), held))
