"""Kinds of partition. Each one says which rows are whose; how a site splits its rows is the business of
`divide`."""

from __future__ import annotations

import heapq
import math
from itertools import pairwise
from typing import Literal

import numpy as np
from pydantic import Field, model_validator

from equipoise.data.samples import Samples
from equipoise.errors import PartitionError
from equipoise.names import unknown
from equipoise.options import Options
from equipoise.partition.units import Units, row_classes, units
from equipoise.seeds import numpy_generator


class PartitionOptions(Options):
    """What every kind of partition can do."""

    kind: str
    """which kind of partition"""
    long_tail: float = Field(default=1.0, ge=1)
    """make a long tail: leave out training and validation rows until class i of C (by size) has
    1/long_tail^(i/(C-1)) of the first"""
    missing: int = Field(default=0, ge=0)
    """multi-label: how many classes each site does not label; every class is labelled somewhere"""
    missing_seed: int | None = Field(default=None, ge=0)
    """draw the missing classes from this seed alone (1037 gives FedMLP's published sets); none = from the
    run's seed"""
    train_size: int | None = Field(default=None, ge=1)
    """leave out training rows so that no site trains on more than this many (FedMLP: 5000); none = all"""
    test_per_class: int = Field(default=0, ge=0)
    """test on exactly this many rows of every class (FedSDC: 30), each at the site that holds it; replaces
    `split.test`"""

    def sites_of(self, samples: Samples, seed: int) -> dict[str, np.ndarray]:
        """Site name → rows. Ours put every row into exactly one site; one's own may leave rows out."""
        raise NotImplementedError

    def reserved(self, samples: Samples, seed: int) -> np.ndarray | None:
        """bool [rows]: what this partition keeps for testing, all else being for training; None leaves it to
        the split."""
        return _balanced(samples, self.test_per_class, seed) if self.test_per_class else None


class Column(PartitionOptions):
    """Natural sites: a row belongs to the hospital it came from."""

    kind: Literal["column"] = "column"
    """natural sites, from the site column of the data"""
    min_size: int = Field(default=1, ge=1)
    """refuse the data when a site has fewer rows than this"""
    test_site: str | None = None
    """a source that does not train: its rows are dealt evenly to the others as their only test rows (FedIIC's
    Real setting)"""

    @model_validator(mode="after")
    def _one_test_set(self) -> Column:
        if self.test_site is not None and self.test_per_class:
            raise ValueError("test_site and test_per_class both choose the test rows; remove one")
        return self

    def sites_of(self, samples: Samples, seed: int) -> dict[str, np.ndarray]:
        site = self._column(samples)
        if self.test_site is not None:
            outside, others = site == self.test_site, np.unique(site[site != self.test_site])
            if not outside.any():
                wrong = unknown("site", self.test_site, others.tolist())
                raise PartitionError(f"partition.test_site: {wrong}")
            if not len(others):
                wrong = f"'{self.test_site}' is the only site, so none is left to train"
                raise PartitionError(f"partition.test_site: {wrong}")
            movable = units(samples, np.flatnonzero(outside))
            owner = deal(movable.size, len(others), numpy_generator(seed, "partition"))
            site[outside] = others[owner[movable.of]]
        names, code = np.unique(site, return_inverse=True)
        sites = dict(zip(names.tolist(), rows_of(code, len(names)), strict=True))
        small = [f"{name} ({len(rows)})" for name, rows in sites.items() if len(rows) < self.min_size]
        if small:
            raise PartitionError(
                f"partition.min_size is {self.min_size}, but these sites have fewer rows: "
                f"{', '.join(small)}; lower min_size, or merge or leave out these sites"
            )
        return sites

    def reserved(self, samples: Samples, seed: int) -> np.ndarray | None:
        if self.test_site is None:
            return super().reserved(samples, seed)
        outside = self._column(samples) == self.test_site
        if samples.group is not None:
            group = np.asarray(samples.group).astype(str)
            both = np.intersect1d(group[outside & (group != "")], group[~outside])
            if len(both):
                raise PartitionError(
                    f"partition.test_site: group '{both[0]}' is at '{self.test_site}' and at a site that "
                    "trains; leave its rows out of one of the two"
                )
        result: np.ndarray | None = outside
        return result

    def _column(self, samples: Samples) -> np.ndarray:
        """The site of every row."""
        if samples.site is None:
            raise PartitionError(
                "partition.kind 'column' needs sites: name the site column in [data], or use kind 'iid' or "
                "'dirichlet'"
            )
        return filled(samples, samples.site, "site", "column")


