"""Small federations that are made up: which sites there are, and the images they hold."""

from __future__ import annotations

import csv
import hashlib
import io
import json
import math
import shutil
import tempfile
import weakref
import zipfile
from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

from equipoise.data.samples import Task
from equipoise.seeds import numpy_generator

CLASSES = 3
SIZE = 16
ORDINARY: dict[str, tuple[int, ...]] = {
    "north": (0, 0, 0, 0, 0, 1, 1, 1, 1, 2, 2, 2),
    "south": (0, 0, 1, 1, 1, 1, 2, 2),
    "west": (0, 0, 1, 1, 2, 2, 2, 2, 2, 2),
}
ODD: dict[str, tuple[int, ...]] = {
    "usual": (0, 0, 0, 1, 1, 1, 2, 2),
    "lacks-a-class": (0, 0, 0, 0, 1, 1, 1, 1),
    "one-image": (1,),
    "one-over": (0, 0, 0, 1, 1, 1, 2, 2, 2),  # a batch of 8 and one more
}
OVERFIT: dict[str, tuple[int, ...]] = {"only": (0, 1, 2, 0) * 16}

STILL: dict[str, Any] = {
    **{"horizontal": False, "vertical": False, "rotation": 0.0, "crop": 1.0, "strong_crop": 1.0, "blur": 0.0},
    **{
        "operations": 0,
        "jitter": (0.0, 0.0, 0.0, 0.0),
        "jitter_share": 0.0,
        "grey_share": 0.0,
        "blur_share": 0.0,
    },
}
"""Views that leave images as they are, for a run that shall learn them by heart."""


def write_federation(
    folder: Path,
    train: Mapping[str, Sequence[int]],
    test: Mapping[str, Sequence[int]] | None = None,
    *,
    task: Task = "single",
    size: int = SIZE,
) -> dict[str, Any]:
    """Write exactly these sites with these labels into a folder; returns the `data` and `partition` tables of
    a config.

    `test` are the rows each site is validated and tested on; without it, its own training images. In a
    multi-label federation the given class is a finding, and every third image has the first finding too.
    """
    names = [f"c{c}" for c in range(CLASSES)]
    rows: list[dict[str, Any]] = []
    folder.mkdir(parents=True)
    with zipfile.ZipFile(folder / "images.zip", "w", zipfile.ZIP_STORED) as archive:
        for site, labels in train.items():
            held_out = labels if test is None else test[site]
            parts = {"train": labels, "validation": held_out, "test": held_out}
            for split, wanted in parts.items():
                for i, y in enumerate(wanted):
                    same = "train" if test is None else split
                    file = f"{site}-{same}-{i}.png"
                    if file not in archive.NameToInfo:
                        archive.writestr(zipfile.ZipInfo(file), _picture(y, size, site, same, i))
                    findings = {y, 0} if i % 3 == 0 else {y}
                    row = {"id": f"{site}-{split}-{i}", "file": file, "site": site, "split": split}
                    row |= {"label": names[y]}
                    rows.append(row | {name: int(c in findings) for c, name in enumerate(names)})
    with open(folder / "rows.csv", "w", newline="") as table:
        writer = csv.DictWriter(table, list(rows[0]))
        writer.writeheader()
        writer.writerows(rows)
    label: dict[str, Any] = {"label": "label", "classes": names} if task == "single" else {"labels": names}
    data = {
        "kind": "csv",
        "path": str(folder / "rows.csv"),
        "images": str(folder / "images.zip"),
        "image_size": size,
    }
    return {
        "data": data | label | {"id": "id", "site": "site", "split": "split"},
        "partition": {"kind": "column"},
    }


def _picture(y: int, size: int, *purpose: object) -> bytes:
    """A PNG: stripes whose direction and colour are the class's, in noise."""
    draw = numpy_generator(0, "testing", *purpose)
    down, across = np.mgrid[0:size, 0:size]
    wave = np.sin((down * math.cos(y) + across * math.sin(y)) * 1.3 + draw.uniform(0, 2 * math.pi))
    pixels = 120 + 40 * wave[..., None] + 25 * np.eye(3)[y % 3] + draw.normal(0, 25, (size, size, 3))
    buffer = io.BytesIO()
    Image.fromarray(pixels.clip(0, 255).astype(np.uint8)).save(buffer, "PNG")
    return buffer.getvalue()


class Home:
    """A temporary folder that is gone when the process ends."""

    def __init__(self) -> None:
        self.folder = Path(tempfile.mkdtemp(prefix="equipoise-check-"))
        weakref.finalize(self, shutil.rmtree, self.folder, ignore_errors=True)


@cache
def home() -> Home:
    """Where this process keeps its federations and their decoded images, for every method it checks."""
    return Home()


def tables(sites: Mapping[str, Sequence[int]], task: Task, size: int = SIZE) -> dict[str, Any]:
    """The data and partition of a federation, written when first asked for."""
    mark = hashlib.sha256(repr((sites, task, size)).encode()).hexdigest()
    stored = home().folder / "data" / mark[:16]
    if not stored.exists():
        test = None
        if sites is not OVERFIT:
            test = {site: tuple(dict.fromkeys(labels)) for site, labels in sites.items()}
        made = write_federation(stored, sites, test, task=task, size=size)
        if task == "multi" and sites is ORDINARY:
            made["partition"]["missing"] = 1  # every site leaves one class unlabelled
        (stored / "tables.json").write_text(json.dumps(made))
    return dict(json.loads((stored / "tables.json").read_text()))
