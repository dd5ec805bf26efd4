"""What a site tells of its data when it joins a run, and the rows of the ledger that say so."""

from __future__ import annotations

import json
from collections.abc import Collection
from typing import Annotated, Any

from pydantic import Field, StringConstraints, model_validator

from equipoise.blueprint import Input
from equipoise.data.samples import Task
from equipoise.exchange.ledger import READERS
from equipoise.exchange.reduction import LARGEST
from equipoise.options import Options

JOIN = "join"
"""the name joining has in the ledger and in a policy, beside the questions of a method"""
COUNTS = f"{JOIN}.counts"
SPLITS = ("train", "validation", "test")
MOST = int(LARGEST)
"""images a site may have of a split: sums are exact up to this weight"""
MOST_CLASSES = 1000
Count = Annotated[int, Field(strict=True, ge=0, le=MOST)]
Side = Annotated[int, Field(strict=True, ge=8, le=2048)]
Channels = Annotated[int, Field(strict=True, ge=1, le=4)]
Name = Annotated[str, StringConstraints(strict=True, min_length=1, max_length=200)]

LONGEST = Input(
    image_size=2048,
    channels=3,
    resize="squash",
    crop_keep=0.123456789012345678,
    colour_constancy=99.123456789012345,
    brightness=0.123456789012345678,
    window=((-12345.12345678901, 12345.12345678901),) * 3,
    bits=16,
    mean=(0.123456789,) * 3,
    std=(0.123456789,) * 3,
).model_dump(mode="json")
"""a pre-processing that takes as many letters as any"""


class Card(Options):
    """A site's data in a few numbers."""

    classes: tuple[Name, ...] = Field(min_length=2, max_length=MOST_CLASSES)
    task: Task
    shape: tuple[Side, Side, Channels]
    """height, width, channels of its images"""
    input: Input
    """how it prepares an image for the network"""
    partial: bool
    """whether it labels only some of the classes, or some of its images"""
    images: dict[str, Count]
    """by split: how many images it has"""
    counts: dict[str, tuple[Count | None, ...]]
    """by split: how many images of each class; none where that is not reported"""
    frozen: str | None = Field(None, pattern="^[0-9a-f]{64}$")
    """digest of the network's frozen tensors, where the run freezes any"""
    known: dict[str, tuple[Count | None, ...]] | None = None
    """by split, where labels are missing: how many images are labelled for each class"""
    small_cell: Count = 0
    """it tells nothing of a class of which it has fewer images than this"""
    withheld: dict[str, tuple[Count, ...]] = {}
    """by split: the numbers of those classes, where it tells counts; their images are in no test"""

    @model_validator(mode="after")
    def _adds_up(self) -> Card:
        if len(set(self.classes)) < len(self.classes) or not all(name.isprintable() for name in self.classes):
            raise ValueError("'classes' names one twice, or has signs that cannot be printed")
        if self.partial and self.task == "single":
            raise ValueError("'partial' is for several labels per image")
        if set(self.images) != set(SPLITS):
            raise ValueError("'images' is not by split")
        if set(self.counts) != set(SPLITS) or {len(numbers) for numbers in self.counts.values()} != {
            len(self.classes)
        }:
            raise ValueError("'counts' is not by split and class")
        if self.known is not None and (
            self.task == "single"
            or set(self.known) != set(SPLITS)
            or any(len(numbers) != len(self.classes) for numbers in self.known.values())
        ):
            raise ValueError("'known' is not by split and class of several labels per image")
        if not set(self.withheld) <= set(SPLITS) or any(
            len(set(numbers)) < len(numbers)
            or not all(
                number < len(self.classes) and self.counts[split][number] is None for number in numbers
            )
            for split, numbers in self.withheld.items()
        ):
            raise ValueError("'withheld' names classes that there are not, or that it counts")
        for split in SPLITS:
            for known in () if self.known is None else self.known[split]:
                if known is not None and known > self.images[split]:
                    raise ValueError(f"'known' of its {split} images is more than 'images'")
            counted = [n for n in self.counts[split] if n is not None]
            total = sum(counted) if self.task == "single" else max(counted, default=0)
            short = self.task == "single" and len(counted) == len(self.classes) and total < self.images[split]
            if total > self.images[split] or short:
                raise ValueError(f"'counts' of its {split} images do not add up to 'images'")
        return self


def rows(
    classes: tuple[str, ...],
    shape: tuple[int, ...],
    told: Collection[str],
    reported: Collection[str] = (COUNTS,),
) -> list[dict[str, Any]]:
    """The ledger's rows for joining, in the form of `Ledger.rows`.

    There is one for each name in `told`: what a card says, or several together say. So nothing is sent that
    is not listed. `reported` is as in a policy's `each`; bytes are those of the longest card.
    """
    count, wide = (MOST, f"{len(SPLITS)}×{len(classes)}") if COUNTS in reported else (None, "not reported")
    numbers = list(range(len(classes))) if COUNTS in reported else []
    counts = dict.fromkeys(SPLITS, [count] * len(classes))
    longest: dict[str, tuple[str, Any]] = {
        "classes": (str(len(classes)), classes),
        "task": ("1", "single"),
        "shape": (str(len(shape)), shape),
        "input": (str(len(LONGEST)), LONGEST),
        "partial": ("1", False),
        "images": (str(len(SPLITS)), dict.fromkeys(SPLITS, MOST)),
        "counts": (wide, counts),
        "small_cell": ("1", MOST),
        "withheld": (wide, dict.fromkeys(SPLITS, numbers)),
        "frozen": ("1", "0" * 64),
        "known": (wide, counts),
    }
    fixed = {
        "question": JOIN,
        "from_round": 0,
        "kind": "each",
        "dtype": "json",
        "varies": False,
        "read_by": READERS["each"],
    }
    return [
        fixed | {"leaf": leaf, "shape": size, "bytes": len(json.dumps(value))}
        for leaf, (size, value) in longest.items()
        if leaf in told
    ]
