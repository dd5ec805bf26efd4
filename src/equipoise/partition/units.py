"""Units: the smallest things a partition moves. A patient or lesion is one unit; a row without a group is its
own."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from equipoise.data.samples import Samples


@dataclass(frozen=True, eq=False)
class Units:
    """The units among some rows, each with its size and one class to balance by."""

    of: np.ndarray
    """int64 [rows]: the unit of each row"""
    size: np.ndarray
    """int64 [units]: rows in each unit"""
    stratum: np.ndarray
    """int64 [units]: the class that stands for the unit"""
    first: np.ndarray
    """int64 [units]: position of the unit's first row, which tells what group it is"""

    def __len__(self) -> int:
        return len(self.size)


def units(samples: Samples, rows: np.ndarray) -> Units:
    """The units among `rows`, in order of first appearance. Reads nothing but these rows, so a site can do it
    alone."""
    if samples.group is None:
        every = np.arange(len(rows))
        return Units(of=every, size=np.ones_like(every), stratum=row_classes(samples, rows), first=every)
    group = np.asarray(samples.group)[rows].astype(str)
    # A blank group means "not known": such rows are not one patient. The prefixes keep both kinds of names
    # apart.
    alone = np.char.add("r", np.arange(len(rows)).astype(str))
    names = np.where(group == "", alone, np.char.add("g", group))
    _, first, inverse = np.unique(names, return_index=True, return_inverse=True)
    rank = np.empty(len(first), dtype=np.int64)
    # First appearance, not alphabet: ids must not steer the draw.
    rank[np.argsort(first)] = np.arange(len(first))
    of = rank[inverse]
    stratum = majority(row_classes(samples, rows), of)
    return Units(of=of, size=np.bincount(of), stratum=stratum, first=np.sort(first))


def group_names(samples: Samples, rows: np.ndarray) -> list[str]:
    """The group of each row, blank where it has none."""
    return [""] * len(rows) if samples.group is None else np.asarray(samples.group)[rows].astype(str).tolist()


def row_classes(samples: Samples, rows: np.ndarray) -> np.ndarray:
    """One class per row: its label, or for several labels its rarest positive one (`len(classes)` when it has
    none)."""
    labels = np.asarray(samples.labels)[rows]
    if samples.task == "single":
        result: np.ndarray = labels.astype(np.int64)
        return result
    positive = labels > 0
    count = positive.sum(axis=0)
    rarest = np.where(positive, count, len(rows) + 1).argmin(axis=1)
    return np.where(positive.any(axis=1), rarest, len(samples.classes)).astype(np.int64)


def majority(classes: np.ndarray, of: np.ndarray) -> np.ndarray:
    """The commonest class within each unit; of equally common ones the class that is rarest overall."""
    total = np.bincount(classes)
    votes = np.zeros((of.max() + 1, len(total)), dtype=np.int64)
    np.add.at(votes, (of, classes), 1)
    tied = votes == votes.max(axis=1, keepdims=True)
    result: np.ndarray = np.where(tied, total, len(classes) + 1).argmin(axis=1).astype(np.int64)
    return result
