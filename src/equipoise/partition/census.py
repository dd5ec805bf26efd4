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
from equipoise.partition.divide import Holding, Holdings

SPLITS = ("train", "validation", "test")
NOT_TOLD = -1
TABLE = 1000
"""sites that are written down as a table, at most"""


class Held(Options):
    """The images of one split, at one site or at several."""

    images: int
    counts: tuple[int | None, ...]
    """of each class (positives, for multi-label); None where that is not told"""
    known: tuple[int | None, ...] | None = None
    """multi-label: how many of them are labelled for each class, None where that is not told; left out where
    all of them are for every class"""
    withheld: tuple[int, ...] = ()
    """numbers of the classes with fewer images than the site tells of; those are in no test"""


class Counts(ByName[dict[str, Held]]):
    """By site and split, what is held: arrays, since there may be 100,000 sites."""

    def __init__(
        self,
        names: Sequence[str] | Mapping[str, int],
        images: np.ndarray,
        counts: np.ndarray,
        known: np.ndarray | None = None,
        withheld: Mapping[str, Mapping[str, Sequence[int]]] | None = None,
    ) -> None:
        """`images` is [sites, splits], `counts` [sites, splits, classes], `NOT_TOLD` where that is so;
        `known` is as `counts`, the images that are labelled, None where all of them are; `withheld` is by
        site and split, of those that have any."""
        super().__init__(names, self._held)
        self.images, self.counts, self.withheld = images, _narrow(counts), withheld or {}
        self.known = None if known is None else _narrow(known)
        self._names = tuple(self.places) if self.withheld else ()

    def _held(self, place: int) -> dict[str, Held]:
        withheld = self.withheld.get(self._names[place], {}) if self.withheld else {}
        return {
            split: Held(
                images=int(self.images[place, i]),
                counts=_reported(self.counts[place, i]),
                known=None if self.complete(place, i) else _reported(self._known[place, i]),
                withheld=tuple(withheld.get(split, ())),
            )
            for i, split in enumerate(SPLITS)
        }

    def complete(self, place: int, split: int) -> bool:
        """Whether every image of a split is labelled for every class."""
        return self.known is None or bool((self.known[place, split] == self.images[place, split]).all())

    @property
    def _known(self) -> np.ndarray:
        assert self.known is not None
        return self.known


