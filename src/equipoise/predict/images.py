"""Images given on the command line: files, folders, zip files."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from functools import partial
from pathlib import Path

from equipoise.data.dicom import is_dicom
from equipoise.data.files import EXTENSIONS, Files, open_files
from equipoise.errors import DataError

Reader = Callable[[], bytes]


def find_images(paths: Iterable[str | Path]) -> Iterator[tuple[str, Reader]]:
    """Name and reader of every image, in the order given; a name without extension is taken where the file is
    DICOM.

    A path that does not exist is refused before the first image is read.
    """
    places = [Path(path) for path in paths]
    for place in places:
        if not place.exists():
            raise DataError(f"{place} does not exist: correct the path, relative to the working folder")
    for place in places:
        if place.is_file() and place.suffix.lower() != ".zip":
            yield str(place), place.read_bytes
            continue
        with open_files(place) as files:
            names = [name for name in files.names() if _is_image(files, name)]
            if not names:
                raise DataError(
                    f"{place} holds no image: images end in {', '.join(EXTENSIONS)}, or are DICOM files"
                )
            for name in names:
                yield f"{place}/{name}", partial(files.read, name)


def _is_image(files: Files, name: str) -> bool:
    return name.lower().endswith(EXTENSIONS) or is_dicom(files.read(name, 132))
