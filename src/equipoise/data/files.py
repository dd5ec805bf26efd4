"""A folder or a zip file, seen as the same thing: files with names, and stamps that change with their
content."""

from __future__ import annotations

import lzma
import os
import zipfile
import zlib
from collections.abc import Collection, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path, PurePosixPath
from typing import Protocol

from equipoise.errors import DataError

DAMAGED = (zipfile.BadZipFile, zlib.error, lzma.LZMAError, EOFError, NotImplementedError)
"""what a zip archive raises when its content is not what its directory says"""
LARGEST = 2**29
"""bytes of the largest image file that is read"""
PLAUSIBLE = 2**26
"""bytes an archive's entry may unpack to however well it is compressed"""
DENSEST = 200
"""how many times its compressed size a larger entry may unpack to; images shrink to a third at best, zeros to
a thousandth"""

EXTENSIONS = (".jpg", ".jpeg", ".png", ".tif", ".tiff", ".bmp", ".webp", ".gif", ".dcm", ".nii", ".nii.gz")

ImageFile = tuple[str, str, int | None]
"""name and stamp of a file, and which slice of it"""


class Files(Protocol):
    """Where images come from."""

    def names(self) -> list[str]:
        """All files, sorted, with '/' between folders; hidden ones are left out."""

    def stamp(self, name: str) -> str | None:
        """What identifies the content of a file, or None when there is no such file."""

    def read(self, name: str, size: int = -1) -> bytes:
        """The content of a file, or its first `size` bytes."""


class Folder:
    """Files below a folder. The stamp is size and time of change: reading every byte at every start would be
    slow."""

    def __init__(self, root: Path) -> None:
        self.root = root

    def names(self) -> list[str]:
        names = []
        for folder, below, files in os.walk(self.root):
            below[:] = [name for name in below if not _hidden(name)]
            where = Path(folder).relative_to(self.root)
            names += [(where / name).as_posix() for name in files if not _hidden(name)]
        return sorted(names)

    def stamp(self, name: str) -> str | None:
        path = self.root / name
        if not path.is_file():
            return None
        facts = path.stat()
        return f"{facts.st_size} {facts.st_mtime_ns}"

    def read(self, name: str, size: int = -1) -> bytes:
        path = self.root / name
        if size < 0:
            _readable(name, path.stat().st_size)
        with path.open("rb") as file:
            return file.read(size)


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

    def read(self, name: str, size: int = -1) -> bytes:
        entry = self.entries[name]
        unbloated(entry, name)
        if size < 0:
            _readable(name, entry.file_size)
        with self.archive.open(entry) as file:
            return file.read(size)


class Tree:
    """A folder in which some zip archives, given by their place in it, count as folders."""

    def __init__(self, folder: Folder, archives: dict[str, Zip]) -> None:
        self.folder, self.archives = folder, archives

    def names(self) -> list[str]:
        inside = (f"{place}/{name}" for place, archive in self.archives.items() for name in archive.names())
        return sorted([*self.folder.names(), *inside])

    def stamp(self, name: str) -> str | None:
        files, name = self._holder(name)
        return files.stamp(name)

    def read(self, name: str, size: int = -1) -> bytes:
        files, name = self._holder(name)
        return files.read(name, size)

    def _holder(self, name: str) -> tuple[Files, str]:
        for place, archive in self.archives.items():
            if name.startswith(f"{place}/"):
                return archive, name[len(place) + 1 :]
        return self.folder, name


@contextmanager
def open_files(path: Path) -> Iterator[Files]:
    """Open a folder or a zip file."""
    if path.is_dir():
        yield Folder(path)
        return
    with open_zip(path, "a folder or a zip file") as archive:
        yield Zip(archive)


@contextmanager
def open_tree(path: Path, parts: Collection[str]) -> Iterator[Files]:
    """Open a folder or a zip file; zip files in the folder that are named as one of `parts` and not unpacked
    count as folders."""
    with ExitStack() as opened:
        files = opened.enter_context(open_files(path))
        if isinstance(files, Folder):
            names = files.names()
            folders = {parent.as_posix() for name in names for parent in PurePosixPath(name).parents}
            archives = {}
            for name in names:
                place = PurePosixPath(name)
                if (
                    place.suffix.lower() == ".zip"
                    and place.stem in parts
                    and place.with_suffix("").as_posix() not in folders
                ):
                    archives[name] = Zip(opened.enter_context(open_zip(path / name, "a zip file")))
            files = Tree(files, archives)
        yield files


@contextmanager
def open_zip(path: Path, what: str) -> Iterator[zipfile.ZipFile]:
    """Open a zip archive, or say that `path` is not `what` was asked for."""
    try:
        archive = zipfile.ZipFile(path)
    except FileNotFoundError as error:
        raise not_there(path, "the path") from error
    except (zipfile.BadZipFile, OSError) as error:
        raise DataError(f"{path} cannot be opened as {what}: {error}; was it copied whole?") from error
    with archive:
        if any(entry.flag_bits & 1 for entry in archive.infolist()):
            raise DataError(f"{path} is protected by a password: unpack it first")
        try:
            yield archive
        except DAMAGED as error:
            raise DataError(f"{path} is damaged: {error}; check that it was copied whole") from error


def not_there(path: Path, what: str) -> DataError:
    """One sentence about a file that does not exist."""
    if "\\" in str(path):
        return DataError(f"{path} does not exist: write / between folders, not \\")
    return DataError(f"{path} does not exist: correct {what}, relative to the working folder")


def unbloated(entry: zipfile.ZipInfo, where: str) -> None:
    """Refuse an entry that would fill memory or disk from next to nothing."""
    if entry.file_size > max(PLAUSIBLE, DENSEST * entry.compress_size):
        raise DataError(
            f"{where} unpacks from {entry.compress_size:,} to {entry.file_size:,} bytes, which no images do: "
            "make the archive again from the original files"
        )


def _readable(name: str, size: int) -> None:
    if size > LARGEST:
        raise ValueError(f"it has {size:,} bytes and the most for one image is {LARGEST:,}; save it smaller")


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
