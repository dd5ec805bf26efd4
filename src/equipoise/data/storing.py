"""`equipoise.store` and `equipoise.frame`: images of any kind become a stored set, one after another.

Images are written as they come, so that a set may be larger than memory; what is wrong with one is said with
its row, and nothing is left behind. A finished set gets its name in one step.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Literal, get_args

import numpy as np
from PIL import Image
from torch import Tensor
from torch.utils.data import IterableDataset

from equipoise.data.cache import STEP, write_images
from equipoise.data.csv import cell_value
from equipoise.data.files import Files, find, open_files
from equipoise.data.images import THREADS, fit, opened, reason
from equipoise.data.notes import UNLABELLED, Notes, missing, text_of
from equipoise.data.options import Progress
from equipoise.data.preprocess import Resize
from equipoise.data.rows import samples
from equipoise.data.stored import LABELS, is_set, read_set
from equipoise.data.table import read_table
from equipoise.errors import ConfigError, DataError, StorageError
from equipoise.keeping import write_json
from equipoise.names import unknown

SIZES = (8, 2048)
"""pixels of the smallest and the largest side of a stored image"""
STEPS = 64
"""images between two reports of progress"""

Column = Sequence[Any] | str
"""a value per image, or the key of a dataset's dicts that has it"""
Placed = tuple[str, Image.Image]
"""an image and how a person finds it, e.g. 'row 12'"""


def store(
    dataset: Any,
    folder: str | os.PathLike[str],
    *,
    classes: Sequence[str] | None = None,
    sites: Column | None = None,
    groups: Column | None = None,
    splits: Column | None = None,
    ids: Column | None = None,
    attributes: Mapping[str, Column] | Sequence[str] | str = (),
    image: str = "image",
    label: str = "label",
    image_size: int | None = None,
    channels: Literal[1, 3] = 3,
    resize: Resize = "squash",
    overwrite: bool = False,
    progress: Progress | None = None,
) -> Path:
    """Put a torch Dataset, or any iterable of (image, label) pairs or dicts, into a folder that
    `kind = "stored"` reads; the folder.

    An image is a PIL image, a numpy array [H, W] or [H, W, C] or a torch tensor [C, H, W], of uint8 or of
    fractions from 0 to 1. A label is the number of a class, its name, or zeros and ones for several classes,
    with -1 or NaN where the image is not labelled for one.
    `classes` are by default those of the dataset, if it has some. `sites`, `groups` (patients), `splits`,
    `ids` and `attributes` have a value per image, or name keys of the dataset's dicts, as `image` and `label`
    do.
    """
    named = attributes if isinstance(attributes, Mapping) else {name: name for name in _names(attributes)}
    wanted = {"site": sites, "group": groups, "split": splits, "id": ids}
    wanted |= {f"attribute {name}": values for name, values in named.items()}
    columns = {}
    for name, values in wanted.items():
        if values is not None:
            columns[name] = values if isinstance(values, str) else list(values)
    total = _length(dataset)
    if total is not None:
        _check_lengths(columns, total)
    guessed = classes is None
    notes = Notes(_classes(getattr(dataset, "classes", None) if guessed else classes, guessed))

    def pictures() -> Iterator[Placed]:
        count = 0
        for number, entry in enumerate(_entries(dataset, total)):
            place, count = f"row {number}", number + 1
            with _at(place):
                source, target = _pair(entry, image, label)
                cells = {name: _value(name, values, number, entry) for name, values in columns.items()}
                notes.add(place, target, {"id": number} | cells)
                picture = _picture(source)
            yield place, picture
        _check_lengths(columns, count)

    shape = _Shape(image_size, channels, resize)
    return _keep(Path(folder), pictures(), total, notes, shape, overwrite, progress)