class Iid(PartitionOptions):
    """Sites that differ by chance only: shuffled units, dealt so that the sites end equally large."""

    kind: Literal["iid"] = "iid"
    """sites alike but for chance"""
    sites: int = Field(default=8, ge=1)
    """how many sites to make"""

    def sites_of(self, samples: Samples, seed: int) -> dict[str, np.ndarray]:
        movable = _enough(samples, self.sites)
        owner = deal(movable.size, self.sites, numpy_generator(seed, "partition"))
        return named(owner[movable.of], self.sites)


class Dirichlet(PartitionOptions):
    """Label skew: each class is cut into Dirichlet shares.

    As it stands this is FedSDC's form (FedDisco's); `capped`, `drop` and `min_cell` make FCA's two splits,
    `equal` and `block` FedIIC's (CReFF's).
    """

    kind: Literal["dirichlet"] = "dirichlet"
    """label skew: Dirichlet shares of every class"""
    sites: int = Field(default=8, ge=1)
    """how many sites to make"""
    alpha: float | tuple[float, ...] = 1.0
    """concentration: small is skewed, large is nearly alike; a list has one for each class, in their order"""
    min_size: int = Field(default=10, ge=1)
    """draw again until the smallest site has this many rows"""
    tries: int = Field(default=1000, ge=1)
    """how many draws to make before giving up"""
    capped: bool = True
    """a site that holds an average share of all rows gets no more (FedDisco, FedIIC); FCA lets sites grow"""
    drop: float = Field(default=0.0, ge=0, lt=1)
    """probability that a site has nothing of a class, which then goes to the others (FCA's second split:
    0.3)"""
    min_cell: int = Field(default=0, ge=0)
    """draw again until every site has this many rows of every class that was not dropped for it"""
    equal: bool = False
    """draw until no site is below half the average, line the sites up, each sorted by class, and cut the line
    evenly (FedIIC)"""
    block: int | None = Field(default=None, ge=1)
    """deal the rows to blocks of this many sites first and cut each block alone (FedIIC: 10); none = one
    block"""

    @model_validator(mode="after")
    def _fits_together(self) -> Dirichlet:
        if not all(value > 0 and math.isfinite(value) for value in self._alphas):
            raise ValueError("alpha must be above 0")
        if self.equal and (self.drop or self.min_cell):
            raise ValueError("equal cuts the sites anew, which undoes drop and min_cell; remove one of them")
        if self.block is not None and self.sites % self.block:
            raise ValueError(
                f"{self.sites} sites cannot be made of blocks of {self.block}; make sites a multiple of block"
            )
        return self

    def sites_of(self, samples: Samples, seed: int) -> dict[str, np.ndarray]:
        movable = _enough(samples, self.sites)
        alpha = self._alpha(samples)
        rng = numpy_generator(seed, "partition")
        width = self.block or self.sites
        blocks = self.sites // width
        block = deal(movable.size, blocks, rng) if blocks > 1 else np.zeros(len(movable), dtype=np.int64)
        owner = np.empty(len(movable), dtype=np.int64)
        for number in range(blocks):
            members = np.flatnonzero(block == number)
            sizes, strata = movable.size[members], movable.stratum[members]
            owner[members] = number * width + self._drawn(sizes, strata, width, alpha, rng)
        if self.equal:
            owner = self._cut(movable, owner, rng)
        return named(owner[movable.of], self.sites)

    @property
    def _alphas(self) -> tuple[float, ...]:
        return self.alpha if isinstance(self.alpha, tuple) else (self.alpha,)

    def _alpha(self, samples: Samples) -> np.ndarray:
        """One concentration for each stratum."""
        if not isinstance(self.alpha, tuple):
            return np.full(len(samples.classes) + 1, self.alpha)
        if samples.task != "single":
            raise PartitionError("partition.alpha: a list is for single-label data; give one number")
        if len(self.alpha) != len(samples.classes):
            raise PartitionError(
                f"partition.alpha has {len(self.alpha)} numbers and the data {len(samples.classes)} classes "
                f"({', '.join(samples.classes)}); give one for each, or one for all"
            )
        return np.array(self.alpha)

    def _drawn(
        self, size: np.ndarray, stratum: np.ndarray, sites: int, alpha: np.ndarray, rng: np.random.Generator
    ) -> np.ndarray:
        """One owner per unit, drawn until the sites are as asked."""
        total = int(size.sum())
        least = max(self.min_size, total / sites / 2 if self.equal else 0)
        if sites * least <= total:
            for _ in range(self.tries):
                owner = self._draw(size, stratum, sites, alpha, least, rng)
                if owner is not None:
                    return owner
        raise self._refusal(total, sites)

    def _draw(
        self,
        size: np.ndarray,
        stratum: np.ndarray,
        sites: int,
        alpha: np.ndarray,
        least: float,
        rng: np.random.Generator,
    ) -> np.ndarray | None:
        """One owner per unit, or None when the sites are not as asked."""
        owner = np.empty(len(size), dtype=np.int64)
        held = np.zeros(sites)
        average = size.sum() / sites
        for label in np.unique(stratum):
            members = rng.permutation(np.flatnonzero(stratum == label))
            # A Dirichlet draw with some shares zeroed and the rest renormalised is a Dirichlet draw over the
            # rest, so draw over the open sites at once: same distribution, and no division by zero when alpha
            # is tiny. Some site is always below the average, because the rows of this class are not yet given
            # out.
            wanted = rng.random(sites) >= self.drop if self.drop else np.ones(sites, dtype=bool)
            open_sites = np.flatnonzero(wanted & (held < average) if self.capped else wanted)
            if not len(open_sites):
                return None
            edge = np.cumsum(rng.dirichlet(np.full(len(open_sites), alpha[label])))
            middle = (np.cumsum(size[members]) - size[members] / 2) / size[members].sum()
            # The last edge is 1 up to rounding; the minimum keeps a last unit beyond it inside.
            cut = np.minimum(np.searchsorted(edge, middle), len(open_sites) - 1)
            owner[members] = open_sites[cut]
            got = np.bincount(owner[members], weights=size[members], minlength=sites)
            if got[wanted].min() < self.min_cell:
                return None
            held += got
        return owner if held.min() >= least else None

    def _cut(self, movable: Units, owner: np.ndarray, rng: np.random.Generator) -> np.ndarray:
        """The units in line by owner and class, cut into equally large sites as exactly as whole units
        allow."""
        line = np.lexsort((rng.permutation(len(movable)), movable.stratum, owner))
        size = movable.size[line]
        cut = np.empty(len(movable), dtype=np.int64)
        cut[line] = (np.cumsum(size) - size / 2) * self.sites // size.sum()
        if np.bincount(cut, weights=movable.size, minlength=self.sites).min() < self.min_size:
            raise self._refusal(int(size.sum()), self.sites)
        return cut

    def _refusal(self, rows: int, sites: int) -> PartitionError:
        alpha = ", ".join(f"{value:g}" for value in self._alphas)
        cells = f", each with {self.min_cell} rows of its classes," if self.min_cell else ""
        return PartitionError(
            f"partition.kind 'dirichlet': {self.tries} draws with alpha={alpha} gave no {sites} sites of "
            f"{self.min_size} rows or more{cells} from {rows} rows; use fewer sites, a larger alpha or a "
            f"smaller min_size{' or min_cell' if self.min_cell else ''}"
        )


