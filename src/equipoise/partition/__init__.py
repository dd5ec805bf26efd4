"""Who holds what: every row of a data set goes to one site, and at that site into train, validation or test."""

from __future__ import annotations

from equipoise.partition.divide import Holding, divide, table
from equipoise.partition.kinds import KINDS, Column, Dirichlet, Iid, PartitionOptions

__all__ = ["KINDS", "Column", "Dirichlet", "Holding", "Iid", "PartitionOptions", "divide", "table"]