def frame(
    table: Any,
    folder: str | os.PathLike[str],
    *,
    image: str = "path",
    label: str | Sequence[str] = "label",
    site: str | None = None,
    group: str | None = None,
    split: str | None = None,
    id: str | None = None,
    attributes: Sequence[str] | str = (),
    classes: Sequence[str] | None = None,
    root: str | os.PathLike[str] | None = None,
    image_size: int | None = None,
    channels: Literal[1, 3] = 3,
    resize: Resize = "squash",
    overwrite: bool = False,
    progress: Progress | None = None,
) -> Path:
    """Put the images that a table lists into a folder that `kind = "stored"` reads; the folder.

    The table is a DataFrame, a dict of columns, a list of dicts or the path of a CSV file; its column `image`
    has paths in `root`, a folder or a zip file (by default the CSV file's folder, else the working folder).
    Several columns of 0 and 1 in `label` are several labels per image; a cell that is empty, NaN or -1 says
    that the image is not labelled for that class. The other names are columns too.
    """
    if not isinstance(label, str) and classes is not None:
        raise ConfigError("with several columns in label, the columns are the classes: remove classes")
    one = {"site": site, "group": group, "split": split, "id": id or image}
    columns = {name: column for name, column in one.items() if column is not None}
    columns |= {f"attribute {name}": name for name in _names(attributes)}
    targets = _names(label)
    home, rows = _table(table, list(dict.fromkeys([image, *targets, *columns.values()])))
    home = home if root is None else Path(root).expanduser()
    notes = Notes(_classes(classes if isinstance(label, str) else targets), not isinstance(label, str))
    names: list[tuple[str, str]] = []
    with open_files(home) as files:
        for place, fields in rows:
            with _at(place):
                target = fields[label] if isinstance(label, str) else [_flag(n, fields[n]) for n in targets]
                names.append((place, _file(files, text_of(fields[image]), home)))
                notes.add(place, target, {name: fields[column] for name, column in columns.items()})
        pictures = _pictures(files, names, image_size, channels)
        shape = _Shape(image_size, channels, resize)
        return _keep(Path(folder), pictures, len(names), notes, shape, overwrite, progress)


# What a dataset yields --------------------------------------------------------------------------------------


def _length(dataset: Any) -> int | None:
    """How many entries a dataset has, if it knows."""
    try:
        return len(dataset)
    except (TypeError, NotImplementedError):
        return None


def _entries(dataset: Any, total: int | None) -> Iterator[Any]:
    """What a dataset holds, one after another; a failure of its own is reported with the row."""
    indexed = hasattr(dataset, "__getitem__") and not isinstance(dataset, IterableDataset)
    iterable = indexed or hasattr(dataset, "__iter__")
    if isinstance(dataset, Mapping | str | bytes) or not iterable:
        kind = type(dataset).__name__
        raise DataError(f"the dataset is of type {kind}: give a Dataset or (image, label) pairs")
    known = indexed and total is not None
    source = (dataset[i] for i in range(total or 0)) if known else iter(dataset)
    for number in range(sys.maxsize):
        with _at(f"row {number}", "the dataset fails: "):
            entry = next(source, _END)
        if entry is _END:
            return
        yield entry


_END = object()


def _pair(entry: Any, image: str, label: str) -> tuple[Any, Any]:
    """Image and label of one entry."""
    if isinstance(entry, Mapping):
        return _key(entry, image), _key(entry, label)
    if not isinstance(entry, tuple | list) or len(entry) != 2:
        kind = type(entry).__name__
        kind = f"{kind} of {len(entry)}" if isinstance(entry, tuple | list) else kind
        raise ValueError(f"it is a {kind} and not a pair (image, label) or a dict of both")
    return entry[0], entry[1]


def _key(entry: Mapping[str, Any], key: str) -> Any:
    if key not in entry:
        raise ValueError(unknown("key", key, map(str, entry)))
    return entry[key]


def _value(name: str, values: list[Any] | str, number: int, entry: Any) -> Any:
    """One image's value of a column."""
    if isinstance(values, str):
        if not isinstance(entry, Mapping):
            raise ValueError(f"{name} = '{values}' is a key, and this is a pair: give a value per image")
        return _key(entry, values)
    if number >= len(values):
        raise ValueError(f"{name} has only {len(values)} values: give one per image")
    return values[number]


def _names(names: Sequence[str] | str) -> list[str]:
    return [names] if isinstance(names, str) else list(names)


def _check_lengths(columns: Mapping[str, list[Any] | str], count: int) -> None:
    for name, values in columns.items():
        if not isinstance(values, str) and len(values) != count:
            raise DataError(f"{name} has {len(values)} values for {count} images: give one per image")


def _classes(value: Any, guessed: bool = False) -> tuple[str, ...] | None:
    """The names of the classes in order; those that a dataset has by itself are taken if they can be."""
    if value is None:
        return None
    names = () if isinstance(value, str) or not isinstance(value, Iterable) else tuple(value)
    fine = names and len(set(names)) == len(names) and all(isinstance(name, str) and name for name in names)
    if fine:
        return names
    if guessed:
        return None
    raise ConfigError("classes must be a list of different names")


