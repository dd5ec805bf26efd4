"""`kind = "joined"`: several data sets as one, each a source with its own names for the classes.

    [data]
    kind = "joined"
    [[data.parts]]
    kind = "matek19"
    path = "downloads/matek19"
    take = { BAS = "basophil", NGB = "neutrophil", NGS = "neutrophil" }

Every part is read, checked and cached as it would be alone; nothing is copied. The site of a row is its
source, unless the part has `sites`; the source is an attribute too. Ids and groups get the source's name in
front, since two sets may both have a patient 1. A split that a part brings is not kept: what trains and what
tests is for `split` and the partition to say.
"""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import Any, Literal, cast

import numpy as np
from pydantic import ConfigDict, ValidationError, model_validator

from equipoise.data.csv import CsvData
from equipoise.data.folder import FolderData
from equipoise.data.npz import NpzData
from equipoise.data.options import DataOptions, Progress
from equipoise.data.phantom import PhantomData
from equipoise.data.samples import Samples, fingerprint
from equipoise.data.sets import SETS
from equipoise.data.stored import StoredData
from equipoise.errors import DataError
from equipoise.names import first_mistake, unknown
from equipoise.options import Options

READERS: dict[str, type[DataOptions]] = {
    "csv": CsvData,
    "folder": FolderData,
    "npz": NpzData,
    "stored": StoredData,
    "phantom": PhantomData,
    **SETS,
}
"""`kind` → what reads one data set"""
LOOKS = (
    "image_size",
    "channels",
    "resize",
    "crop_keep",
    "colour_constancy",
    "brightness",
    "window",
    "bits",
    "bad_rows",
)
"""what parts take from the whole where they do not say it themselves"""
WHOLE = ("image_size", "channels", "split")
"""what is the same for all parts"""


class Part(Options):
    """One data set among several; its other keys are those of its kind."""

    model_config = ConfigDict(extra="allow")

    kind: str
    """its reader"""
    source: str = ""
    """what it is called; by default its kind"""
    take: dict[str, str] | None = None
    """its classes → ours; classes not named are left out; none = all, under their own names"""
    sites: dict[str, str] | None = None
    """its own sites → ours, those not named being left out; none = the source is one site"""
    but: tuple[str, ...] = ()
    """sources before it: images whose id they have too are left out"""

    @property
    def title(self) -> str:
        return self.source or self.kind


class JoinedData(DataOptions):
    """Several data sets as one; the site of an image is the set it came from."""

    kind: Literal["joined"] = "joined"
    parts: tuple[Part, ...]
    """The data sets, each written as `[[data.parts]]` with the keys of its own kind and: `source` (its name;
    by default its kind), `take` (its classes → ours, the others left out), `sites` (its own sites → ours, the
    others left out; without it the source is one site) and `but` (sources before it whose images, by id, are
    left out)."""
    classes: tuple[str, ...] | None = None
    """The classes in order; by default as the parts bring them."""

    @model_validator(mode="after")
    def _parts_fit(self) -> JoinedData:
        if not self.parts:
            raise ValueError("parts is empty: write at least one [[data.parts]]")
        titles: list[str] = []
        for number, part in enumerate(self.parts):
            where = f"parts[{number}]"
            if part.kind not in READERS:
                raise ValueError(f"{where}.kind: " + unknown("kind", part.kind, READERS))
            if part.title in titles:
                raise ValueError(
                    f"{where} is called '{part.title}' as another part is: give it a source of its own"
                )
            for name in part.but:
                if name not in titles:
                    raise ValueError(f"{where}.but: " + unknown("source before it", name, titles))
            for key in WHOLE:
                if key in (part.model_extra or {}):
                    raise ValueError(f"{where}.{key} is the same for all parts: set data.{key}")
            titles.append(part.title)
            if self._reader(part).multi:
                raise ValueError(
                    f"{where} is multi-label data, and joined data has one label per image: leave the part "
                    f"out"
                )
        return self

    def load(self, *, cache: Path, base: Path, progress: Progress | None = None) -> Samples:
        """Read every part and line them up."""
        held = []
        for part in self.parts:
            one = self._reader(part).load(cache=cache, base=base, progress=progress)
            if one.task == "multi":  # some readers know only now
                raise DataError(
                    f"data.parts '{part.title}' is multi-label data, and joined data has one label per "
                    f"image: leave the part out"
                )
            held.append((part, one))
        taken = dict.fromkeys(ours for part, one in held for ours in _taken(part, one).values())
        classes = self.classes or tuple(taken)
        rows = self._rows(held, classes)

        def column(values: list[np.ndarray]) -> np.ndarray:
            return np.concatenate([each[chosen] for each, chosen in zip(values, rows, strict=True)])

        labels = column([_labels(part, one, classes) for part, one in held])
        if not len(labels):
            raise DataError("joined data holds no images: look at `take`, `sites` and `but` of the parts")
        shared = set.intersection(*(set(one.attributes) for _, one in held)) - {"source"}
        attributes = {name: column([one.attributes[name] for _, one in held]) for name in sorted(shared)}
        attributes["source"] = column([np.full(len(one), part.title) for part, one in held])
        columns = {
            "id": column([_prefixed(part, one.ids) for part, one in held]),
            "site": column([_sites(part, one) for part, one in held]),
            "group": column([_groups(part, one) for part, one in held]),
        }
        pixels = hashlib.sha256(" ".join(one.fingerprint for _, one in held).encode()).hexdigest()
        named = {f"attribute {name}": values for name, values in attributes.items()}
        return Samples(
            images=cast("np.ndarray", Line([one.images for _, one in held], rows)),  # only read row by row
            labels=labels,
            classes=classes,
            task="single",
            ids=columns["id"],
            fingerprint=fingerprint(pixels, labels, classes, {**columns, **named}),
            site=columns["site"],
            group=columns["group"],
            attributes=attributes,
            skipped=tuple(f"{part.title}: {text}" for part, one in held for text in one.skipped),
        )

    def _reader(self, part: Part) -> DataOptions:
        """The options that read a part alone."""
        shared = {key: getattr(self, key) for key in LOOKS if key in self.model_fields_set}
        shared |= {key: getattr(self, key) for key in ("image_size", "channels")}
        keys = {**shared, **(part.model_extra or {}), "kind": part.kind}
        try:
            return READERS[part.kind].model_validate(keys)
        except ValidationError as error:
            first = first_mistake(error)
            place = ".".join(map(str, (f"parts[{self.parts.index(part)}]", *first["loc"])))
            raise ValueError(f"{place}: {first['msg'].removeprefix('Value error, ')}") from None

    def _rows(self, held: list[tuple[Part, Samples]], classes: tuple[str, ...]) -> list[np.ndarray]:
        """The rows of each part that are in the whole."""
        seen: dict[str, np.ndarray] = {}
        rows = []
        for part, one in held:
            stays = (_labels(part, one, classes) >= 0) & (_sites(part, one) != "")
            for name in part.but:
                stays &= ~np.isin(one.ids, seen[name])
            seen[part.title] = one.ids
            rows.append(np.flatnonzero(stays))
        return rows


