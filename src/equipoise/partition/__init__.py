"""Who holds what: every row of a data set goes to one site, and at that site into train, validation or
test."""

from __future__ import annotations

from equipoise.partition.by_name import ByName
from equipoise.partition.cells import covered, small_cells, without_small_cells
from equipoise.partition.census import Census, Facts, Held, count, together
from equipoise.partition.divide import Holding, Holdings, divide, table
from equipoise.partition.kinds import Column, Dirichlet, Iid, PartitionOptions
from equipoise.partition.own import OwnDivision
from equipoise.partition.sources import Attribute, Limited

KINDS: dict[str, type[PartitionOptions]] = {"column": Column, "iid": Iid, "dirichlet": Dirichlet}
KINDS |= {"attribute": Attribute, "limited": Limited}
"""Every kind of partition by name."""

__all__ = [
    "KINDS",
    "Attribute",
    "ByName",
    "Census",
    "Column",
    "Dirichlet",
    "Facts",
    "Held",
    "Holding",
    "Holdings",
    "Iid",
    "Limited",
    "OwnDivision",
    "PartitionOptions",
    "count",
    "covered",
    "divide",
    "small_cells",
    "table",
    "together",
    "without_small_cells",
]