def _picture(image: Any) -> Image.Image:
    """An image of any kind as PIL has it."""
    if isinstance(image, Image.Image):
        return image
    if isinstance(image, Tensor):
        pixels = image.detach().cpu()
        array = (pixels.float() if pixels.is_floating_point() else pixels).numpy()
        form, channels = "[C, H, W]", array.shape[0] if array.ndim == 3 else 1
        array = np.moveaxis(array, 0, -1) if array.ndim == 3 else array
    elif isinstance(image, np.ndarray):
        array = image
        form, channels = "[H, W, C]", array.shape[2] if array.ndim == 3 else 1
    else:
        kind = type(image).__name__
        raise ValueError(f"the image is a {kind} and not a PIL image, a numpy array or a torch tensor")
    if array.ndim not in (2, 3) or channels not in (1, 3):
        size = " x ".join(map(str, image.shape)) or "a single number"
        raise ValueError(f"the image is {size} and not {form} with 1 or 3 channels, or [H, W]")
    if not array.size:
        raise ValueError("the image is empty")
    if array.dtype.kind == "f":
        array = _whole(array)
    elif array.dtype != np.uint8:
        raise ValueError(f"the image is {array.dtype} and neither uint8 nor fractions from 0 to 1")
    return Image.fromarray(np.ascontiguousarray(array[..., 0] if array.shape[2:] == (1,) else array))


def _whole(array: np.ndarray) -> np.ndarray:
    """Fractions from 0 to 1 as whole numbers from 0 to 255."""
    if not np.isfinite(array).all():
        raise ValueError("the image holds pixels that are NaN or infinite")
    low, high = float(array.min()), float(array.max())
    if low < 0 or high > 1:
        raise ValueError(
            f"pixels go from {low:g} to {high:g} and not from 0 to 1: leave out any normalisation, "
            "or give uint8 for 0 to 255"
        )
    return np.rint(array.astype(np.float64) * 255).astype(np.uint8)


# What a table lists -----------------------------------------------------------------------------------------


def _table(table: Any, wanted: Sequence[str]) -> tuple[Path, list[tuple[str, Mapping[str, Any]]]]:
    """Where relative paths start, and (place, fields) of every row."""
    if isinstance(table, str | os.PathLike):
        return _file_table(Path(table).expanduser(), wanted)
    rows: list[Mapping[str, Any]] = []
    if isinstance(table, Mapping) or hasattr(table, "columns"):
        keys = list(table if isinstance(table, Mapping) else table.columns)
        names = [str(key) for key in keys]
        for name in wanted:
            if names.count(name) != 1:
                twice = f"column '{name}' appears {names.count(name)} times; rename all but one"
                raise DataError(f"the table: {twice if name in names else unknown('column', name, names)}")
        columns = {name: list(table[keys[names.index(name)]]) for name in wanted}
        _check_columns(columns)
        rows = [dict(zip(columns, values, strict=True)) for values in zip(*columns.values(), strict=True)]
    elif isinstance(table, Sequence) and all(isinstance(row, Mapping) for row in table):
        rows = list(table)
        for number, row in enumerate(rows):
            with _at(f"row {number}"):
                for name in wanted:
                    _key(row, name)
    else:
        kind = type(table).__name__
        raise DataError(f"the table is of type {kind}: give a DataFrame, dict of columns, dicts or CSV file")
    return Path(), [(f"row {number}", row) for number, row in enumerate(rows)]


def _file_table(path: Path, wanted: Sequence[str]) -> tuple[Path, list[tuple[str, Mapping[str, Any]]]]:
    try:
        data = path.read_bytes()
    except OSError as error:
        raise DataError(f"{path} cannot be read: {error.strerror}; name a CSV file") from error
    rows: list[tuple[str, Mapping[str, Any]]] = []
    for number, fields in read_table(data, str(path), wanted):
        if isinstance(fields, str):
            raise DataError(f"row {number}: {fields}")
        rows.append((f"row {number}", fields))
    return path.parent, rows


def _check_columns(columns: Mapping[str, Sequence[Any]]) -> None:
    first = next(iter(columns))
    for name, values in columns.items():
        if len(values) != len(columns[first]):
            raise DataError(
                f"column '{name}' has {len(values)} values and '{first}' {len(columns[first])}: "
                "make them equal"
            )


def _flag(name: str, value: Any) -> int:
    """What a cell of a column of 0 and 1 says."""
    said = cell_value(name, text_of(value))
    return UNLABELLED if missing(said) else int(said)


def _file(files: Files, name: str, home: Path) -> str:
    """The name of an image among the files."""
    place = find(files, name)
    if place is None:
        raise ValueError(f"file '{name}' is not in {home.absolute()}" if name else "the file's name is empty")
    return place[0]


def _pictures(
    files: Files, names: Sequence[tuple[str, str]], size: int | None, channels: int
) -> Iterator[Placed]:
    """The pictures in files, a few at a time; one that cannot be decoded is refused."""

    def one(placed: tuple[str, str]) -> Placed:
        place, name = placed
        with _at(place, f"image '{name}' is broken: "):
            return place, opened(files.read(name), size, channels)

    with ThreadPoolExecutor(THREADS) as pool:
        for start in range(0, len(names), STEP):
            yield from pool.map(one, names[start : start + STEP])


