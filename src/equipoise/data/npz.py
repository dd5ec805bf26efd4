"""`kind = "npz"`: the MedMNIST layout, arrays `train_images`, `train_labels`, `val_…` and `test_…` in one
file."""

from __future__ import annotations

import math
import zipfile
from contextlib import ExitStack
from pathlib import Path
from typing import IO, Literal

import numpy as np
from PIL import Image

from equipoise.data.cache import decoded
from equipoise.data.files import open_zip, unbloated
from equipoise.data.grey import MOST_VALUES
from equipoise.data.images import fit
from equipoise.data.options import SPLITS, DataOptions, Progress
from equipoise.data.rows import Bad, Row, samples, used_label
from equipoise.data.samples import Samples
from equipoise.errors import DataError
from equipoise.names import unknown

PARTS = ("train", "val", "test")


class NpzData(DataOptions):
    """Images and labels in one numpy archive."""

    kind: Literal["npz"] = "npz"
    path: str
    """The .npz file; labels [N, 1] are single-label, [N, C] multi-label."""
    classes: tuple[str, ...] | None = None
    """Names of the classes, in the order of their numbers; by default '0', '1', …"""

    def load(self, *, cache: Path, base: Path, progress: Progress | None = None) -> Samples:
        """Read the labels, check them, and bring the images to size; the splits of the file are kept, and an
        empty part counts as none."""
        path = base / Path(self.path).expanduser()
        with open_zip(path, "an .npz file") as archive, ExitStack() as opened:
            parts = [part for part in PARTS if f"{part}_images.npy" in archive.namelist()]
            if not parts:
                inside = ", ".join(name.removesuffix(".npy") for name in archive.namelist()) or "nothing"
                raise DataError(
                    f"{path} has no train_images, val_images or test_images but {inside}: rename arrays"
                )
            parts = [part for part in parts if not _empty(archive, path, part)]
            if not parts:
                raise DataError(f"{path} holds no images: save the arrays again")
            labels = {part: _labels(archive, path, part) for part in parts}
            if len({values.shape[1] for values in labels.values()}) > 1:
                raise DataError(f"{path}: the label arrays differ in number of columns: make them equal")
            single = all(values.shape[1] == 1 for values in labels.values())
            classes = self._classes(path, labels, single)
            rows: list[Row] = []
            bad: list[Bad] = []
            wanted: list[tuple[str, int]] = []
            stacks = {}
            for part in parts:
                info = archive.getinfo(f"{part}_images.npy")
                stacks[part] = _Stack(opened.enter_context(archive.open(info)), info, path, len(labels[part]))
                for i, values in enumerate(labels[part].tolist()):
                    number, place = len(rows) + len(bad), f"{part}_labels[{i}]"
                    wrong = _wrong(values, classes, single)
                    if wrong:
                        bad.append(Bad(number, f"{place}: {wrong}"))
                        continue
                    label = used_label(int(values[0]) if single else values)
                    rows.append(Row(number, place, f"{part}/{i}", label, split=SPLITS[part]))
                    wanted.append((part, i))

            def make(start: int, stop: int) -> list[np.ndarray | str]:
                pictures = (Image.fromarray(stacks[part].row(i)) for part, i in wanted[start:stop])
                look = (self.image_size, self.channels, self.resize, self.look)
                return [fit(picture, *look) for picture in pictures]

            stamps = {part: [stack.info.file_size, stack.info.CRC] for part, stack in stacks.items()}
            recipe = {"stacks": stamps, "rows": wanted, "resize": self.resize, **self.look.recipe}
            shape = (self.image_size, self.image_size, self.channels)
            pixels = decoded(cache, recipe, len(rows), shape, make, progress)
        return samples(str(path), rows, bad, pixels, classes, "single" if single else "multi", self.bad_rows)

    def _classes(self, path: Path, labels: dict[str, np.ndarray], single: bool) -> tuple[str, ...]:
        """Given names, or numbers."""
        width = next(iter(labels.values())).shape[1]
        if self.classes is not None:
            if not single and len(self.classes) != width:
                raise DataError(f"{path} has {width} labels per image: name all of them in data.classes")
            return self.classes
        highest = max(int(values.max(initial=0)) for values in labels.values())
        return tuple(str(i) for i in range(highest + 1 if single else width))


