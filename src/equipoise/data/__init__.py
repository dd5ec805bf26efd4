"""Files on disk become `Samples`: images decoded once into a cache, with labels, sites, splits and attributes."""

from __future__ import annotations

from equipoise.data.csv import CsvData
from equipoise.data.folder import FolderData
from equipoise.data.npz import NpzData
from equipoise.data.options import DataOptions, Progress, Split
from equipoise.data.phantom import PhantomData
from equipoise.data.samples import Samples, Task

KINDS: dict[str, type[DataOptions]] = {
    "csv": CsvData,
    "folder": FolderData,
    "npz": NpzData,
    "phantom": PhantomData,
}
"""`data.kind` → its options, which know how to load."""

__all__ = [
    "KINDS",
    "CsvData",
    "DataOptions",
    "FolderData",
    "NpzData",
    "PhantomData",
    "Progress",
    "Samples",
    "Split",
    "Task",
]
