"""A table of text, row by row."""

from __future__ import annotations

import csv
from collections.abc import Iterable, Iterator
from io import BytesIO, TextIOWrapper

from equipoise.errors import DataError
from equipoise.names import unknown

SEPARATORS = (",", ";", "\t")


def separator_of(data: bytes, columns: Iterable[str]) -> str:
    """The comma, semicolon or tab: what makes most of these columns, then most columns, of the first line."""
    lines = data[: 2**16].decode("utf-8-sig", "replace").splitlines()

    def columns_made(separator: str) -> tuple[int, int]:
        header = [name.strip() for name in next(csv.reader(lines[:1], delimiter=separator), [])]
        return sum(name in header for name in columns), len(header)

    return max(SEPARATORS, key=columns_made)


def read_table(
    data: bytes, source: str, columns: Iterable[str], delimiter: str = ","
) -> Iterator[tuple[int, dict[str, str] | str]]:
    """(number, fields by column) of every row after the header, which is row 1; a string says what is wrong
    with a row.

    `columns` must be in the header, each once.
    """
    if not data.strip():
        raise DataError(f"{source} is empty: copy or save it again, with its header row")
    try:
        reader = csv.reader(TextIOWrapper(BytesIO(data), "utf-8-sig", newline=""), delimiter=delimiter)
        header = [name.strip() for name in next(reader, [])]
        for name in columns:
            if name not in header:
                raise DataError(f"{source}: {unknown('column', name, header)}")
            if header.count(name) > 1:
                raise DataError(
                    f"{source}: column '{name}' appears {header.count(name)} times; rename all but one"
                )
        for number, values in enumerate(reader, start=2):
            if not values:
                continue
            if len(values) != len(header):
                yield number, f"has {len(values)} fields where the header has {len(header)}"
            else:
                yield number, dict(zip(header, map(str.strip, values), strict=True))
    except UnicodeDecodeError as error:
        raise DataError(f"{source} is not UTF-8 text: save it again as CSV UTF-8") from error
    except csv.Error as error:
        raise DataError(f"{source} cannot be read as CSV: {error}; save it again as plain CSV") from error