class Census(Options):
    """Who holds what."""

    model_config = ConfigDict(arbitrary_types_allowed=True)

    sites: Counts
    """by site and split"""
    labelled: dict[str, tuple[bool, ...]] = {}
    """by site: the classes it labels; a site that is not named labels all"""
    groups: int | None = None
    """patients, or whatever keeps images together; None where that is not known"""
    small_cell: dict[str, int] = {}
    """by site: it tells nothing of a class with fewer images than this"""

    @classmethod
    def of(
        cls, sites: Mapping[str, Mapping[str, Held]], small_cell: Mapping[str, int] | None = None
    ) -> Census:
        """The census of sites that told what they have, and from how many images of a class on."""
        return cls.model_validate({"sites": sites, "small_cell": dict(small_cell or {})})

    @field_validator("sites", mode="before")
    @classmethod
    def _in_arrays(cls, sites: Any) -> Any:
        """A table by site and split, or the columns of one, become arrays."""
        if isinstance(sites, Counts) or not isinstance(sites, Mapping):
            return sites
        if isinstance(sites.get("names"), list):
            columns = [sites[split] for split in SPLITS]
            images = np.array([_numbers(one["images"]) for one in columns]).T
            counts, known = (
                np.array([[_numbers(column) for column in one[name]] for one in columns]).transpose(2, 0, 1)
                if name in columns[0]
                else None
                for name in ("counts", "known")
            )
            assert counts is not None
            return Counts(sites["names"], images, counts, known, sites.get("withheld"))
        held = [[Held.model_validate(splits[split]) for split in SPLITS] for splits in sites.values()]
        images = np.array([[one.images for one in row] for row in held], dtype=np.int64)
        counts = np.array([[_number(one.counts) for one in row] for row in held], dtype=np.int64)
        known = None
        if any(one.known is not None for row in held for one in row):
            each = [[_number(one.known or (one.images,) * len(one.counts)) for one in row] for row in held]
            known = np.array(each, dtype=np.int64)
        return Counts(tuple(sites), images, counts, known, _withheld(tuple(sites), held))

    @field_serializer("sites")
    def _as_table(self, sites: Counts) -> dict[str, Any]:
        """What each site has of each split; of many sites in columns, which take a tenth of the room."""
        if len(sites) > TABLE:
            less = {"withheld": dict(sites.withheld)} if sites.withheld else {}
            return {"names": list(sites), **less} | {
                split: {
                    "images": _text(sites.images[:, i]),
                    "counts": [_text(column) for column in sites.counts[:, i].T],
                    **({} if sites.known is None else {"known": [_text(one) for one in sites.known[:, i].T]}),
                }
                for i, split in enumerate(SPLITS)
            }
        return {
            site: {
                split: held.model_dump(mode="json", exclude_defaults=True) for split, held in splits.items()
            }
            for site, splits in sites.items()
        }

    @property
    def partial(self) -> bool:
        """Whether some training image is not labelled for some class."""
        return bool(self.labelled) or self.known("train") is not None

    def known(self, split: str) -> list[int] | None:
        """How many images of a split are labelled for each class, over all sites; None where all are."""
        images, place = self.sites.images, SPLITS.index(split)
        if self.sites.known is None or bool((self.sites.known[:, place] == images[:, place, None]).all()):
            return None
        result: list[int] = self.sites.known[:, place].clip(min=0).sum(0, dtype=np.int64).tolist()
        return result

    @property
    def sizes(self) -> dict[str, int]:
        """Training images by site."""
        return dict(zip(self.sites, self.sites.images[:, 0].tolist(), strict=True))

    def counts(self) -> Tensor:
        """Training images per class over all sites; what is not told counts as none."""
        return torch.from_numpy(self.sites.counts[:, 0].clip(min=0).sum(0, dtype=np.int64))

    def images(self, pooled: bool = False) -> Mapping[str, dict[str, int]]:
        """How many images by site and split; `pooled`: where every site trains on the images of all."""
        places, images = self.sites.places, self.sites.images
        if pooled:
            images = images.copy()
            images[:, 0] = images[:, 0].sum()
        return ByName(places, lambda place: dict(zip(SPLITS, images[place].tolist(), strict=True)))

    def having(self, *splits: str) -> tuple[str, ...]:
        """The sites that have images of one of these splits."""
        sums = self.sites.images[:, [SPLITS.index(split) for split in splits]].sum(1).tolist()
        return tuple(site for site, images in zip(self.sites, sums, strict=True) if images)


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
    """whether some site labels only some of the classes, or some of its images"""
    look: Mapping[str, Any] | None = None
    """how images are prepared, where the sites say it and not the config"""

    def table(self) -> dict[str, Any]:
        """All of it as plain values, for pages and consoles; what is not reported counts as none.

        A site that labels only some of the classes has `labelled`, true or false for each; a split in which
        not every image is labelled for every class has `known`, how many are.
        """
        census, train = self.census, self.census.counts().tolist()
        height, width, channels = self.shape
        images, counts = census.sites.images.tolist(), census.sites.counts.clip(min=0).tolist()
        sites: dict[str, dict[str, Any]] = {
            site: {
                split: {"images": n, "counts": held}
                | ({"untold": untold} if (untold := np.flatnonzero(there == NOT_TOLD).tolist()) else {})
                for split, n, held, there in zip(
                    SPLITS, images[place], counts[place], census.sites.counts[place], strict=True
                )
            }
            for place, site in enumerate(census.sites)
        }
        for place, site in enumerate(census.sites if census.sites.known is not None else ()):
            for i, split in enumerate(SPLITS):
                if not census.sites.complete(place, i):
                    sites[site][split]["known"] = [n or 0 for n in census.sites[site][split].known or ()]
        for site, withheld in census.sites.withheld.items():
            for split, numbers in withheld.items():
                sites[site][split]["withheld"] = list(numbers)
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
            "small_cell": census.small_cell,
            "sites": sites,
        }


