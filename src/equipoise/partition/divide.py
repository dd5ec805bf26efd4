"""Divide a data set: first who holds a row, then what the holder uses it for."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from itertools import pairwise
from typing import Any, Protocol, overload

import numpy as np

from equipoise.data.samples import Samples
from equipoise.errors import PartitionError
from equipoise.locate import named
from equipoise.partition.folds import folds
from equipoise.partition.kinds import PartitionOptions, filling
from equipoise.partition.own import own_sites
from equipoise.partition.partial import labelled
from equipoise.partition.units import group_names, units
from equipoise.seeds import numpy_generator

SPLITS = ("train", "validation", "test")
TRAIN, VALIDATION, TEST = range(3)
LEFT_OUT = -1
SITE_NAME = re.compile(r"[^./\\\x00-\x1f][^/\\\x00-\x1f]{0,99}")
"""a site keeps its private state in a folder of its name"""


class SplitOptions(Protocol):
    """The part of the data options that says how a site splits its rows."""

    @property
    def test(self) -> float: ...
    @property
    def validation(self) -> float: ...
    @property
    def column(self) -> str | None: ...
    @property
    def folds(self) -> int | None: ...
    @property
    def fold(self) -> int | None: ...
    @property
    def seed(self) -> int | None: ...


@dataclass(frozen=True, eq=False)
class Holding:
    """The rows of one site, as sorted int64 indices into the samples."""

    name: str
    train: np.ndarray
    validation: np.ndarray
    test: np.ndarray
    labelled: np.ndarray | None = None
    """bool [C]: the classes this site labels (multi-label tasks); None means all"""
    hidden: Mapping[str, np.ndarray] = field(default_factory=dict)
    """by split: bool [C], the classes that no test may count (multi-label tasks)"""


class Holdings(Sequence[Holding]):
    """The holdings of all sites, in order of name: one array of rows, cut where a holding is asked for."""

    def __init__(
        self, names: Sequence[str], rows: np.ndarray, edges: np.ndarray, labelled: np.ndarray | None
    ) -> None:
        """`edges` has, by site and split, where its part of `rows` begins, and at last where all end."""
        self.names, self.rows, self._edges, self.labelled = tuple(names), rows, edges, labelled

    @classmethod
    def of(cls, holdings: Sequence[Holding]) -> Holdings:
        """The same holdings in arrays."""
        if isinstance(holdings, Holdings):
            return holdings
        parts = [getattr(one, split) for one in holdings for split in SPLITS]
        rows = np.concatenate(parts) if parts else np.empty(0, dtype=np.int64)
        edges = np.cumsum([0, *map(len, parts)])
        known = [one.labelled for one in holdings]
        mask = None if any(one is None for one in known) else np.array(known)
        return cls([one.name for one in holdings], rows, edges, mask)

    @property
    def sizes(self) -> np.ndarray:
        """int64 [sites, splits]: how many rows each has."""
        return np.diff(self._edges).reshape(len(self), len(SPLITS))

    @cached_property
    def places(self) -> dict[str, int]:
        """By name: the place of a site."""
        return {name: place for place, name in enumerate(self.names)}

    @overload
    def __getitem__(self, place: int) -> Holding: ...
    @overload
    def __getitem__(self, place: slice) -> tuple[Holding, ...]: ...
    def __getitem__(self, place: int | slice) -> Holding | tuple[Holding, ...]:
        if isinstance(place, slice):
            return tuple(self[i] for i in range(*place.indices(len(self))))
        name, first = self.names[place], place % len(self) * len(SPLITS)
        edges = self._edges[first : first + len(SPLITS) + 1].tolist()
        train, validation, test = (self.rows[start:end] for start, end in pairwise(edges))
        labelled = None if self.labelled is None else self.labelled[place]
        return Holding(name, train, validation, test, labelled)

    def __len__(self) -> int:
        return len(self.names)


def divide(samples: Samples, options: PartitionOptions, split: SplitOptions, seed: int) -> Holdings:
    """One holding per site, in order of name; every row is in exactly one split of one site, or left out
    (`long_tail`, `train_size`, a partition of one's own).

    A split the data set brings is kept as it is, even where it cuts a group; a part it does not bring is cut
    from each site's training rows, the fraction `split.test` or `split.validation` of them. Otherwise each
    site is split by the two fractions, class by class, in whole groups. With `split.folds` each site tests on
    fold number `split.fold` of that many, whatever split the data set brings: over all folds every row is
    tested once. Test rows that the partition reserves take the place of both. With `split.seed` test and
    validation rows are cut before the sites are made, so that they are the same for every `seed`.
    """
    if split.seed is not None and options.kind == "limited":
        raise PartitionError(
            "split.seed and partition.kind 'limited' both choose the test rows; remove one of the two"
        )
    brought = None if split.folds else _given_splits(samples, split)
    reserved = options.reserved(samples, seed if split.seed is None else split.seed)
    if reserved is not None:
        if brought is not None or split.folds:
            raise PartitionError(
                f"{'split.folds' if split.folds else 'the split of the data'} and partition.kind "
                f"'{options.kind}', as it is set, both choose the test rows; remove one of the two"
            )
        brought = np.where(reserved, TEST, TRAIN)
    if split.seed is not None:
        brought = _cut(samples, split, split.seed, brought)
    test = 1 / split.folds if split.folds else split.test
    if not (test >= 0 and split.validation >= 0 and test + split.validation < 1):
        raise PartitionError(
            f"split: test={test:g} and validation={split.validation:g} leave nothing to train on; "
            "both must be 0 or more and their sum below 1"
        )
    validation = split.validation
    if brought is not None:
        cut = split.seed is not None
        test = 0 if cut or (brought == TEST).any() else test
        validation = 0 if cut or (brought == VALIDATION).any() else validation
    chosen = np.full(len(samples), LEFT_OUT)
    decided: dict[str, int] = {}
    tested: dict[str, int] = {}
    by_site = own_sites(options, samples, seed) if named(options.kind) else options.sites_of(samples, seed)
    sites = sorted(by_site.items())
    for name, rows in sites:
        if not SITE_NAME.fullmatch(name):
            raise PartitionError(
                f"the site name '{name}' cannot be a folder's name: no slashes, no dot in front, at most "
                f"100 letters"
            )
        rng = numpy_generator(seed, "split", name)
        if split.folds:
            draw = numpy_generator(seed, "folds", name)
            held_out = folds(samples, rows, split.folds, draw, tested) == split.fold
            chosen[rows[held_out]] = TEST
            rest, share = rows[~held_out], validation / (1 - test)
            if len(rest):
                chosen[rest] = _stratified(samples, rest, np.array([1 - share, share, 0]), rng, decided)
            continue
        if brought is None:
            fractions = np.array([1 - validation - test, validation, test])
            chosen[rows] = _stratified(samples, rows, fractions, rng, decided)
            continue
        chosen[rows] = brought[rows]
        train = rows[brought[rows] == TRAIN]
        if (validation or test) and len(train):
            fractions = np.array([1 - validation - test, validation, test])
            chosen[train] = _stratified(samples, train, fractions, rng, decided)
    if options.long_tail > 1:
        learnt = (chosen == TRAIN) | (chosen == VALIDATION)
        chosen[thinned(samples, learnt, options.long_tail, seed)] = LEFT_OUT
    if options.train_size is not None:
        for name, rows in sites:
            train = rows[chosen[rows] == TRAIN]
            if len(train) > options.train_size:
                draw = numpy_generator(seed, "train size", name)
                chosen[beyond(samples, train, options.train_size, draw)] = LEFT_OUT
    known = _labelled(samples, options, len(sites), seed)
    return _holdings(sites, chosen, known)


def _cut(samples: Samples, split: SplitOptions, seed: int, brought: np.ndarray | None) -> np.ndarray:
    """The split of every row: the parts the data brings, the others cut from the rest within every natural
    site."""
    chosen = np.full(len(samples), TRAIN) if brought is None else brought.copy()
    test = 0 if (chosen == TEST).any() else split.test
    validation = 0 if (chosen == VALIDATION).any() else split.validation
    fractions = np.array([1 - validation - test, validation, test])
    names = np.zeros(len(samples)) if samples.site is None else samples.site
    decided: dict[str, int] = {}
    for name in np.unique(names):
        rows = np.flatnonzero((names == name) & (chosen == TRAIN))
        if len(rows):
            draw = numpy_generator(seed, "split", str(name))
            chosen[rows] = _stratified(samples, rows, fractions, draw, decided)
    return chosen


def table(samples: Samples, holdings: Sequence[Holding]) -> dict[str, Any]:
    """Rows and class counts per site and split, and in total, in plain JSON types."""
    sites = {
        holding.name: {split: _tally(samples, getattr(holding, split)) for split in SPLITS}
        for holding in holdings
    }
    everyone = {split: np.concatenate([getattr(holding, split) for holding in holdings]) for split in SPLITS}
    total = {split: _tally(samples, rows) for split, rows in everyone.items()}
    return {"classes": list(samples.classes), "sites": sites, "total": total}


def _tally(samples: Samples, rows: np.ndarray) -> dict[str, Any]:
    labels = np.asarray(samples.labels)[rows]
    if samples.task == "single":
        counts = np.bincount(labels, minlength=len(samples.classes))
    else:
        counts = (labels > 0).sum(axis=0)
    return {"rows": len(rows), "counts": counts.tolist()}


def _given_splits(samples: Samples, split: SplitOptions) -> np.ndarray | None:
    """The split the data set brings, as indices into SPLITS, or None."""
    if samples.split is None:
        if split.column is not None:
            raise PartitionError(
                f"split.column is '{split.column}', but the data carries no split; check the column's name"
            )
        return None
    values = np.asarray(samples.split).astype(str)
    strange = sorted(set(values.tolist()) - set(SPLITS))
    if strange:
        raise PartitionError(f"the data's split has the value '{strange[0]}'; use train, validation or test")
    if "train" not in values:
        raise PartitionError("the data's own split has no training rows: add some, or remove the split")
    return np.array([SPLITS.index(value) for value in values.tolist()], dtype=np.int64)


def _stratified(
    samples: Samples,
    rows: np.ndarray,
    fractions: np.ndarray,
    rng: np.random.Generator,
    decided: dict[str, int],
) -> np.ndarray:
    """A split for each of one site's rows: whole groups, and within each class as near the fractions as
    groups allow.

    Largest groups first, each to where most rows of its class are missing, so no class ends more than one
    group off. Every class gets a training group before anything else; a class of two groups trains on one and
    tests on the other. `decided` holds the groups an earlier site has placed (a patient seen at two
    hospitals), and learns this site's.
    """
    movable = units(samples, rows)
    group = group_names(samples, rows[movable.first])
    placed = [decided.get(name, -1) if name else -1 for name in group]
    preferred = [TRAIN, *(part for part in (TEST, VALIDATION) if fractions[part] > 0)]
    # In plain lists: sites are many and small, and an array costs more than what is in it.
    size, shares = movable.size.tolist(), fractions.tolist()
    for stratum in np.unique(movable.stratum):
        members = rng.permutation(np.flatnonzero(movable.stratum == stratum)).tolist()
        rows_of_class = float(sum(size[unit] for unit in members))
        there = [sum(size[unit] for unit in members if placed[unit] == part) for part in range(3)]
        missing = [share * rows_of_class - held for share, held in zip(shares, there, strict=True)]
        taken = {placed[unit] for unit in members}
        wanted = [part for part in preferred[: 2 if len(members) <= 2 else 1] if part not in taken]
        free = sorted((unit for unit in members if placed[unit] < 0), key=lambda unit: -size[unit])
        for unit in free:
            part = wanted.pop(0) if wanted else missing.index(max(missing))
            placed[unit] = part
            missing[part] -= size[unit]
    decided.update({name: part for name, part in zip(group, placed, strict=True) if name})
    result: np.ndarray = np.array(placed, dtype=np.int64)[movable.of]
    return result


def thinned(samples: Samples, candidates: np.ndarray, ratio: float, seed: int) -> np.ndarray:
    """The candidate rows to leave out so that class sizes fall geometrically, the largest `ratio` times the
    smallest.

    Classes keep their order by size; a class that is already smaller than its share keeps all its rows.
    """
    if samples.task != "single":
        raise PartitionError("partition.long_tail is for single-label data: remove it")
    draw, out = numpy_generator(seed, "long tail"), []
    counts = np.bincount(samples.labels[candidates], minlength=len(samples.classes))
    for rank, label in enumerate(np.argsort(-counts, kind="stable")):
        share = counts.max() * ratio ** (-rank / max(1, len(counts) - 1))
        rows = draw.permutation(np.flatnonzero(candidates & (samples.labels == label)))
        out.append(rows[max(1, round(share)) :])
    return np.concatenate(out)


def beyond(samples: Samples, rows: np.ndarray, most: int, rng: np.random.Generator) -> np.ndarray:
    """The rows to leave out so that at most `most` stay, in whole groups."""
    movable = units(samples, rows)
    stay = filling(movable.size, rng.permutation(len(movable)), most)
    return rows[~np.isin(movable.of, stay)]


def _labelled(samples: Samples, options: PartitionOptions, sites: int, seed: int) -> np.ndarray | None:
    """bool [sites, classes]: which classes each site labels; None for all of them."""
    if options.missing and samples.task == "single":
        raise PartitionError(
            "partition.missing is for multi-label data: a single label cannot be partly missing; remove it"
        )
    return labelled(sites, len(samples.classes), options, seed)


def _holdings(
    sites: Sequence[tuple[str, np.ndarray]], chosen: np.ndarray, known: np.ndarray | None
) -> Holdings:
    """What every site does with its rows; a site with nothing to train on is refused."""
    names, parts = [name for name, _ in sites], [rows for _, rows in sites]
    rows = np.concatenate(parts).astype(np.int64) if parts else np.empty(0, dtype=np.int64)
    owner = np.repeat(np.arange(len(sites)), [len(part) for part in parts])
    used = chosen[rows] != LEFT_OUT
    rows, cell = rows[used], owner[used] * len(SPLITS) + chosen[rows][used]
    sizes = np.bincount(cell, minlength=len(sites) * len(SPLITS))
    empty = np.flatnonzero(sizes[TRAIN :: len(SPLITS)] == 0)
    if len(empty):
        raise PartitionError(
            f"site '{names[empty[0]]}' has no training rows; use fewer sites, a larger min_size or another "
            f"seed"
        )
    edges = np.concatenate([[0], np.cumsum(sizes)])
    return Holdings(names, rows[np.lexsort((rows, cell))], edges, known)
