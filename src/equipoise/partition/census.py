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
    """images labelled for each class, where some are not; None: all of them for every class"""
    withheld: tuple[int, ...] = ()
    """numbers of the classes with fewer images than the site tells of; those are in no test"""


class Counts(ByName[dict[str, Held]]):
    """By site and split, what is held: two arrays, since there may be 100,000 sites."""

    def __init__(
        self,
        names: Sequence[str] | Mapping[str, int],
        images: np.ndarray,
        counts: np.ndarray,
        lacking: Mapping[str, Mapping[str, Mapping[str, Any]]] | None = None,
    ) -> None:
        """`images` is [sites, splits], `counts` [sites, splits, classes], `NOT_TOLD` where that is so;
        `lacking` has, by site and split, `known` and `withheld` of the few that need them."""
        super().__init__(names, self._held)
        self.images, self.counts, self.lacking = images, counts, lacking or {}
        self._names = tuple(self.places) if self.lacking else ()

    def _held(self, place: int) -> dict[str, Held]:
        more = self.lacking.get(self._names[place], {}) if self.lacking else {}
        return {
            split: Held(
                images=int(images),
                counts=tuple(None if n == NOT_TOLD else n for n in counts.tolist()),
                **more.get(split, {}),
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
        """A table by site and split, or the columns of one, become two arrays."""
        if isinstance(sites, Counts) or not isinstance(sites, Mapping):
            return sites
        if isinstance(sites.get("names"), list):
            columns = [sites[split] for split in SPLITS]
            images = np.array([_numbers(one["images"]) for one in columns]).T
            counts = np.array([[_numbers(told) for told in one["counts"]] for one in columns])
            return Counts(sites["names"], images, counts.transpose(2, 0, 1), sites.get("lacking"))
        held = [[Held.model_validate(splits[split]) for split in SPLITS] for splits in sites.values()]
        told = [[[NOT_TOLD if n is None else n for n in one.counts] for one in row] for row in held]
        images = np.array([[one.images for one in row] for row in held], dtype=np.int64)
        return Counts(tuple(sites), images, np.array(told, dtype=np.int64), _lacking(tuple(sites), held))

    @field_serializer("sites")
    def _as_table(self, sites: Counts) -> dict[str, Any]:
        """What each site has of each split; of many sites in columns, which take a tenth of the room."""
        if len(sites) > TABLE:
            return {"names": list(sites), "lacking": dict(sites.lacking)} | {
                split: {
                    "images": _text(sites.images[:, i]),
                    "counts": [_text(column) for column in sites.counts[:, i].T],
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
    def sizes(self) -> dict[str, int]:
        """Training images by site."""
        return dict(zip(self.sites, self.sites.images[:, 0].tolist(), strict=True))

    def counts(self) -> Tensor:
        """Training images per class over all sites; what is not told counts as none."""
        return torch.from_numpy(self.sites.counts[:, 0].clip(min=0).sum(0, dtype=np.int64))

    def images(self) -> Mapping[str, dict[str, int]]:
        """How many images by site and split."""
        places, images = self.sites.places, self.sites.images
        return ByName(places, lambda place: dict(zip(SPLITS, images[place].tolist(), strict=True)))

    def having(self, *splits: str) -> tuple[str, ...]:
        """The sites that have images of one of these splits."""
        found = self.sites.images[:, [SPLITS.index(split) for split in splits]].sum(1).tolist()
        return tuple(site for site, images in zip(self.sites, found, strict=True) if images)


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
        images, counts = census.sites.images.tolist(), census.sites.counts.clip(min=0).tolist()
        sites: dict[str, dict[str, Any]] = {
            site: {
                split: {"images": n, "counts": told, **census.sites.lacking.get(site, {}).get(split, {})}
                | ({"untold": untold} if (untold := _untold(there)) else {})
                for split, n, told, there in zip(
                    SPLITS, images[place], counts[place], census.sites.counts[place], strict=True
                )
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


def count(samples: Samples, holdings: Sequence[Holding]) -> Census:
    """The census of data that is at hand."""
    packed = Holdings.of(holdings)
    images, width = packed.sizes, len(samples.classes)
    labels = samples.labels[packed.rows]
    cells = np.repeat(np.arange(images.size), images.reshape(-1))
    if samples.task == "single":
        found = np.bincount(cells * width + labels, minlength=images.size * width)
        counts = found.astype(np.int32).reshape(*images.shape, width)
    else:
        columns = [np.bincount(cells, labels[:, i], minlength=images.size) for i in range(width)]
        counts = np.stack(columns, axis=1).astype(np.int32).reshape(*images.shape, width)
    return Census(
        sites=Counts(packed.places, images, counts, _hidden(holdings, images, counts)),
        labelled={one.name: tuple(one.labelled.tolist()) for one in holdings if one.labelled is not None}
        if packed.labelled is not None
        else {},
        groups=None if samples.group is None else len(np.unique(samples.group)),
    )


def _lacking(names: Sequence[str], held: Sequence[Sequence[Held]]) -> dict[str, dict[str, dict[str, Any]]]:
    """By site and split: what is to be said beside numbers, where there is anything."""
    found: dict[str, dict[str, dict[str, Any]]] = {}
    for site, row in zip(names, held, strict=True):
        for split, one in zip(SPLITS, row, strict=True):
            more = one.model_dump(mode="json", include={"known", "withheld"}, exclude_defaults=True)
            if more:
                found.setdefault(site, {})[split] = more
    return found


def _hidden(
    holdings: Sequence[Holding], images: np.ndarray, counts: np.ndarray
) -> dict[str, dict[str, dict[str, Any]]]:
    """By site and split: how many images are known of each class, where some are hidden, whose counts become
    0 in place."""
    found: dict[str, dict[str, dict[str, Any]]] = {}
    for place, one in enumerate(() if isinstance(holdings, Holdings) else holdings):
        for split, mask in one.hidden.items():
            number = SPLITS.index(split)
            counts[place, number][mask] = 0
            known = [0 if gone else int(images[place, number]) for gone in mask]
            found.setdefault(one.name, {})[split] = {"known": known}
    return found


def _untold(counts: np.ndarray) -> list[int]:
    result: list[int] = np.flatnonzero(counts == NOT_TOLD).tolist()
    return result


def _text(column: np.ndarray) -> str:
    return " ".join(map(str, column.tolist()))


def _numbers(text: str) -> list[int]:
    return [int(word) for word in text.split()]
