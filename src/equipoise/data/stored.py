"""`kind = "stored"`: a set that `equipoise.store` or `equipoise.frame` put into a folder.

The folder holds `images.raw` and `images.json`, the pixels as the image cache has them, and `labels.json`,
all that is known of them. Each has a digest that is checked when the set is read.
"""

from __future__ import annotations

from pathlib import Path
from typing import Literal

import numpy as np
from PIL import Image
from pydantic import Field, ValidationError, model_validator

from equipoise.data.cache import RESTORE, Decoded, decoded, read_images
from equipoise.data.images import fit
from equipoise.data.options import DataOptions, Progress
from equipoise.data.preprocess import Look, Resize
from equipoise.data.rows import Row, samples, used_label
from equipoise.data.samples import Samples, Task
from equipoise.errors import DataError, StorageError
from equipoise.keeping import read_json
from equipoise.options import Options

LABELS = "labels.json"


class Labelled(Options):
    """What a stored set knows of its images, one entry per image in every list."""

    format: Literal[1] = 1
    """raised when the layout changes"""
    pixels: str
    """digest of the images"""
    image_size: int
    channels: Literal[1, 3]
    resize: Resize | None
    """how images became squares when they were stored; none: they were given as they are"""
    task: Task
    classes: tuple[str, ...]
    labels: list[int] | list[list[int]]
    """the number of the class; or zeros and ones, and -1 where the image is not labelled for a class"""
    id: list[str]
    site: list[str] | None = None
    split: list[str] | None = None
    group: list[str] | None = None
    attributes: dict[str, list[str]] = {}

    @model_validator(mode="after")
    def _one_for_each(self) -> Labelled:
        columns = [self.id, self.site, self.split, self.group, *self.attributes.values()]
        if any(column is not None and len(column) != len(self.labels) for column in columns):
            raise ValueError("columns of different lengths")
        count = len(self.classes)
        for one in self.labels:
            several = not isinstance(one, int) and len(one) == count and set(one) <= {-1, 0, 1}
            if not several and not (isinstance(one, int) and 0 <= one < count):
                raise ValueError("labels of no class")
        return self

    @property
    def shape(self) -> tuple[int, int, int]:
        return self.image_size, self.image_size, self.channels

    def rows(self) -> list[Row]:
        """What is known of each image."""

        def cell(column: list[str] | None, i: int) -> str | None:
            return None if column is None else column[i]

        return [
            Row(
                i,
                f"row {i}",
                name,
                used_label(self.labels[i]),
                site=cell(self.site, i),
                split=cell(self.split, i),
                group=cell(self.group, i),
                attributes={key: values[i] for key, values in self.attributes.items()},
            )
            for i, name in enumerate(self.id)
        ]


class StoredData(DataOptions):
    """A set stored from Python with `equipoise.store` or `equipoise.frame`."""

    kind: Literal["stored"] = "stored"
    path: str
    """The folder it was stored in."""
    image_size: int | None = Field(default=None, ge=8, le=2048)  # type: ignore[assignment]
    """Side of the square images the network sees, in pixels; by default as they were stored."""
    channels: Literal[1, 3] | None = None  # type: ignore[assignment]
    """1 for grey, 3 for colour; by default as they were stored."""

    def load(self, *, cache: Path, base: Path, progress: Progress | None = None) -> Samples:
        """Check the digests and map the images; only images of another size or look are copied to the
        cache."""
        path = base / Path(self.path).expanduser()
        labelled, pixels = read_set(path)
        resize = labelled.resize
        if resize not in (None, self.resize):
            raise DataError(
                f"{path} was stored with resize = '{resize}': set data.resize = \"{resize}\", so that images "
                "the model is used on are prepared in the same way"
            )
        images = self._fitted(labelled, pixels, cache, progress)
        return samples(str(path), labelled.rows(), [], images, labelled.classes, labelled.task, self.bad_rows)

    def _fitted(self, labelled: Labelled, pixels: Decoded, cache: Path, progress: Progress | None) -> Decoded:
        """The images with the size and look that are asked for."""
        size, channels = self.image_size or labelled.image_size, self.channels or labelled.channels
        shape = (size, size, channels)
        if shape == labelled.shape and self.look == Look():
            return pixels

        def make(start: int, stop: int) -> list[np.ndarray | str]:
            grey = labelled.channels == 1
            pictures = (Image.fromarray(one[..., 0] if grey else one) for one in pixels.images[start:stop])
            return [fit(picture, size, channels, self.resize, self.look) for picture in pictures]

        recipe = {"stored": pixels.digest, "resize": self.resize, **self.look.recipe}
        return decoded(cache, recipe, len(pixels.images), shape, make, progress)


def is_set(folder: Path) -> bool:
    """Whether a folder looks like a stored set."""
    return (folder / LABELS).is_file()


def read_set(folder: Path) -> tuple[Labelled, Decoded]:
    """All there is in the folder of a stored set, checked against its digests."""
    if not folder.is_dir():
        raise DataError(f"{folder} does not exist: correct data.path, relative to the working folder")
    path = folder / LABELS
    try:
        labelled = Labelled.model_validate(read_json(path, RESTORE))
    except FileNotFoundError:
        raise DataError(f"{folder} is not a stored set: make one with equipoise.store") from None
    except ValidationError:
        raise StorageError(f"{path} is of another version of Equipoise: store the set again") from None
    pixels = read_images(folder, labelled.shape)
    if pixels.digest != labelled.pixels or len(pixels.images) != len(labelled.labels):
        raise StorageError(f"{path} does not belong to the images beside it: {RESTORE}")
    return labelled, pixels
