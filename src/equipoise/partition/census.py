"""What a run must know of its data, wherever that is: in this process, or at the sites."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from pydantic import ConfigDict, field_serializer, field_validator
from torch import Tensor

from equipoise.data.samples import Samples, Task
from equipoise.options import Options
from equipoise.partition.by_name import ByName
from equipoise.partition.divide import Holding

SPLITS = ("train", "validation", "test")
NOT_TOLD = -1


class Held(Options):
    """The images of one split, at one site or at several."""

    images: int
    counts: tuple[int | None, ...]
    """of each class (positives, for multi-label); None where that is not told"""


class Counts(ByName[dict[str, Held]]):
    """By site and split, what is held: two arrays, since there may be 100,000 sites."""

    def __init__(self, names: Sequence[str], images: np.ndarray, counts: np.ndarray) -> None:
        """`images` is int64 [sites, splits], `counts` [sites, splits, classes], `NOT_TOLD` where that is
        so."""
        super().__init__(names, self._held)
        self.images, self.counts = images, counts

    def _held(self, place: int) -> dict[str, Held]:
        return {
            split: Held(
                images=int(images), counts=tuple(None if n == NOT_TOLD else n for n in counts.tolist())
            )
            for split, images, counts in zip(SPLITS, self.images[place], self.counts[place], strict=True)
        }


class Census(Options):
    """Who holds what."""

    model_config = ConfigDict(arbitrary_types_allowed=True)

    sites: Counts
    """by site and split"""
    labelled: dict[str, tuple[bool, ...]] = {}
    """by site: the classes it labels; a site that is not named labels all"""
    groups: int | None = None
    """patients, or whatever keeps images together; None where that is not known"""

    @field_validator("sites", mode="before")
    @classmethod
    def _in_arrays(cls, sites: Any) -> Any:
        """A table by site and split becomes two arrays."""
        if isinstance(sites, Counts) or not isinstance(sites, Mapping):
            return sites
        held = [[Held.model_validate(splits[split]) for split in SPLITS] for splits in sites.values()]
        told = [[[NOT_TOLD if n is None else n for n in one.counts] for one in row] for row in held]
        images = np.array([[one.images for one in row] for row in held], dtype=np.int64)
        return Counts(tuple(sites), images, np.array(told, dtype=np.int64))

    @field_serializer("sites")
    def _as_table(self, sites: Counts) -> dict[str, Any]:
        return {site: {split: dict(held) for split, held in splits.items()} for site, splits in sites.items()}

    @property
    def sizes(self) -> dict[str, int]:
        """Training images by site."""
        return dict(zip(self.sites, self.sites.images[:, 0].tolist(), strict=True))

    def counts(self) -> Tensor:
        """Training images per class over all sites; what is not told counts as none."""
        return torch.from_numpy(self.sites.counts[:, 0].clip(min=0).sum(0))

    def images(self) -> Mapping[str, dict[str, int]]:
        """How many images by site and split."""
        images = self.sites.images
        return ByName(tuple(self.sites), lambda place: dict(zip(SPLITS, images[place].tolist(), strict=True)))

    def having(self, *splits: str) -> tuple[str, ...]:
        """The sites that have images of one of these splits."""
        found = self.sites.images[:, [SPLITS.index(split) for split in splits]].any(1).tolist()
        return tuple(site for site, some in zip(self.sites, found, strict=True) if some)


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

    def table(self) -> dict[str, Any]:
        """All of it as plain values, for pages and consoles; what is not told counts as none.

        A site that labels only some of the classes has `labelled`, true or false for each.
        """
        census, train = self.census, self.census.counts().tolist()
        height, width, channels = self.shape
        images, counts = census.sites.images.tolist(), census.sites.counts.clip(min=0).tolist()
        sites: dict[str, dict[str, Any]] = {
            site: {
                split: {"images": n, "counts": told}
                for split, n, told in zip(SPLITS, images[place], counts[place], strict=True)
            }
            for place, site in enumerate(census.sites)
        }
        for site, mask in census.labelled.items():
            sites[site]["labelled"] = list(mask)
        return {
            "task": self.task,
            "classes": list(self.classes),
            "splits": list(SPLITS),
            "images": int(census.sites.images.sum()),
            **{"height": height, "width": width, "channels": channels},
            "train": train,
            "imbalance": max(train) / min(train) if min(train) else None,
            "groups": census.groups,
            "sites": sites,
        }


def together(parts: Iterable[Held]) -> Held:
    """The images of several sites; a class that one of them says nothing of is not told."""
    found = list(parts)
    columns = zip(*(part.counts for part in found), strict=True)
    counts = tuple(None if None in column else sum(n for n in column if n is not None) for column in columns)
    return Held(images=sum(part.images for part in found), counts=counts)


def count(samples: Samples, holdings: Sequence[Holding]) -> Census:
    """The census of data that is at hand."""
    sites, width = len(holdings), len(samples.classes)
    images = np.zeros((sites, len(SPLITS)), dtype=np.int64)
    counts = np.zeros((sites, len(SPLITS), width), dtype=np.int64)
    for number, split in enumerate(SPLITS):
        parts = [getattr(one, split) for one in holdings]
        images[:, number] = [len(rows) for rows in parts]
        owner, labels = np.repeat(np.arange(sites), images[:, number]), samples.labels[np.concatenate(parts)]
        if samples.task == "single":
            counts[:, number] = np.bincount(owner * width + labels, minlength=sites * width).reshape(
                sites, width
            )
            continue
        for label in range(width):
            counts[:, number, label] = np.bincount(owner, labels[:, label], minlength=sites).astype(np.int64)
    return Census(
        sites=Counts(tuple(one.name for one in holdings), images, counts),
        labelled={one.name: tuple(one.labelled.tolist()) for one in holdings if one.labelled is not None},
        groups=None if samples.group is None else len(np.unique(samples.group)),
    )