def deal(size: np.ndarray, hands: int, rng: np.random.Generator) -> np.ndarray:
    """An owner for each unit, of `size` rows: shuffled, each to the hand that holds the fewest rows."""
    owner = np.empty(len(size), dtype=np.int64)
    fewest = [(0, hand) for hand in range(hands)]  # of equal hands the first
    rows = size.tolist()
    for unit in rng.permutation(len(size)).tolist():
        held, owner[unit] = fewest[0]
        heapq.heapreplace(fewest, (held + rows[unit], int(owner[unit])))
    return owner


def named(owner: np.ndarray, sites: int, prefix: str = "site") -> dict[str, np.ndarray]:
    """Rows by site, with names that sort in order: site-00, site-01, …"""
    width = max(2, len(str(sites - 1)))
    return {f"{prefix}-{site:0{width}d}": rows for site, rows in enumerate(rows_of(owner, sites))}


def rows_of(owner: np.ndarray, hands: int) -> list[np.ndarray]:
    """By hand: the rows it owns, in order; a row whose owner is below 0 is nobody's."""
    order = np.argsort(owner, kind="stable")
    ends = np.searchsorted(owner[order], np.arange(hands + 1))
    return [order[start:end] for start, end in pairwise(ends.tolist())]


def filled(samples: Samples, column: np.ndarray, name: str, kind: str) -> np.ndarray:
    """A column as text; a blank cell is refused."""
    text = np.asarray(column).astype(str)
    blank = np.flatnonzero(text == "")
    if len(blank):
        raise PartitionError(
            f"partition.kind '{kind}': {len(blank)} rows have no {name}, the first is "
            f"'{samples.ids[blank[0]]}'; fill in the {name} column or leave these rows out"
        )
    return text


