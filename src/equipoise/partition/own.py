"""Partitions of one's own, named in `partition.kind`: a class on PartitionOptions, or a function."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import torch
from pydantic import ConfigDict, Field, PrivateAttr, ValidationInfo, model_validator

from equipoise.data.samples import Samples
from equipoise.errors import EquipoiseError, PartitionError
from equipoise.locate import parts_of
from equipoise.partition.kinds import PartitionOptions
from equipoise.seeds import derive, isolated, numpy_generator
from equipoise.signatures import check_options


class OwnDivision(PartitionOptions):
    """Sites that a function `(labels, sites, generator, **options)` makes; its options stand beside ours."""

    model_config = ConfigDict(extra="allow")
    sites: int = Field(default=8, ge=1)
    """how many sites to make"""

    _function: Callable[..., Any] = PrivateAttr()

    @model_validator(mode="after")
    def _find(self, info: ValidationInfo) -> OwnDivision:
        self._function = parts_of(info, self.kind).find(self.kind, "partition.kind")
        check_options(self._function, self.model_extra or (), (), f"partition.kind '{self.kind}'", first=3)
        return self

    def sites_of(self, samples: Samples, seed: int) -> Any:
        draw = numpy_generator(seed, "partition")
        return self._function(np.array(samples.labels), self.sites, draw, **(self.model_extra or {}))


def own_sites(options: PartitionOptions, samples: Samples, seed: int) -> dict[str, np.ndarray]:
    """The sites that somebody's code makes, checked: no row twice, no site empty, the same every time."""
    where = f"partition.kind '{options.kind}'"

    def sites() -> dict[str, np.ndarray]:
        with isolated(derive(seed, "partition"), torch.device("cpu")):
            return _checked(options.sites_of(samples, seed), len(samples), where)

    try:
        first, second = sites(), sites()
    except EquipoiseError:
        raise
    except Exception as error:
        raise PartitionError(f"{where} fails: {type(error).__name__}: {error}") from error
    if first.keys() != second.keys() or any(not np.array_equal(first[name], second[name]) for name in first):
        raise PartitionError(
            f"{where} divides the same data in two ways for the same seed: let it draw from the generator it "
            "is given"
        )
    held = sum(len(rows) for rows in first.values())
    if options.test_per_class and held < len(samples):
        raise PartitionError(
            f"{where} leaves {len(samples) - held:,} rows out, so partition.test_per_class cannot be kept: "
            "remove it"
        )
    return first


def _checked(answer: Any, count: int, where: str) -> dict[str, np.ndarray]:
    """Site name → sorted rows."""
    if not isinstance(answer, Mapping) or not answer:
        what = "an empty one" if isinstance(answer, Mapping) else f"a {type(answer).__name__}"
        raise PartitionError(f"{where} must give a dict of site names and their rows, and gave {what}")
    owner: dict[int, str] = {}
    sites = {}
    for name, numbers in answer.items():
        if not isinstance(name, str):
            raise PartitionError(f"{where} must name its sites with text, and named one {name!r}")
        rows = np.asarray(numbers)
        if not rows.size:
            raise PartitionError(f"{where} gives site '{name}' no rows: leave it out")
        if rows.ndim != 1 or rows.dtype.kind not in "iu":
            kind = f"{rows.dtype.name} {list(rows.shape)}"
            raise PartitionError(f"{where} must give site '{name}' a list of row numbers, not {kind}")
        for row in rows.tolist():
            if not 0 <= row < count:
                wrong = f"row {row}, and the rows are 0 to {count - 1}"
                raise PartitionError(f"{where} gives site '{name}' {wrong}")
            if row in owner:
                raise PartitionError(f"{where} gives row {row} twice, to '{owner[row]}' and '{name}'")
            owner[row] = name
        sites[name] = np.sort(rows).astype(np.int64)
    return sites
