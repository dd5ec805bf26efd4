"""The last step of every reader: rows, what is wrong with some of them, and decoded images become Samples."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Literal, NamedTuple

import numpy as np

from equipoise.data.cache import Decoded
from equipoise.data.samples import Samples, Task, fingerprint
from equipoise.errors import DataError

SHOWN = 20
"""Bad rows named in one error; the rest are counted."""


class Bad(NamedTuple):
    """A row that cannot be used."""

    number: int
    text: str


@dataclass(frozen=True)
class Row:
    """A row whose label and columns are good; its image may still turn out broken."""

    number: int
    """order in the source"""
    place: str
    """how a person finds it, e.g. 'row 12'"""
    id: str
    label: int | Sequence[float]
    site: str | None = None
    split: str | None = None
    group: str | None = None
    attributes: dict[str, str] = field(default_factory=dict)


def samples(
    source: str,
    rows: Sequence[Row],
    bad: Sequence[Bad],
    pixels: Decoded,
    classes: tuple[str, ...],
    task: Task,
    bad_rows: Literal["refuse", "skip"],
) -> Samples:
    """Refuse or leave out what is bad, and put the rest together."""
    total = len(rows) + len(bad)
    broken = [Bad(rows[i].number, f"{rows[i].place}: {why}") for i, why in pixels.broken.items()]
    skipped = tuple(text for _, text in sorted([*bad, *broken]))
    if skipped and bad_rows == "refuse":
        raise DataError(refusal(source, skipped, total))
    rows = [row for i, row in enumerate(rows) if i not in pixels.broken]
    if not rows:
        raise DataError(refusal(source, skipped, total) if skipped else f"{source} holds no samples: check the path")
    if task == "single" and len(classes) < 2:
        raise DataError(f"{source} holds only one class ('{classes[0]}'): a classifier needs at least two")
    labels = np.array([row.label for row in rows], np.int64 if task == "single" else np.float32)
    columns = {name: column([getattr(row, name) for row in rows]) for name in ("site", "split", "group")}
    ids = np.array([row.id for row in rows])
    attributes = {name: np.array([row.attributes[name] for row in rows]) for name in rows[0].attributes}
    named = {f"attribute {name}": values for name, values in attributes.items()}
    mark = fingerprint(pixels.digest, labels, classes, {"id": ids, **columns, **named})
    return Samples(
        images=pixels.images,
        labels=labels,
        classes=classes,
        task=task,
        ids=ids,
        fingerprint=mark,
        attributes=attributes,
        skipped=skipped,
        **columns,
    )


def column(values: Sequence[str | None]) -> np.ndarray | None:
    """A column of strings, or None where the source has no such column."""
    return None if values[0] is None else np.array(values)


def refusal(source: str, bad: Sequence[str], total: int) -> str:
    """One message for all bad rows: how many, which, and what to do."""
    shown = "".join(f"\n  {text}" for text in bad[:SHOWN])
    rest = f"\n  and {len(bad) - SHOWN} more" if len(bad) > SHOWN else ""
    return (
        f"{source}: {len(bad)} of {total} rows cannot be used; "
        f'correct them, or set bad_rows = "skip" to leave them out:{shown}{rest}'
    )