class _Stack:
    """The images of one part, read one after another, so that a file larger than memory can be used."""

    def __init__(self, file: IO[bytes], info: zipfile.ZipInfo, path: Path, count: int) -> None:
        name = info.filename.removesuffix(".npy")
        self.info, self._file = info, file
        shape, by_column, dtype = _head(file, info, path)
        size = " x ".join(map(str, shape))
        if len(shape) == 5 or (len(shape) == 4 and shape[3] not in (1, 3)):
            raise DataError(
                f"{path}: {name} ({size}) holds 3-D volumes and only 2-D images can be used: save slices"
            )
        if len(shape) not in (3, 4) or dtype != np.uint8:
            raise DataError(f"{path}: {name} is {dtype} ({size}): convert to uint8 [N, H, W] or [N, H, W, 3]")
        if by_column:
            raise DataError(f"{path}: {name} is stored by column: save numpy.ascontiguousarray of it")
        if math.prod(shape[1:]) > MOST_VALUES:
            raise DataError(f"{path}: {name} ({size}) holds images too large to be read: save them smaller")
        if shape[0] != count:
            raise DataError(f"{path}: {name} has {shape[0]} images and {count} labels: make them equal")
        self._shape = shape[1:3] if len(shape) == 3 or shape[3] == 1 else shape[1:]
        self._start = self._file.tell()

    def row(self, i: int) -> np.ndarray:
        """Image `i`; cheap when asked in rising order."""
        length = int(np.prod(self._shape))
        self._file.seek(self._start + i * length)
        return np.frombuffer(self._file.read(length), np.uint8).reshape(self._shape)


def _head(file: IO[bytes], info: zipfile.ZipInfo, path: Path) -> tuple[tuple[int, ...], bool, np.dtype]:
    """Shape, order and type of an array, from its first bytes; nothing of it is read before these are known
    to be true."""
    name = info.filename.removesuffix(".npy")
    unbloated(info, f"{path}: {name}")
    try:
        version = np.lib.format.read_magic(file)
        form = np.lib.format
        read = form.read_array_header_1_0 if version == (1, 0) else form.read_array_header_2_0
        shape, by_column, dtype = read(file)
    except (ValueError, OSError) as error:
        raise DataError(f"{path}: {name} is not a numpy array: {error}; save the file again") from error
    if not dtype.hasobject and math.prod(shape) * dtype.itemsize != info.file_size - file.tell():
        raise DataError(f"{path}: {name} does not hold what it says ({dtype} {shape}): save the file again")
    return shape, by_column, dtype


def _empty(archive: zipfile.ZipFile, path: Path, part: str) -> bool:
    """Whether a part has no images and no labels: it counts as one that is not there."""
    names = {f"{part}_images.npy", f"{part}_labels.npy"} & set(archive.namelist())
    for info in map(archive.getinfo, names):
        with archive.open(info) as file:
            shape, _, _ = _head(file, info, path)
        if shape[:1] != (0,):
            return False
    return True


def _labels(archive: zipfile.ZipFile, path: Path, part: str) -> np.ndarray:
    """The labels of one part as [N, columns] of numbers."""
    name = f"{part}_labels"
    if f"{name}.npy" not in archive.namelist():
        arrays = [one.removesuffix(".npy") for one in archive.namelist()]
        raise DataError(f"{path}: {unknown('array', name, arrays)}")
    info = archive.getinfo(f"{name}.npy")
    with archive.open(info) as file:
        shape, by_column, dtype = _head(file, info, path)
        if len(shape) not in (1, 2) or dtype.kind not in "iub":
            raise DataError(f"{path}: {name} is {dtype} {shape}: make it integers [N, 1] or [N, C]")
        try:
            values = np.frombuffer(file.read(), dtype).reshape(shape, order="F" if by_column else "C")
        except (ValueError, OSError) as error:
            raise DataError(f"{path}: {name} cannot be read: {error}; save it again") from error
    return values if values.ndim == 2 else values[:, None]


def _wrong(values: list[int], classes: tuple[str, ...], single: bool) -> str | None:
    """What is wrong with the label of one image, if anything."""
    if not single:
        fine = set(values) <= {0, 1, -1}
        return None if fine else f"{values} holds a value that is neither 0 nor 1, nor -1 for 'not labelled'"
    valid = 0 <= values[0] < len(classes)
    return None if valid else f"label {values[0]} is not a number from 0 to {len(classes) - 1}"