def together(parts: Iterable[Held]) -> Held:
    """The images of several sites; a class that one of them does not report is not reported."""
    held = list(parts)
    images, counts = sum(part.images for part in held), _sums([part.counts for part in held])
    if all(part.known is None for part in held):
        return Held(images=images, counts=counts)
    each = [(part.images,) * len(counts) if part.known is None else part.known for part in held]
    return Held(images=images, counts=counts, known=_sums(each))


def _sums(rows: Sequence[Sequence[int | None]]) -> tuple[int | None, ...]:
    """The sum of every column; None where one of its cells is."""
    columns = zip(*rows, strict=True)
    return tuple(None if None in column else sum(n for n in column if n is not None) for column in columns)


def count(samples: Samples, holdings: Sequence[Holding]) -> Census:
    """The census of data that is at hand."""
    packed = Holdings.of(holdings)
    images, width = packed.sizes, len(samples.classes)
    labels = samples.labels[packed.rows]
    cells = np.repeat(np.arange(images.size), images.reshape(-1))
    if samples.task == "single":
        filled = np.bincount(cells * width + labels, minlength=images.size * width)
        counts, known = filled.reshape(*images.shape, width), None
    else:

        def added(marked: np.ndarray) -> np.ndarray:
            columns = [np.bincount(cells, marked[:, i], minlength=images.size) for i in range(width)]
            return np.stack(columns, axis=1).astype(np.int64).reshape(*images.shape, width)

        missing = np.isnan(labels)
        counts, known = added(labels > 0), added(~missing) if missing.any() else None
        known = _hide(holdings, images, counts, known)
    return Census(
        sites=Counts(packed.places, images, counts, known),
        labelled=_labelled(holdings, packed, known),
        groups=None if samples.group is None else len(np.unique(samples.group)),
    )


def _labelled(
    holdings: Sequence[Holding], packed: Holdings, known: np.ndarray | None
) -> dict[str, tuple[bool, ...]]:
    """By site that labels only some of the classes, those that some training image is labelled for."""
    if packed.labelled is None and known is None:
        return {}
    masks = {}
    for place, one in enumerate(holdings):
        labelled = np.ones(1, bool) if one.labelled is None else one.labelled
        if known is not None:
            labelled = labelled & (known[place, 0] > 0)
        if not labelled.all():
            masks[one.name] = tuple(labelled.tolist())
    return masks


def _hide(
    holdings: Sequence[Holding], images: np.ndarray, counts: np.ndarray, known: np.ndarray | None
) -> np.ndarray | None:
    """`known` without the classes that holdings hide from a split, whose counts become 0 in place."""
    for place, one in enumerate(() if isinstance(holdings, Holdings) else holdings):
        for split, mask in one.hidden.items():
            if known is None:
                known = np.repeat(images[:, :, None], counts.shape[2], axis=2)
            counts[place, SPLITS.index(split)][mask] = 0
            known[place, SPLITS.index(split)][mask] = 0
    return known


def _withheld(names: Sequence[str], held: Sequence[Sequence[Held]]) -> dict[str, dict[str, list[int]]]:
    """By site and split: the numbers of the classes it does not report, where there are any."""
    withheld: dict[str, dict[str, list[int]]] = {}
    for site, row in zip(names, held, strict=True):
        for split, one in zip(SPLITS, row, strict=True):
            if one.withheld:
                withheld.setdefault(site, {})[split] = list(one.withheld)
    return withheld


def _narrow(numbers: np.ndarray) -> np.ndarray:
    """The same in as few bytes as hold them: there may be 100,000 sites, with a few images each."""
    return numbers.astype(np.min_scalar_type(NOT_TOLD - int(numbers.max(initial=0))))


def _reported(numbers: np.ndarray) -> tuple[int | None, ...]:
    return tuple(None if n == NOT_TOLD else n for n in numbers.tolist())


def _number(counts: Sequence[int | None]) -> list[int]:
    return [NOT_TOLD if n is None else n for n in counts]


def _text(column: np.ndarray) -> str:
    return " ".join(map(str, column.tolist()))


def _numbers(text: str) -> list[int]:
    return [int(number) for number in text.split()]
