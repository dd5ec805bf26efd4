"""Files on disk become `Samples`: images decoded once into a cache, with labels, sites, splits and
attributes."""

from __future__ import annotations

from equipoise.data.csv import CsvData
from equipoise.data.folder import FolderData
from equipoise.data.joined import READERS, JoinedData
from equipoise.data.npz import NpzData
from equipoise.data.options import DataOptions, Progress, Split
from equipoise.data.own import load_samples
from equipoise.data.phantom import PhantomData
from equipoise.data.samples import Samples, Task
from equipoise.data.sets import SETS
from equipoise.data.sites import SitesData
from equipoise.data.stored import StoredData

KINDS: dict[str, type[DataOptions]] = {**READERS, "joined": JoinedData, "sites": SitesData}
"""`data.kind` → its options, which know how to load."""

__all__ = [
    "KINDS",
    "SETS",
    "CsvData",
    "DataOptions",
    "FolderData",
    "JoinedData",
    "NpzData",
    "PhantomData",
    "Progress",
    "Samples",
    "SitesData",
    "Split",
    "StoredData",
    "Task",
    "load_samples",
]
