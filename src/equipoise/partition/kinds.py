"""Kinds of partition. Each one says which rows are whose; how a site splits its rows is the business of `divide`."""

from __future__ import annotations

from typing import Literal

import numpy as np
from pydantic import Field

from equipoise.data.samples import Samples
from equipoise.errors import PartitionError
from equipoise.options import Options
from equipoise.partition.units import Units, units
from equipoise.seeds import numpy_generator


class PartitionOptions(Options):
    """What every kind of partition can do."""

    kind: str
    """which kind of partition"""
    long_tail: float = Field(default=1.0, ge=1)
    """make a long tail: leave out training and validation rows until class i of C (by size) has 1/long_tail^(i/(C-1)) of the first"""
    missing: int = Field(default=0, ge=0)
    """multi-label: how many classes each site does not label; every class is labelled somewhere"""
    missing_seed: int | None = Field(default=None, ge=0)
    """draw the missing classes from this seed alone (1037 gives FedMLP's published sets); none = from the run's seed"""

    def sites_of(self, samples: Samples, seed: int) -> dict[str, np.ndarray]:
        """Site name → sorted rows (int64). Every row is in exactly one site."""
        raise NotImplementedError


class Column(PartitionOptions):
    """Natural sites: a row belongs to the hospital it came from."""

    kind: Literal["column"] = "column"
    """natural sites, from the site column of the data"""
    min_size: int = Field(default=1, ge=1)
    """refuse the data when a site has fewer rows than this"""

    def sites_of(self, samples: Samples, seed: int) -> dict[str, np.ndarray]:
        if samples.site is None:
            raise PartitionError(
                "partition.kind 'column' needs sites: name the site column in [data], or use kind 'iid' or 'dirichlet'"
            )
        site = np.asarray(samples.site).astype(str)
        blank = np.flatnonzero(site == "")
        if len(blank):
            raise PartitionError(
                f"partition.kind 'column': {len(blank)} rows have no site, the first is '{samples.ids[blank[0]]}'; "
                "fill in the site column or leave these rows out"
            )
        found = {str(name): np.flatnonzero(site == name) for name in np.unique(site)}
        small = [f"{name} ({len(rows)})" for name, rows in found.items() if len(rows) < self.min_size]
        if small:
            raise PartitionError(
                f"partition.min_size is {self.min_size}, but these sites have fewer rows: {', '.join(small)}; "
                "lower min_size, or merge or leave out these sites"
            )
        return found


class Iid(PartitionOptions):
    """Sites that differ by chance only: shuffled units, dealt so that the sites end equally large."""

    kind: Literal["iid"] = "iid"
    """sites alike but for chance"""
    sites: int = Field(default=8, ge=1)
    """how many sites to make"""

    def sites_of(self, samples: Samples, seed: int) -> dict[str, np.ndarray]:
        movable = _enough(samples, self.sites)
        owner = np.empty(len(movable), dtype=np.int64)
        held = np.zeros(self.sites, dtype=np.int64)
        for unit in numpy_generator(seed, "partition").permutation(len(movable)):
            owner[unit] = held.argmin()
            held[owner[unit]] += movable.size[unit]
        return _named(owner[movable.of], self.sites)


class Dirichlet(PartitionOptions):
    """Label skew as in FedDisco and FedSDC: each class is cut into Dirichlet shares, and full sites get no more."""

    kind: Literal["dirichlet"] = "dirichlet"
    """label skew: Dirichlet shares of every class"""
    sites: int = Field(default=8, ge=1)
    """how many sites to make"""
    alpha: float = Field(default=1.0, gt=0, allow_inf_nan=False)
    """concentration: small is skewed, large is nearly alike"""
    min_size: int = Field(default=10, ge=1)
    """draw again until the smallest site has this many rows"""
    tries: int = Field(default=1000, ge=1)
    """how many draws to make before giving up"""

    def sites_of(self, samples: Samples, seed: int) -> dict[str, np.ndarray]:
        movable = _enough(samples, self.sites)
        if self.sites * self.min_size <= len(samples):
            rng = numpy_generator(seed, "partition")
            for _ in range(self.tries):
                owner = self._draw(movable, rng)
                held = np.bincount(owner, weights=movable.size, minlength=self.sites)
                if held.min() >= self.min_size:
                    return _named(owner[movable.of], self.sites)
        raise PartitionError(
            f"partition.kind 'dirichlet': {self.tries} draws with alpha={self.alpha:g} gave no {self.sites} sites "
            f"of {self.min_size} rows or more from {len(samples)} rows; "
            "use fewer sites, a larger alpha or a smaller min_size"
        )

    def _draw(self, movable: Units, rng: np.random.Generator) -> np.ndarray:
        """One owner per unit."""
        owner = np.empty(len(movable), dtype=np.int64)
        held = np.zeros(self.sites)
        average = movable.size.sum() / self.sites
        for stratum in np.unique(movable.stratum):
            members = rng.permutation(np.flatnonzero(movable.stratum == stratum))
            # A Dirichlet draw with some shares zeroed and the rest renormalised is a Dirichlet draw over the rest, so
            # draw over the open sites at once: same distribution, and no division by zero when alpha is tiny. Some
            # site is always open, because the rows of this class are not yet given out.
            open_sites = np.flatnonzero(held < average)
            edge = np.cumsum(rng.dirichlet(np.full(len(open_sites), self.alpha)))
            size = movable.size[members]
            middle = (np.cumsum(size) - size / 2) / size.sum()
            # The last edge is 1 up to rounding; the minimum keeps a last unit beyond it inside.
            cut = np.minimum(np.searchsorted(edge, middle), len(open_sites) - 1)
            owner[members] = open_sites[cut]
            held += np.bincount(owner[members], weights=size, minlength=self.sites)
        return owner


KINDS: dict[str, type[PartitionOptions]] = {"column": Column, "iid": Iid, "dirichlet": Dirichlet}


def _enough(samples: Samples, sites: int) -> Units:
    """The units of all rows, or an error when some site would stay empty."""
    if len(samples) == 0:
        raise PartitionError("partition: the data has no rows; check [data]")
    movable = units(samples, np.arange(len(samples)))
    if len(movable) < sites:
        raise PartitionError(
            f"partition.sites is {sites}, but the data has only {len(movable)} groups, which are never cut; use fewer sites"
        )
    return movable


def _named(owner: np.ndarray, sites: int) -> dict[str, np.ndarray]:
    """Rows by site, with names that sort in order: site-00, site-01, …"""
    width = max(2, len(str(sites - 1)))
    return {f"site-{site:0{width}d}": np.flatnonzero(owner == site) for site in range(sites)}