def filling(size: np.ndarray, order: np.ndarray, rows: int) -> np.ndarray:
    """Units in the given order, leaving out those that would make more than `rows` rows."""
    taken, held = [], 0
    for unit in order:
        if held + size[unit] <= rows:
            taken.append(unit)
            held += size[unit]
        if held == rows:
            break
    return np.array(taken, dtype=np.int64)


def _enough(samples: Samples, sites: int) -> Units:
    """The units of all rows, or an error when some site would stay empty."""
    if len(samples) == 0:
        raise PartitionError("partition: the data has no rows; check [data]")
    movable = units(samples, np.arange(len(samples)))
    if len(movable) < sites:
        raise PartitionError(
            f"partition.sites is {sites}, but the data has only {len(movable)} groups, which are never "
            f"cut; use fewer sites"
        )
    return movable


def _balanced(samples: Samples, count: int, seed: int) -> np.ndarray:
    """bool [rows]: exactly `count` rows of every class, in whole groups of one class, leaving each class some
    to train on."""
    if samples.task != "single":
        raise PartitionError("partition.test_per_class is for single-label data: remove it")
    movable = units(samples, np.arange(len(samples)))
    label = row_classes(samples, np.arange(len(samples)))
    pure = np.bincount(movable.of, weights=label != movable.stratum[movable.of]) == 0
    chosen = np.zeros(len(movable), dtype=bool)
    rng = numpy_generator(seed, "balanced test")
    for index, name in enumerate(samples.classes):
        rows = int((label == index).sum())
        if rows <= count:
            raise PartitionError(
                f"partition.test_per_class is {count}, but class '{name}' has {rows} rows and some must be "
                "left to train on; ask for fewer or leave the class out"
            )
        members = rng.permutation(np.flatnonzero(pure & (movable.stratum == index)))
        units_of = filling(movable.size, members, count)
        if movable.size[units_of].sum() != count:
            raise PartitionError(
                f"partition.test_per_class: no draw of whole groups of class '{name}' has {count} rows; "
                "ask for another number or use another seed"
            )
        chosen[units_of] = True
    result: np.ndarray = chosen[movable.of]
    return result
