"""What a site tells of its data when it joins a run, and the rows of the ledger that say so."""

from __future__ import annotations

import json
from collections.abc import Collection
from typing import Annotated, Any

from pydantic import Field

from equipoise.data.samples import Task
from equipoise.exchange.ledger import READERS
from equipoise.options import Options

JOIN = "join"
"""the name joining has in the ledger and in a policy, beside the questions of a method"""
COUNTS = f"{JOIN}.counts"
SPLITS = ("train", "validation", "test")
MOST = 10**9
Count = Annotated[int, Field(ge=0, le=MOST)]


class Card(Options):
    """A site's data in a few numbers."""

    classes: tuple[str, ...] = Field(min_length=2)
    task: Task
    shape: tuple[Count, Count, Count]
    """height, width, channels of its images"""
    partial: bool
    """whether it labels only some of the classes"""
    images: dict[str, Count]
    """by split: how many images it has"""
    counts: dict[str, tuple[Count | None, ...]]
    """by split: how many images of each class; none where that is not told"""


def rows(classes: tuple[str, ...], shape: tuple[int, ...], told: Collection[str] = (COUNTS,)) -> list[dict[str, Any]]:
    """The ledger's rows for joining, in the form of `Ledger.rows`; `told` as in a policy's `each`. Bytes are those of the longest card."""
    count, wide = (MOST, f"{len(SPLITS)}×{len(classes)}") if COUNTS in told else (None, "not told")
    longest: dict[str, tuple[str, Any]] = {
        "classes": (str(len(classes)), classes),
        "task": ("1", "single"),
        "shape": (str(len(shape)), shape),
        "partial": ("1", False),
        "images": (str(len(SPLITS)), dict.fromkeys(SPLITS, MOST)),
        "counts": (wide, dict.fromkeys(SPLITS, [count] * len(classes))),
    }
    fixed = {"question": JOIN, "from_round": 0, "kind": "each", "dtype": "json", "varies": False, "read_by": READERS["each"]}
    return [fixed | {"leaf": leaf, "shape": size, "bytes": len(json.dumps(value))} for leaf, (size, value) in longest.items()]
