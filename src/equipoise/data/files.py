"""A folder or a zip file, seen as the same thing: files with names, and stamps that change with their content."""

from __future__ import annotations

import os
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Protocol

from equipoise.errors import DataError

EXTENSIONS = (".jpg", ".jpeg", ".png", ".tif", ".tiff", ".bmp", ".webp", ".gif")


class Files(Protocol):
    """Where images come from."""

    def names(self) -> list[str]:
        """All files, sorted, with '/' between folders; hidden ones are left out."""

    def stamp(self, name: str) -> str | None:
        """What identifies the content of a file, or None when there is no such file."""

    def read(self, name: str) -> bytes:
        """The content of a file."""


class Folder:
    """Files below a folder. The stamp is size and time of change: reading every byte at every start would be slow."""

    def __init__(self, root: Path) -> None:
        self.root = root

    def names(self) -> list[str]:
        found = []
        for folder, below, files in os.walk(self.root):
            below[:] = [name for name in below if not _hidden(name)]
            where = Path(folder).relative_to(self.root)
            found += [(where / name).as_posix() for name in files if not _hidden(name)]
        return sorted(found)

    def stamp(self, name: str) -> str | None:
        path = self.root / name
        if not path.is_file():
            return None
        facts = path.stat()
        return f"{facts.st_size} {facts.st_mtime_ns}"

    def read(self, name: str) -> bytes:
        return (self.root / name).read_bytes()


class Zip:
    """Files in a zip archive. The stamp is size and checksum, which the archive's own directory holds."""

    def __init__(self, archive: zipfile.ZipFile) -> None:
        self.archive = archive
        self.entries = {entry.filename: entry for entry in archive.infolist() if not entry.is_dir()}

    def names(self) -> list[str]:
        return sorted(name for name in self.entries if not any(_hidden(part) for part in name.split("/")))

    def stamp(self, name: str) -> str | None:
        entry = self.entries.get(name)
        return None if entry is None else f"{entry.file_size} {entry.CRC:08x}"

    def read(self, name: str) -> bytes:
        return self.archive.read(name)


@contextmanager
def open_files(path: Path) -> Iterator[Files]:
    """Open a folder or a zip file."""
    if path.is_dir():
        yield Folder(path)
        return
    with open_zip(path, "a folder or a zip file") as archive:
        yield Zip(archive)


@contextmanager
def open_zip(path: Path, what: str) -> Iterator[zipfile.ZipFile]:
    """Open a zip archive, or say that `path` is not `what` was asked for."""
    try:
        archive = zipfile.ZipFile(path)
    except FileNotFoundError as error:
        raise DataError(f"{path} does not exist: correct the path, relative to the working folder") from error
    except (zipfile.BadZipFile, OSError) as error:
        raise DataError(f"{path} cannot be opened as {what}: {error}; check that it was copied whole") from error
    with archive:
        yield archive


def find(files: Files, name: str) -> tuple[str, str] | None:
    """Name and stamp of a file; a name written without its extension is found too."""
    for candidate in (name, *(name + extension for extension in EXTENSIONS)) if name else ():
        stamp = files.stamp(candidate)
        if stamp is not None:
            return candidate, stamp
    return None


def _hidden(name: str) -> bool:
    """Files that systems leave behind, e.g. .DS_Store and __MACOSX."""
    return name.startswith((".", "__MACOSX"))
