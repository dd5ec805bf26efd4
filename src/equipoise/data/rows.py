"""The last steps of every reader: rows are checked, and with their decoded images become Samples."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Literal, NamedTuple, cast

import numpy as np

from equipoise.data.cache import Decoded
from equipoise.data.files import Files, ImageFile, find
from equipoise.data.images import decode_files
from equipoise.data.options import DataOptions, Progress
from equipoise.data.samples import Samples, Task, fingerprint
from equipoise.errors import DataError
from equipoise.names import unknown
from equipoise.text import strange

SHOWN = 20
"""Bad rows named in one error; the rest are counted."""


class Bad(NamedTuple):
    """A row that cannot be used."""

    number: int
    text: str


@dataclass(frozen=True)
class Row:
    """What a source says of one image."""

    number: int
    """order in the source"""
    place: str
    """how a person finds it, e.g. 'row 12'"""
    id: str
    label: int | str | Sequence[float] | Sequence[str]
    """the class's number, or zeros and ones, NaN where there is no label; before `checked` also its name, or
    the names of several"""
    file: str = ""
    """the image's name in its folder or archive; the extension may be left out"""
    site: str | None = None
    split: str | None = None
    group: str | None = None
    slice: int | None = None
    """which slice of a volume"""
    attributes: dict[str, str] = field(default_factory=dict)


def gather(
    source: str,
    rows: Iterable[Row | Bad],
    files: Files,
    where: str,
    classes: tuple[str, ...],
    options: DataOptions,
    cache: Path,
    progress: Progress | None,
) -> Samples:
    """Check rows, decode their images, and put both together; `where` is what a message calls the place of
    the images."""
    good, bad, images = checked(rows, files, where, classes)
    pixels = decode_files(files, images, options, cache, progress)
    task: Task = "multi" if options.multi else "single"
    return samples(source, good, bad, pixels, classes, task, options.bad_rows)


def checked(
    rows: Iterable[Row | Bad], files: Files, where: str, classes: tuple[str, ...]
) -> tuple[list[Row], list[Bad], list[ImageFile]]:
    """Rows with a valid label, an image and an id of their own; those without; and the good ones' images."""
    good: list[Row] = []
    bad: list[Bad] = []
    images: list[ImageFile] = []
    places: dict[str, str] = {}
    for row in rows:
        if isinstance(row, Bad):
            bad.append(row)
            continue
        try:
            label = encoded(row.label, classes)
            for name in (row.id, row.site, row.group, *row.attributes.values()):
                if name is not None and (wrong := strange(name)):
                    raise ValueError(wrong)
            image = find(files, row.file)
            if image is None and "\\" in row.file:
                raise ValueError(f"file '{row.file}' has backslashes: write / between folders")
            if image is None:
                raise ValueError(f"file '{row.file}' is not in {where}")
            if row.id in places:
                raise ValueError(f"id '{row.id}' is also in {places[row.id]}")
        except ValueError as error:
            bad.append(Bad(row.number, f"{row.place}: {error}"))
            continue
        places[row.id] = row.place
        good.append(replace(row, label=label))
        images.append((*image, row.slice))
    return good, bad, images


def encoded(
    label: int | str | Sequence[float] | Sequence[str], classes: tuple[str, ...]
) -> int | list[float]:
    """The number of a class, or zeros and ones for several; a ValueError says what is wrong with a name."""
    if not isinstance(label, int | str) and len(label) and not isinstance(label[0], str):
        return list(cast("Sequence[float]", label))
    names = [label] if isinstance(label, str) else cast("Sequence[str]", label)
    for name in names:
        if not name:
            raise ValueError("the label is empty")
        if name not in classes:
            raise ValueError(unknown("label", name, classes))
    return classes.index(label) if isinstance(label, str) else [float(name in names) for name in classes]


def used_label(stored: int | Sequence[int]) -> int | list[float]:
    """A stored label as it is used: the number of a class, or of several NaN for -1 (not labelled)."""
    if isinstance(stored, int):
        return stored
    return [math.nan if value == -1 else float(value) for value in stored]


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
    for name in classes:
        if wrong := strange(name):
            raise DataError(f"{source}: the class {wrong}: rename it")
    total = len(rows) + len(bad)
    broken = [Bad(rows[i].number, f"{rows[i].place}: {why}") for i, why in pixels.broken.items()]
    skipped = tuple(text for _, text in sorted([*bad, *broken]))
    if skipped and bad_rows == "refuse":
        raise DataError(refusal(source, skipped, total))
    rows = [row for i, row in enumerate(rows) if i not in pixels.broken]
    if skipped and not rows:
        raise DataError(refusal(source, skipped, total))
    if not rows:
        raise DataError(f"{source} holds no samples: check the path")
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
