"""`kind = "csv"`: a table with one row per image, and the images in a folder or a zip file."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Literal

from pydantic import Field, model_validator

from equipoise.data.files import not_there, open_files
from equipoise.data.options import SPLITS, DataOptions, Progress
from equipoise.data.rows import Bad, Row, gather
from equipoise.data.samples import Samples
from equipoise.data.table import read_table, separator_of
from equipoise.errors import DataError


class CsvData(DataOptions):
    """Images listed in a CSV file."""

    kind: Literal["csv"] = "csv"
    path: str
    """The CSV file, with a header row."""
    separator: str | None = Field(default=None, min_length=1, max_length=1)
    """What stands between the columns; by default a comma, semicolon or tab, as the header row shows."""
    images: str | None = None
    """The folder or zip file that holds the images; by default the folder of the CSV file."""
    file: str = "file"
    """Column with the image's name inside `images`; the extension may be left out."""
    label: str | None = None
    """Column with the class."""
    labels: tuple[str, ...] | None = None
    """Several columns of 0 and 1, one per class: a multi-label task. A cell that is empty or -1 says that the
    image is not labelled for the class."""
    label_separator: str | None = None
    """What stands between the classes when the `label` column holds several, e.g. '|': a multi-label task."""
    no_finding: str = "No Finding"
    """With `label_separator`: the word for 'none of the classes'."""
    classes: tuple[str, ...] | None = None
    """The classes in order; by default those found, sorted."""
    id: str | None = None
    """Column with a unique name of the row; by default the `file` column."""
    site: str | None = None
    """Column with the hospital an image comes from."""
    group: str | None = None
    """Column with the patient or lesion; a split never cuts a group."""
    slice: str | None = None
    """Column with the number of the axial slice of a NIfTI volume, counted from 0 at the feet; by default,
    and where the column is empty, the middle one."""
    attributes: tuple[str, ...] = ()
    """Further columns to report metrics by, e.g. sex."""

    @model_validator(mode="after")
    def _one_kind_of_label(self) -> CsvData:
        if (self.label is None) == (self.labels is None):
            raise ValueError("give either label (one column) or labels (several 0/1 columns)")
        if self.labels is not None and (self.classes is not None or self.label_separator is not None):
            raise ValueError("with labels, the columns are the classes: remove classes and label_separator")
        for name in ("labels", "classes"):
            values = getattr(self, name)
            if values is not None and (not values or len(set(values)) < len(values)):
                raise ValueError(f"{name} must be a list of different names")
        return self

    def load(self, *, cache: Path, base: Path, progress: Progress | None = None) -> Samples:
        """Read the table, check every row, and decode the images."""
        path = base / Path(self.path).expanduser()
        images = path.parent if self.images is None else base / Path(self.images).expanduser()
        data, named = self._read(path), self._named()
        table = list(read_table(data, str(path), named, self.separator or separator_of(data, named)))
        if not table:
            raise DataError(f"{path} holds no samples: it has a header row and no others")
        classes = self._classes(table)
        with open_files(images) as files:
            rows = [self._row(number, fields) for number, fields in table]
            return gather(str(path), rows, files, images.name, classes, self, cache, progress)

    @property
    def declared(self) -> bool:
        return self.labels is not None or self.classes is not None

    @property
    def multi(self) -> bool:
        return self.labels is not None or self.label_separator is not None

    def _read(self, path: Path) -> bytes:
        try:
            return path.read_bytes()
        except FileNotFoundError as error:
            raise not_there(path, "data.path") from error
        except OSError as error:
            raise DataError(f"{path} cannot be read: {error.strerror}") from error

    def _named(self) -> list[str]:
        """The columns that the config names."""
        labels = (self.label, *(self.labels or ()))
        others = (self.site, self.group, self.slice, self.split.column, *self.attributes)
        return [name for name in (self.file, self.id, *labels, *others) if name is not None]

    def _classes(self, table: list[tuple[int, dict[str, str] | str]]) -> tuple[str, ...]:
        """The classes in order."""
        fixed = self.labels or self.classes
        if fixed is not None:
            return fixed
        cells = [fields[str(self.label)] for _, fields in table if not isinstance(fields, str)]
        return tuple(sorted({name for cell in cells for name in self._words(cell) if name}))

    def _words(self, cell: str) -> list[str]:
        """The classes named in one cell of the label column."""
        if self.label_separator is None:
            return [cell]
        if cell == self.no_finding:
            return []
        return [name.strip() for name in cell.split(self.label_separator)]

    def _row(self, number: int, fields: dict[str, str] | str) -> Row | Bad:
        """What one row of the table says."""
        place = f"row {number}"
        if isinstance(fields, str):
            return Bad(number, f"{place}: {fields}")
        needed = [self.file, self.id, self.site, self.group]
        empty = [name for name in needed if name is not None and not fields[name]]
        if empty:
            return Bad(number, f"{place}: column '{empty[0]}' is empty")
        split = None
        if self.split.column is not None:
            value = fields[self.split.column]
            split = SPLITS.get(value.lower())
            if split is None:
                wrong = f"'{value}' in column '{self.split.column}' is not train, validation or test"
                return Bad(number, f"{place}: {wrong}")
        try:
            label, level = self._label(fields), self._slice(fields)
        except ValueError as error:
            return Bad(number, f"{place}: {error}")
        return Row(
            number,
            place,
            id=self._id(fields, level),
            label=label,
            file=fields[self.file],
            site=fields[self.site] if self.site is not None else None,
            split=split,
            group=fields[self.group] if self.group is not None else None,
            slice=level,
            attributes={name: fields[name] for name in self.attributes},
        )

    def _id(self, fields: dict[str, str], level: int | None) -> str:
        """The name of the row: that of its column, or of its file and slice."""
        if self.id is not None:
            return fields[self.id]
        return fields[self.file] if level is None else f"{fields[self.file]}#{level}"

    def _slice(self, fields: dict[str, str]) -> int | None:
        """The number of the slice, if there is one."""
        text = "" if self.slice is None else fields[self.slice]
        if text and not text.isdecimal():
            raise ValueError(f"'{text}' in column '{self.slice}' is no number of a slice, counted from 0")
        return int(text) if text else None

    def _label(self, fields: dict[str, str]) -> str | list[str] | list[float]:
        """The class, those of several that an image has, or what each of several columns says."""
        if self.labels is not None:
            return [cell_value(name, fields[name]) for name in self.labels]
        cell = fields[str(self.label)]
        return cell if self.label_separator is None else self._words(cell)


CELLS = {"0": 0.0, "0.0": 0.0, "1": 1.0, "1.0": 1.0, "": math.nan, "-1": math.nan, "-1.0": math.nan}


def cell_value(name: str, text: str) -> float:
    """What a cell of a column of 0 and 1 says; NaN where the image is not labelled."""
    if text not in CELLS:
        raise ValueError(
            f"'{text}' in column '{name}' is neither 0 nor 1; leave it empty where the image is not labelled"
        )
    return CELLS[text]
