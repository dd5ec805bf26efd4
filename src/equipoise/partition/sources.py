"""Kinds that make several sites out of each value of a column: of an attribute, or of the data set a row came
from."""

from __future__ import annotations

from typing import Literal

import numpy as np
from pydantic import Field, model_validator

from equipoise.data.samples import Samples
from equipoise.errors import PartitionError
from equipoise.partition.kinds import PartitionOptions, deal, filled, filling, named, rows_of
from equipoise.partition.units import Units, majority, units
from equipoise.seeds import numpy_generator


class Attribute(PartitionOptions):
    """Sites that differ in an attribute of their patients, as in Fed-MAS's skin tones."""

    kind: Literal["attribute"] = "attribute"
    """every value of an attribute makes its own sites"""
    column: str = "tone"
    """the attribute, one of `data.attributes`; a group with several values goes by its commonest"""
    sites: int = Field(default=2, ge=1)
    """how many equally large sites each value makes"""

    def sites_of(self, samples: Samples, seed: int) -> dict[str, np.ndarray]:
        if self.column not in samples.attributes:
            known = ", ".join(sorted(samples.attributes)) or "none"
            raise PartitionError(
                f"partition.column '{self.column}' is not an attribute of the data (it has: {known}); name "
                f"it in data.attributes"
            )
        column = filled(samples, samples.attributes[self.column], self.column, "attribute")
        values, code = np.unique(column, return_inverse=True)
        movable = units(samples, np.arange(len(samples)))
        of_unit = majority(code, movable.of)
        sites: dict[str, np.ndarray] = {}
        for index, value in enumerate(values.tolist()):
            members = np.flatnonzero(of_unit == index)
            if len(members) < self.sites:
                raise PartitionError(
                    f"partition.sites is {self.sites}, but '{value}' in '{self.column}' has only "
                    f"{len(members)} groups, which are never cut; use fewer sites"
                )
            owner = np.full(len(movable), -1)
            rng = numpy_generator(seed, "partition", value)
            owner[members] = deal(movable.size[members], self.sites, rng)
            sites |= named(owner[movable.of], self.sites, value)
        return sites


class Limited(PartitionOptions):
    """Small sites with few classes, several from each source data set, as in FedSDC's NIID-2."""

    kind: Literal["limited"] = "limited"
    """small sites with few classes from each source (the site column); all other rows test"""
    sites: int = Field(default=5, ge=1)
    """how many sites each source makes"""
    classes: tuple[int, int] = (5, 6)
    """fewest and most classes a site trains on"""
    rows: tuple[int, int] = (20, 60)
    """fewest and most training rows of each of its classes"""

    @model_validator(mode="after")
    def _ranges(self) -> Limited:
        for name, (low, high) in (("classes", self.classes), ("rows", self.rows)):
            if not 1 <= low <= high:
                raise ValueError(
                    f"{name} = [{low}, {high}] must be two numbers, 1 or more, the smaller first"
                )
        if self.test_per_class:
            raise ValueError(
                "test_per_class has nothing to choose: all rows that do not train are for testing; remove it"
            )
        return self

    def sites_of(self, samples: Samples, seed: int) -> dict[str, np.ndarray]:
        movable, names, trains, tests = self._drawn(samples, seed)
        owner = np.maximum(trains, tests)[movable.of]
        return dict(zip(names, rows_of(owner, len(names)), strict=True))

    def reserved(self, samples: Samples, seed: int) -> np.ndarray | None:
        movable, _, trains, _ = self._drawn(samples, seed)
        result: np.ndarray | None = (trains < 0)[movable.of]
        return result

    def _drawn(self, samples: Samples, seed: int) -> tuple[Units, list[str], np.ndarray, np.ndarray]:
        """Units, names of the sites, and for each unit the site that trains on it and the one that tests on
        it, or -1."""
        if samples.task != "single":
            raise PartitionError(
                "partition.kind 'limited' is for single-label data; use kind 'iid' with partition.missing"
            )
        if len(samples) == 0:
            raise PartitionError("partition: the data has no rows; check [data]")
        sources, code = np.array(["site"]), np.zeros(len(samples), dtype=np.int64)
        if samples.site is not None:
            sources, code = np.unique(filled(samples, samples.site, "site", "limited"), return_inverse=True)
        movable = units(samples, np.arange(len(samples)))
        source = majority(code, movable.of)
        names: list[str] = []
        trains, tests = np.full(len(movable), -1), np.full(len(movable), -1)
        for index, name in enumerate(sources.tolist()):
            members = np.flatnonzero(source == index)
            rng = numpy_generator(seed, "partition", name)
            sizes, strata = movable.size[members], movable.stratum[members]
            owner = self._training(sizes, strata, samples.classes, name, rng)
            trains[members] = np.where(owner < 0, -1, len(names) + owner)
            rest = self._testing(movable.size[members], movable.stratum[members], owner, rng)
            tests[members] = np.where(rest < 0, -1, len(names) + rest)
            names += list(named(owner, self.sites, name))
        return movable, names, trains, tests

    def _training(
        self,
        size: np.ndarray,
        stratum: np.ndarray,
        classes: tuple[str, ...],
        source: str,
        rng: np.random.Generator,
    ) -> np.ndarray:
        """The site that trains on each unit of one source, or -1. A class is drawn only while enough of it is
        left."""
        owner = np.full(len(size), -1)
        fewest, most = self.rows
        for site in range(self.sites):
            free = owner < 0
            left = np.bincount(stratum[free], weights=size[free], minlength=len(classes)).astype(np.int64)
            open_classes = np.flatnonzero(left > fewest)  # one more, so that every class is also tested
            count = int(rng.integers(self.classes[0], self.classes[1] + 1))
            if len(open_classes) < count:
                raise PartitionError(
                    f"partition.kind 'limited': '{source}' has {len(open_classes)} classes with more than "
                    f"{fewest} rows left for site {site + 1} of {self.sites}, which wants {count}; use fewer "
                    "sites, classes or rows"
                )
            for label in rng.permutation(open_classes)[:count]:
                wanted = int(rng.integers(fewest, min(most, left[label] - 1) + 1))
                order = rng.permutation(np.flatnonzero((owner < 0) & (stratum == label)))
                taken = filling(size, order, wanted)
                if size[taken].sum() < fewest:
                    raise PartitionError(
                        f"partition.kind 'limited': no whole groups of class '{classes[label]}' in "
                        f"'{source}' have {fewest} to {wanted} rows; ask for a wider range of rows"
                    )
                owner[taken] = site
        return owner

    def _testing(
        self, size: np.ndarray, stratum: np.ndarray, owner: np.ndarray, rng: np.random.Generator
    ) -> np.ndarray:
        """The site that tests on each other unit of one source: dealt to those that train on its class, or
        else to all."""
        tests = np.full(len(size), -1)
        for label in np.unique(stratum[owner < 0]):
            members = np.flatnonzero((owner < 0) & (stratum == label))
            trained = np.unique(owner[(owner >= 0) & (stratum == label)])
            hands = trained if len(trained) else np.arange(self.sites)
            tests[members] = hands[deal(size[members], len(hands), rng)]
        return tests