# Writing ----------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class _Shape:
    """How images are brought to one size."""

    image_size: int | None
    channels: Literal[1, 3]
    resize: Resize

    def __post_init__(self) -> None:
        if self.image_size is not None and not SIZES[0] <= self.image_size <= SIZES[1]:
            raise ConfigError(f"image_size is {self.image_size}: give {SIZES[0]} to {SIZES[1]} pixels")
        if self.channels not in (1, 3):
            raise ConfigError(f"channels is {self.channels}: give 1 for grey or 3 for colour")
        if self.resize not in get_args(Resize):
            raise ConfigError(unknown("resize", str(self.resize), get_args(Resize)))

    def side(self, first: Image.Image) -> int:
        """The side of all images: as asked for, or that of the first."""
        if self.image_size is not None:
            return self.image_size
        width, height = first.size
        if width != height or not SIZES[0] <= width <= SIZES[1]:
            raise ValueError(
                f"the image has {width} x {height} pixels and not a square of {SIZES[0]} to {SIZES[1]}: "
                "give image_size to resize all"
            )
        return width

    def fitted(self, image: Image.Image, side: int) -> np.ndarray:
        """uint8 [side, side, channels]"""
        if self.image_size is None and image.size != (side, side):
            width, height = image.size
            raise ValueError(
                f"the image has {width} x {height} pixels and the first {side} x {side}: "
                "give image_size to resize all"
            )
        return fit(image, side, self.channels, self.resize)


def _keep(
    folder: Path,
    pictures: Iterator[Placed],
    total: int | None,
    notes: Notes,
    shape: _Shape,
    overwrite: bool,
    progress: Progress | None,
) -> Path:
    """Write a set, read it back, and give it its name."""
    report = progress or _plain
    folder = folder.expanduser().absolute()
    with _new(folder, overwrite) as place:
        first = next(pictures, None)
        if first is None:
            raise DataError("there are no images to store: the dataset or table is empty")
        with _at(first[0]):
            side = shape.side(first[1])

        def images() -> Iterator[np.ndarray]:
            done = 0
            for where, picture in chain([first], pictures):
                if done % STEPS == 0:
                    report("storing images", done, total or 0)
                with _at(where):
                    pixels = shape.fitted(picture, side)
                yield pixels
                done += 1
            report("storing images", done, done)

        digest = write_images(place, (side, side, shape.channels), images())
        resize = None if shape.image_size is None else shape.resize
        table = notes.table(pixels=digest, image_size=side, channels=shape.channels, resize=resize)
        write_json(place / LABELS, table.model_dump(mode="json"))
        labelled, stored = read_set(place)
        samples(str(folder), labelled.rows(), [], stored, labelled.classes, labelled.task, "refuse")
    return folder


@contextmanager
def _new(folder: Path, overwrite: bool) -> Iterator[Path]:
    """A folder to write into that becomes `folder` in one step, or nothing when something goes wrong."""
    _check_free(folder, overwrite)
    try:
        folder.parent.mkdir(parents=True, exist_ok=True)
        with TemporaryDirectory(prefix=f".{folder.name}-", dir=folder.parent) as place:
            new, old = Path(place) / "new", Path(place) / "old"
            new.mkdir()
            yield new
            _check_free(folder, overwrite)
            if folder.exists():
                folder.rename(old)
            try:
                new.rename(folder)
            except OSError:
                if old.exists():
                    old.rename(folder)
                raise
    except OSError as error:
        raise StorageError(
            f"{folder} cannot be written: {error.strerror or error}; free disk space or name another folder"
        ) from error


def _check_free(folder: Path, overwrite: bool) -> None:
    if not folder.exists():
        return
    if not overwrite:
        raise StorageError(f"{folder} exists: name another folder, or set overwrite=True")
    if not is_set(folder):
        raise StorageError(f"{folder} exists and is not a stored set: name another folder")


@contextmanager
def _at(place: str, what: str = "") -> Iterator[None]:
    """Turn any failure with one row into a sentence that names it."""
    try:
        yield
    except (MemoryError, DataError):
        raise
    except Exception as error:  # datasets and decoders fail in many ways, and all mean: not this row
        raise DataError(f"{place}: {what}{reason(error)}") from error


def _plain(text: str, done: int, total: int) -> None:
    """Progress on a terminal, in one line."""
    if sys.stderr.isatty():
        end = "\n" if total and done == total else ""
        of = f"/{total:,}" if total else ""
        print(f"\r{text} {done:,}{of}", end=end, file=sys.stderr, flush=True)
