"""What the readers of published data sets share: facts about a set, its download on disk, and the way to
Samples.

A set is a table of facts and a function that yields rows. The rows go through the same checks, cache and
errors as those of a hospital's own CSV file.
"""

from __future__ import annotations

import zipfile
import zlib
from abc import abstractmethod
from collections import Counter
from collections.abc import Container, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath
from typing import Any, ClassVar

import numpy as np

from equipoise.data.files import EXTENSIONS, Files, open_tree
from equipoise.data.images import decode, reason
from equipoise.data.options import DataOptions, Progress
from equipoise.data.rows import Bad, Row, checked, column, gather
from equipoise.data.samples import Samples
from equipoise.data.table import read_table
from equipoise.data.warn import doubtful_groups
from equipoise.errors import DataError
from equipoise.names import nearest

PACKED = (".zip", ".tar", ".tar.gz", ".tgz", ".rar", ".7z")


@dataclass(frozen=True)
class Counts:
    """How many images there are: in all, of each class, at each site; what nobody published is left out."""

    images: int | None = None
    classes: Mapping[str, int] = field(default_factory=dict)
    sites: Mapping[str, int] = field(default_factory=dict)


@dataclass(frozen=True)
class Facts:
    """What there is to know of a data set before reading it."""

    title: str
    classes: tuple[str, ...]
    """in the papers' order"""
    counts: Counts
    layout: tuple[str, ...]
    """what the folder must hold: official names, * for any"""
    home: str
    """where it can be had"""
    licence: str
    citation: str
    papers: str
    """which of the reproduced papers use it"""


class SetData(DataOptions):
    """A published data set, read from its official download."""

    facts: ClassVar[Facts]
    parts: ClassVar[tuple[str, ...]] = ()
    """official archives that may stay packed: a zip file of this name counts as a folder"""

    path: str
    """The folder of the official download, or a zip file of it; archives in it that are zip files may stay
    packed."""

    @property
    def classes(self) -> tuple[str, ...]:
        """The classes in order."""
        return self.facts.classes

    def expected(self) -> Counts:
        """The published counts under these options."""
        return self.facts.counts

    @abstractmethod
    def rows(self, download: Download) -> Iterator[Row | Bad]:
        """What the download says of every image."""

    def load(self, *, cache: Path, base: Path, progress: Progress | None = None) -> Samples:
        """Read the official labels, check every row, and decode the images."""
        with self.download(base) as download:
            rows = [*self.rows(download), *download.bad]
            root = download.root
            return gather(str(root), rows, download.files, root.name, self.classes, self, cache, progress)

    @contextmanager
    def download(self, base: Path) -> Iterator[Download]:
        """Open the folder or zip file."""
        root = base / Path(self.path).expanduser()
        with open_tree(root, self.parts) as files:
            yield Download(root, files, self.facts)


class FolderSet(SetData):
    """A set with one folder per class, however deep; other folders are left alone."""

    folders: ClassVar[Mapping[str, str]] = {}
    """folder → class, where the folders are not named as the classes"""

    def rows(self, download: Download) -> Iterator[Row | Bad]:
        folders = self.folders or {name: name for name in self.classes}
        held = {}
        for name in download.images:
            inside = [part for part in name.split("/")[:-1] if part in folders]
            if inside:
                held[name] = inside[-1]
        for folder in folders:
            if folder not in held.values():
                raise download.lacks(folder, "folder", folders)
        for number, (name, folder) in enumerate(held.items()):
            id = f"{folder}/{PurePosixPath(name).name}"
            yield Row(number, name, id, folders[folder], name, attributes=self.attributes(name))

    def attributes(self, name: str) -> dict[str, str]:
        """What the name of a file tells beyond its class."""
        return {}


