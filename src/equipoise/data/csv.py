"""`kind = "csv"`: a table with one row per image, and the images in a folder or a zip file."""

from __future__ import annotations

import csv
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Literal

from pydantic import model_validator

from equipoise.data.files import Files, find, open_files
from equipoise.data.images import decode_files
from equipoise.data.options import SPLITS, DataOptions, Progress
from equipoise.data.rows import Bad, Row, samples
from equipoise.data.samples import Samples
from equipoise.errors import DataError
from equipoise.names import unknown


class CsvData(DataOptions):
    """Images listed in a CSV file."""

    kind: Literal["csv"] = "csv"
    path: str
    """The CSV file, with a header row."""
    images: str | None = None
    """The folder or zip file that holds the images; by default the folder of the CSV file."""
    file: str = "file"
    """Column with the image's name inside `images`; the extension may be left out."""
    label: str | None = None
    """Column with the class."""
    labels: tuple[str, ...] | None = None
    """Several columns of 0 and 1, one per class: a multi-label task."""
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
        table = list(self._table(path))
        classes = self._classes(table)
        bad = [Bad(number, f"row {number}: {fields}") for number, fields in table if isinstance(fields, str)]
        rows: list[Row] = []
        found: list[tuple[str, str]] = []
        places: dict[str, int] = {}
        with open_files(images) as files:
            for number, fields in table:
                if isinstance(fields, str):
                    continue
                try:
                    row, image = self._row(number, fields, classes, files, images.name)
                    if row.id in places:
                        raise ValueError(f"id '{row.id}' is also in row {places[row.id]}")
                except ValueError as error:
                    bad.append(Bad(number, f"row {number}: {error}"))
                    continue
                places[row.id] = number
                rows.append(row)
                found.append(image)
            pixels = decode_files(files, found, self, cache, progress)
        task: Literal["single", "multi"] = "multi" if self.labels or self.label_separator else "single"
        return samples(str(path), rows, bad, pixels, classes, task, self.bad_rows)

    def _table(self, path: Path) -> Iterator[tuple[int, dict[str, str] | str]]:
        """(number, fields by column) of every row after the header, which is row 1; a string says what is wrong."""
        try:
            with path.open(newline="", encoding="utf-8-sig") as file:
                reader = csv.reader(file)
                header = [name.strip() for name in next(reader, [])]
                self._check_header(path, header)
                for number, values in enumerate(reader, start=2):
                    if not values:
                        continue
                    if len(values) != len(header):
                        yield number, f"has {len(values)} fields where the header has {len(header)}"
                    else:
                        yield number, dict(zip(header, map(str.strip, values), strict=True))
        except FileNotFoundError as error:
            raise DataError(f"{path} does not exist: correct data.path, relative to the working folder") from error
        except UnicodeDecodeError as error:
            raise DataError(f"{path} is not UTF-8 text: save it again as CSV UTF-8") from error
        except csv.Error as error:
            raise DataError(f"{path} cannot be read as CSV: {error}; save it again as plain CSV") from error
        except OSError as error:
            raise DataError(f"{path} cannot be read: {error.strerror}") from error

    def _check_header(self, path: Path, header: list[str]) -> None:
        """Every column that is named in the config must be there, once."""
        named = [self.file, self.id, self.label, *(self.labels or ()), self.site, self.group, self.split.column]
        for name in (*named, *self.attributes):
            if name is not None and name not in header:
                raise DataError(f"{path}: {unknown('column', name, header)}")
            if name is not None and header.count(name) > 1:
                raise DataError(f"{path}: column '{name}' appears {header.count(name)} times; rename all but one")

    def _classes(self, table: list[tuple[int, dict[str, str] | str]]) -> tuple[str, ...]:
        """The classes in order."""
        fixed = self.labels or self.classes
        if fixed is not None:
            return fixed
        cells = [fields[str(self.label)] for _, fields in table if not isinstance(fields, str)]
        return tuple(sorted({word for cell in cells for word in self._words(cell) if word}))

    def _words(self, cell: str) -> list[str]:
        """The classes named in one cell of the label column."""
        if self.label_separator is None:
            return [cell]
        if cell == self.no_finding:
            return []
        return [word.strip() for word in cell.split(self.label_separator)]

    def _row(
        self, number: int, fields: dict[str, str], classes: tuple[str, ...], files: Files, where: str
    ) -> tuple[Row, tuple[str, str]]:
        """One row and its image as (name, stamp); a ValueError says what is wrong."""
        label = self._label(fields, classes)
        columns: dict[str, Any] = {}
        for name, column in (("site", self.site), ("group", self.group)):
            if column is not None:
                if not fields[column]:
                    raise ValueError(f"column '{column}' is empty")
                columns[name] = fields[column]
        if self.split.column is not None:
            word = fields[self.split.column]
            if word.lower() not in SPLITS:
                raise ValueError(f"'{word}' in column '{self.split.column}' is not train, validation or test")
            columns["split"] = SPLITS[word.lower()]
        name = fields[self.file]
        image = find(files, name)
        if image is None:
            raise ValueError(f"file '{name}' is not in {where}" if name else f"column '{self.file}' is empty")
        id = fields[self.id or self.file]
        if not id:
            raise ValueError(f"column '{self.id}' is empty")
        attributes = {name: fields[name] for name in self.attributes}
        return Row(number, f"row {number}", id, label, attributes=attributes, **columns), image

    def _label(self, fields: dict[str, str], classes: tuple[str, ...]) -> int | list[float]:
        """The class index, or zeros and ones."""
        if self.labels is not None:
            return [_zero_or_one(name, fields[name]) for name in self.labels]
        words = self._words(fields[str(self.label)])
        for word in words:
            if not word:
                raise ValueError("the label is empty")
            if word not in classes:
                raise ValueError(unknown("label", word, classes))
        if self.label_separator is None:
            return classes.index(words[0])
        return [float(name in words) for name in classes]


def _zero_or_one(name: str, text: str) -> float:
    values = {"0": 0.0, "0.0": 0.0, "1": 1.0, "1.0": 1.0}
    if text not in values:
        raise ValueError(f"'{text}' in column '{name}' is neither 0 nor 1")
    return values[text]
