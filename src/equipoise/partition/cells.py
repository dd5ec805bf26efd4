"""Small cells: classes of which a site has so few images that it must not tell anything of them."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import torch
from torch import Tensor

from equipoise.data.samples import Samples
from equipoise.partition.divide import Holding

TESTED = ("validation", "test")


def small_cells(counts: Tensor, least: int) -> Tensor:
    """bool [C]: the classes with fewer than `least` images, and any at all."""
    return (counts > 0) & (counts < least)


def covered(counts: Tensor, least: int) -> Tensor:
    """bool [C]: the small cells and the smallest other class.

    For counts that add up to a number that is known: without that other class the rest of the counts would
    tell how many images the small cells have.
    """
    small = small_cells(counts, least)
    others = (counts > 0) & ~small
    if not small.any() or not others.any():
        return small
    smallest = torch.where(others, counts, counts.max() + 1).argmin()
    return small | (torch.arange(len(counts)) == smallest)


def without_small_cells(samples: Samples, holding: Holding, least: int) -> Holding:
    """A holding whose validation and test images tell nothing of a class with fewer than `least` of them.

    Where classes exclude each other, the images of such a class are left out; with several labels per image
    the class is hidden in that split. Training has all of them.
    """
    changed: dict[str, np.ndarray] = {}
    hidden: dict[str, np.ndarray] = {}
    for split in TESTED:
        rows = getattr(holding, split)
        small = small_cells(counts_of(samples, rows), least).numpy()
        if small.any() and samples.task == "single":
            changed[split] = rows[~small[samples.labels[rows]]]
        elif small.any():
            hidden[split] = small
    return replace(holding, **changed, hidden=hidden)  # type: ignore[arg-type]


def counts_of(samples: Samples, rows: np.ndarray) -> Tensor:
    """int64 [C]: the images of each class among some rows (positives, for several labels)."""
    labels, wide = samples.labels[rows], len(samples.classes)
    counts = np.bincount(labels, minlength=wide) if samples.task == "single" else (labels > 0).sum(0)
    return torch.from_numpy(np.asarray(counts, dtype=np.int64))
