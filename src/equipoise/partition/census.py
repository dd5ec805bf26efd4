"""What a run must know of its data, wherever that is: in this process, or at the sites."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from equipoise.data.samples import Samples, Task
from equipoise.options import Options
from equipoise.partition.divide import Holding

SPLITS = ("train", "validation", "test")


class Held(Options):
    """The images of one split, at one site or at several."""

    images: int
    counts: tuple[int | None, ...]
    """of each class (positives, for multi-label); None where that is not told"""
    known: tuple[int | None, ...] | None = None
    """images labelled for each class, where some are not; None: all of them for every class"""
    withheld: tuple[int, ...] = ()
    """numbers of the classes with fewer images than the site tells of; those are in no test"""


class Census(Options):
    """Who holds what."""

    sites: dict[str, dict[str, Held]]
    """by site and split"""
    labelled: dict[str, tuple[bool, ...]] = {}
    """by site: the classes it labels; a site that is not named labels all"""
    groups: int | None = None
    """patients, or whatever keeps images together; None where that is not known"""
    small_cell: dict[str, int] = {}
    """by site: it tells nothing of a class with fewer images than this"""

    @property
    def sizes(self) -> dict[str, int]:
        """Training images by site."""
        return {site: held["train"].images for site, held in self.sites.items()}

    def counts(self) -> Tensor:
        """Training images per class over all sites; what is not told counts as none."""
        told = [[n or 0 for n in held["train"].counts] for held in self.sites.values()]
        return torch.tensor(told, dtype=torch.int64).sum(0)

    def images(self) -> dict[str, dict[str, int]]:
        """How many images by site and split."""
        return {
            site: {split: held.images for split, held in splits.items()}
            for site, splits in self.sites.items()
        }


@dataclass(frozen=True)
class Facts:
    """The data of a run in a few numbers."""

    task: Task
    classes: tuple[str, ...]
    shape: tuple[int, int, int]
    """height, width, channels"""
    fingerprint: str
    census: Census
    partial: bool
    """whether some site labels only some of the classes"""
    look: Mapping[str, Any] | None = None
    """how images are prepared, where the sites say it and not the config"""

    def table(self) -> dict[str, Any]:
        """All of it as plain values, for pages and consoles; what is not told counts as none.

        A site that labels only some of the classes has `labelled`, true or false for each.
        """
        census, train = self.census, self.census.counts().tolist()
        height, width, channels = self.shape
        sites: dict[str, dict[str, Any]] = {
            site: {
                split: {"images": held.images, "counts": [n or 0 for n in held.counts]}
                | ({} if held.known is None else {"known": [n or 0 for n in held.known]})
                | ({"withheld": list(held.withheld)} if held.withheld else {})
                | (
                    {"untold": untold}
                    if (untold := [i for i, n in enumerate(held.counts) if n is None])
                    else {}
                )
                for split, held in splits.items()
            }
            for site, splits in census.sites.items()
        }
        for site, mask in census.labelled.items():
            sites[site]["labelled"] = list(mask)
        return {
            "task": self.task,
            "classes": list(self.classes),
            "splits": list(SPLITS),
            "images": sum(held.images for splits in census.sites.values() for held in splits.values()),
            **{"height": height, "width": width, "channels": channels},
            "train": train,
            "imbalance": max(train) / min(train) if min(train) else None,
            "groups": census.groups,
            "small_cell": census.small_cell,
            "sites": sites,
        }


def together(parts: Iterable[Held]) -> Held:
    """The images of several sites; a class that one of them says nothing of is not told."""
    found = list(parts)
    images = sum(part.images for part in found)
    counts = _sums([part.counts for part in found])
    if all(part.known is None for part in found):
        return Held(images=images, counts=counts)
    each = [(part.images,) * len(counts) if part.known is None else part.known for part in found]
    return Held(images=images, counts=counts, known=_sums(each))


def _sums(rows: Sequence[Sequence[int | None]]) -> tuple[int | None, ...]:
    """The sum of every column; None where one of its cells is."""
    columns = zip(*rows, strict=True)
    return tuple(None if None in column else sum(n for n in column if n is not None) for column in columns)


def count(samples: Samples, holdings: Iterable[Holding]) -> Census:
    """The census of data that is at hand."""
    width = len(samples.classes)

    def held(rows: np.ndarray, hidden: np.ndarray | None) -> Held:
        labels = samples.labels[rows]
        counts = np.bincount(labels, minlength=width) if samples.task == "single" else labels.sum(0)
        counts = counts if hidden is None else np.where(hidden, 0, counts)
        known = None if hidden is None else tuple(0 if gone else len(rows) for gone in hidden)
        return Held(images=len(rows), counts=tuple(int(n) for n in counts), known=known)

    found = list(holdings)
    return Census(
        sites={
            one.name: {split: held(getattr(one, split), one.hidden.get(split)) for split in SPLITS}
            for one in found
        },
        labelled={one.name: tuple(one.labelled.tolist()) for one in found if one.labelled is not None},
        groups=None if samples.group is None else len(np.unique(samples.group)),
    )