class Download:
    """An official download as it lies on disk."""

    def __init__(self, root: Path, files: Files, facts: Facts) -> None:
        self.root, self.files, self.facts = root, files, facts
        self.names = files.names()
        self.images = [name for name in self.names if name.lower().endswith(EXTENSIONS)]
        self.bad: list[Bad] = []
        """rows of tables that cannot even be read as rows"""

    def find(self, *names: str) -> str:
        """The place of a file that has one of these names; the least deep where there are several."""
        places = [place for place in self.names if PurePosixPath(place).name in names]
        if not places:
            raise self.lacks(names[0], "file")
        return min(places, key=lambda place: (place.count("/"), place))

    def read(self, place: str, size: int = -1) -> bytes:
        """The content of a file, or its first `size` bytes."""
        try:
            return self.files.read(place, size)
        except (OSError, EOFError, zipfile.BadZipFile, zlib.error) as error:
            raise DataError(f"{self.root / place} cannot be read: {error}; download it again") from error

    def table(
        self, *names: str, columns: Iterable[str], delimiter: str = ","
    ) -> Iterator[tuple[int, str, dict[str, str]]]:
        """(number, place, fields) of every row of an official table, found by any of its names."""
        place = self.find(*names)
        data = self.read(place)
        if b"\t" in data.partition(b"\n")[0]:
            delimiter = "\t"
        for number, fields in read_table(data, f"{self.root / place}", columns, delimiter):
            where = f"{PurePosixPath(place).name} row {number}"
            if isinstance(fields, str):
                self.bad.append(Bad(number, f"{where}: {fields}"))
            else:
                yield number, where, fields

    def below(self, *folders: str) -> dict[str, str]:
        """Name without extension → place of the images below official folders (or zip files of their
        names)."""
        places: dict[str, str] = {}
        for folder in folders:
            inside = [name for name in self.images if {folder, f"{folder}.zip"} & set(name.split("/")[:-1])]
            if not inside:
                raise self.lacks(folder, "folder")
            for name in inside:
                places.setdefault(PurePosixPath(name).stem, name)
        return places

    def lacks(self, name: str, what: str, official: Container[str] = ()) -> DataError:
        """One sentence about an official file or folder that is not there, and what to do; no `official` name
        is a slip for it."""
        entries = {part for place in self.names for part in place.split("/")}
        packed = next((f"{name}{ending}" for ending in PACKED if f"{name}{ending}" in entries), None)
        suffix = PurePosixPath(name).suffix
        others = sorted(one for one in entries - {name} if PurePosixPath(one).suffix == suffix)
        near = nearest(name, [one for one in others if one not in official])
        fix = f"take it from {self.facts.home}"
        if packed is not None:
            fix = f"unpack {packed}"
        elif near is not None:
            fix = f"rename '{near}' if it is that {what}, or {fix}"
        return DataError(f"{self.root} has no {what} '{name}', which {self.facts.title} needs: {fix}")


def check(options: SetData, base: Path) -> dict[str, Any]:
    """Compare a download with what was published: every row and file, the counts, and one decoded image per
    class."""
    with options.download(base) as download:
        rows = [*options.rows(download), *download.bad]
        good, bad, images = checked(rows, download.files, download.root.name, options.classes)
        problems = [text for _, text in sorted(bad)]
        named = [(row, name) for row, (name, _, _) in zip(good, images, strict=True)]
        problems += _undecodable(options, download.files, named)
    held = Counts(
        len(good),
        Counter(name for row in good for name in _names(row, options.classes)),
        Counter(row.site for row in good if row.site is not None),
    )
    wanted = options.expected()
    classes = {name: (held.classes.get(name, 0), wanted.classes.get(name)) for name in options.classes}
    sites = {name: (held.sites.get(name, 0), wanted.sites.get(name)) for name in (*wanted.sites, *held.sites)}
    splits = Counter(row.split for row in good if row.split is not None)
    compared = {"images": (len(good), wanted.images), **_titled("class", classes), **_titled("site", sites)}
    for name, (has, want) in compared.items():
        if want not in (None, has):
            problems.append(f"{name}: {has:,} where {want:,} are published")
    return {
        "name": options.kind,
        "title": options.facts.title,
        "root": str(download.root),
        "ok": not problems,
        "images": {"found": len(good), "published": wanted.images},
        "classes": {name: {"found": has, "published": want} for name, (has, want) in classes.items()},
        "sites": {name: {"found": has, "published": want} for name, (has, want) in sites.items()},
        "splits": dict(sorted(splits.items())),
        "groups": len({row.group for row in good if row.group is not None}),
        "problems": problems,
        "warnings": _doubts(good),
    }


def _doubts(rows: list[Row]) -> list[str]:
    """What may be wrong with the patients of a download."""
    if not rows:
        return []
    group, site = column([row.group for row in rows]), column([row.site for row in rows])
    return doubtful_groups(group, site, np.array([row.id for row in rows]))


def _names(row: Row, classes: tuple[str, ...]) -> list[str]:
    if isinstance(row.label, int):
        return [classes[row.label]]
    return [name for name, value in zip(classes, row.label, strict=True) if value]


def _undecodable(options: SetData, files: Files, rows: list[tuple[Row, str]]) -> list[str]:
    """What is wrong with the first image of each class: enough to notice a missing decoder or a wrong kind of
    file."""
    first: dict[str, tuple[Row, str]] = {}
    for row, file in rows:
        for name in _names(row, options.classes):
            first.setdefault(name, (row, file))
    wrong = []
    for row, file in first.values():
        try:
            decode(files.read(file), options.image_size, options.channels, options.resize, options.look)
        except (MemoryError, DataError):
            raise
        except Exception as error:  # whatever a decoder raises, this image cannot be used
            wrong.append(f"{row.place}: image '{file}' is broken: {reason(error)}")
    return wrong


def _titled(what: str, counts: Mapping[str, tuple[int, int | None]]) -> dict[str, tuple[int, int | None]]:
    return {f"{what} {name}": pair for name, pair in counts.items()}