class Line:
    """Rows of several image arrays in one line; nothing is read until asked for."""

    def __init__(self, arrays: list[np.ndarray], rows: list[np.ndarray]) -> None:
        self.arrays, self.rows = arrays, rows
        self.starts = np.cumsum([0, *map(len, rows)])
        self.shape = (int(self.starts[-1]), *arrays[0].shape[1:])
        self.dtype = arrays[0].dtype

    def __len__(self) -> int:
        result: int = self.shape[0]
        return result

    def __getitem__(self, index: np.ndarray) -> np.ndarray:
        """A copy of the images at these positions."""
        index = np.asarray(index)
        images = np.empty((len(index), *self.shape[1:]), self.dtype)
        of = np.searchsorted(self.starts, index, side="right") - 1
        for number in np.unique(of):
            wanted = np.flatnonzero(of == number)
            images[wanted] = self.arrays[number][self.rows[number][index[wanted] - self.starts[number]]]
        return images


def _taken(part: Part, one: Samples) -> dict[str, str]:
    """A part's classes → ours."""
    if part.take is None:
        return {name: name for name in one.classes}
    for name in part.take:
        if name not in one.classes:
            raise DataError(f"data.parts '{part.title}'.take: " + unknown("class", name, one.classes))
    return part.take


def _labels(part: Part, one: Samples, classes: tuple[str, ...]) -> np.ndarray:
    """The number of each row's class among ours, -1 for a class that is not taken."""
    taken = _taken(part, one)
    for name in taken.values():
        if name not in classes:
            raise DataError(f"data.parts '{part.title}': " + unknown("class of data.classes", name, classes))
    number: dict[str, Any] = {theirs: classes.index(ours) for theirs, ours in taken.items()}
    result: np.ndarray = np.array([number.get(name, -1) for name in one.classes], np.int64)[one.labels]
    return result


def _sites(part: Part, one: Samples) -> np.ndarray:
    """The site of each row, empty where its site is not taken."""
    if part.sites is None:
        return np.full(len(one), part.title)
    if one.site is None:
        raise DataError(f"data.parts '{part.title}'.sites: this data set knows of no sites: remove the key")
    known = set(one.site.tolist())
    for name in part.sites:
        if name not in known:
            raise DataError(f"data.parts '{part.title}'.sites: " + unknown("site", name, known))
    return np.array([part.sites.get(name, "") for name in one.site.tolist()])


def _prefixed(part: Part, values: np.ndarray) -> np.ndarray:
    return np.array([f"{part.title}/{value}" for value in values.tolist()])


def _groups(part: Part, one: Samples) -> np.ndarray:
    """The group of each row; blank, which is a group of its own, where the part knows of none."""
    if one.group is None:
        return np.full(len(one), "")
    return np.where(one.group == "", "", _prefixed(part, one.group))
