"""What every reader ends in: decoded images with their labels, sites, splits, groups and attributes."""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass, field
from typing import Literal

import numpy as np

Task = Literal["single", "multi"]


@dataclass(frozen=True)
class Samples:
    """A data set, decoded once. `images` is usually a read-only memory map that all processes share."""

    images: np.ndarray
    """uint8 [N, height, width, channels]"""
    labels: np.ndarray
    """int64 [N] for a single-label task; float32 [N, C] for a multi-label one: 0, 1, and NaN where an image
    has no label for a class"""
    classes: tuple[str, ...]
    task: Task
    ids: np.ndarray
    """str [N]: one id per row"""
    fingerprint: str
    """sha256 over images, labels and columns: part of the run's identity"""
    site: np.ndarray | None = None
    """str [N], the natural site of each row, where there is one"""
    split: np.ndarray | None = None
    """str [N], 'train' | 'validation' | 'test', where the data set brings its own"""
    group: np.ndarray | None = None
    """str [N]: patient or lesion; a split never cuts a group"""
    attributes: dict[str, np.ndarray] = field(default_factory=dict)
    """further columns (str [N] each) for metrics per attribute"""
    skipped: tuple[str, ...] = ()
    """rows left out by `bad_rows = "skip"`: where each was and what was wrong with it"""

    def __len__(self) -> int:
        return len(self.labels)


def fingerprint(
    pixels: str, labels: np.ndarray, classes: tuple[str, ...], columns: dict[str, np.ndarray | None]
) -> str:
    """sha256 of a data set from the digest of its pixels, its labels and its columns; paths and dates play no
    part."""
    digest = hashlib.sha256(f"{pixels} {labels.dtype.str} {labels.shape} ".encode())
    digest.update(np.ascontiguousarray(labels).tobytes())
    filled = {name: column.tolist() for name, column in columns.items() if column is not None}
    digest.update(json.dumps([classes, filled], sort_keys=True).encode())
    return digest.hexdigest()
