"""Images decoded once into a uint8 memory map that every process shares through the page cache.

A cache is two files named by a key: `KEY.raw`, the pixels [rows, height, width, channels], and `KEY.json`,
which says how many there are; only both together are a cache, and the pixels get their name last. The key is
the sha256 of a *recipe*: whatever decides the pixels (the files with a stamp that changes when they change,
size, channels, resize policy). While a cache is built it is `KEY.part` with `KEY.progress`, renewed after
every chunk: a build that was killed continues where it stopped. Neither is synced to the disk chunk by chunk,
which would cost as much as a fifth of decoding: a build that continues first compares the pixels with the
digest in the record, and begins again where the two differ. So does every process that opens a finished
cache, once: where pixels are not those that were decoded, it is made anew and says so. A lock lets one
process build while the others wait.

A stored set (`stored`) is the same two files under a name of its own: nothing can make it anew.
"""

from __future__ import annotations

import errno
import fcntl
import hashlib
import json
import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np

from equipoise.data.options import Progress
from equipoise.errors import StorageError
from equipoise.keeping import put, read_json, sealed

CHUNK = 256
"""Images decoded between two records of progress; what a killed build loses at most."""

STEP, CHUNK_BYTES = 32, 2**26
"""Large images come in smaller chunks, a multiple of STEP, so that memory stays flat."""

FORMAT = 1
"""Part of every key: raised when the layout changes, so old caches are not mistaken for new ones."""

STORED = "images"
"""Name and key of the two files of a stored set."""

RESTORE = "restore it from a copy, or store the set again"

Make = Callable[[int, int], Sequence[np.ndarray | str]]
"""make(start, stop): for each entry its pixels, or a sentence saying why there are none."""


@dataclass(frozen=True)
class Decoded:
    """A finished cache: the entries that could be decoded, in order, and the reasons of those that could
    not."""

    images: np.ndarray
    """uint8 [rows, height, width, channels], read-only"""
    digest: str
    """sha256 chained over the chunks of pixels: the same on every machine that decodes the same pixels"""
    broken: dict[int, str]
    """entry → why it could not be decoded; such entries have no row in `images`"""


def decoded(
    folder: Path,
    recipe: object,
    count: int,
    shape: tuple[int, int, int],
    make: Make,
    progress: Progress | None = None,
    text: str = "decoding images",
) -> Decoded:
    """Open the cache of `recipe` in `folder`, building it (or the rest of it) with `make` first where
    needed."""
    key = hashlib.sha256(json.dumps([FORMAT, recipe, count, shape], sort_keys=True).encode()).hexdigest()
    place = folder / key[:32]
    cached = _open(place, key, shape)
    if cached is None:
        with _locked(place.with_suffix(".lock"), progress, count):
            cached = _open(place, key, shape)  # another process may have built it while this one waited
            if cached is None:
                raw = place.with_suffix(".raw")
                again = f"{text} anew: {raw} is damaged" if raw.exists() else text
                _build(place, key, count, shape, make, progress, again)
                cached = _open(place, key, shape)
    if cached is None:
        raise StorageError(
            f"the image cache {place}.raw changed while it was built; check the disk and run again"
        )
    return cached


def write_images(folder: Path, shape: tuple[int, int, int], images: Iterable[np.ndarray]) -> str:
    """Write the images of a stored set as they come, a chunk in memory at a time; the digest of all."""
    place, chunk, rest = folder / STORED, _chunk(shape), iter(images)
    record = _begun(STORED, shape)
    with place.with_suffix(".raw").open("wb") as file:
        while batch := [_checked(image, shape) for image in islice(rest, chunk)]:
            pixels = np.stack(batch).data
            file.write(pixels)
            record = _after(record, len(batch), pixels)
        file.flush()
        os.fsync(file.fileno())
    _write(place.with_suffix(".json"), record, sync=True)
    return str(record["digest"])


def read_images(folder: Path, shape: tuple[int, int, int]) -> Decoded:
    """The images of a stored set; refused where they are not those that were written."""
    images = _open(folder / STORED, STORED, shape)
    if images is None:
        raise StorageError(f"{folder / STORED}.raw is damaged or was changed: {RESTORE}")
    return images


def _open(place: Path, key: str, shape: tuple[int, int, int]) -> Decoded | None:
    """The finished cache, or None when it is absent, damaged or not readable as one."""
    record = _record(place.with_suffix(".json"), key)
    if record is None or not whole(place.with_suffix(".raw"), record):
        return None
    raw = place.with_suffix(".raw")
    rows = record["rows"]
    images: np.ndarray = np.zeros((0, *shape), np.uint8)  # an empty file cannot be mapped
    if rows:
        images = np.memmap(raw, np.uint8, "r", shape=(rows, *shape))
    return Decoded(images, record["digest"], {int(entry): why for entry, why in record["broken"].items()})


def whole(raw: Path, record: dict[str, Any]) -> bool:
    """Whether a file holds the pixels that a finished record speaks of."""
    try:
        stat = raw.stat()
    except OSError:
        return False
    seen = (stat.st_ino, stat.st_size, stat.st_mtime_ns)
    size = record["rows"] * int(np.prod(record["shape"]))
    return stat.st_size == size and _whole(raw, json.dumps(record), seen)


def check_cache(raw: Path) -> None:
    """Refuse a cache whose pixels are not those that were decoded."""
    fix = RESTORE if raw.stem == STORED else "delete it, it is made anew when it is needed"
    try:
        record = read_json(raw.with_suffix(".json"), fix)
        size, shape = raw.stat().st_size, tuple(record["shape"])
        same = record["key"].startswith(raw.stem) and size == record["rows"] * int(np.prod(shape))
        same = same and _digest(raw, record, shape) == record["digest"]
    except (OSError, LookupError):
        same = False
    if not same:
        raise StorageError(f"{raw} is damaged or was changed: {fix}")


@cache
def _whole(raw: Path, record: str, seen: tuple[int, ...]) -> bool:
    """Read every pixel once per process: a flipped bit changes neither the size nor the date of a file."""
    content = json.loads(record)
    result: bool = _digest(raw, content, tuple(content["shape"])) == content["digest"]
    return result


def _chunk(shape: tuple[int, ...]) -> int:
    """How many images are decoded between two records."""
    return max(STEP, min(CHUNK, CHUNK_BYTES // int(np.prod(shape)) // STEP * STEP))


def _begun(key: str, shape: tuple[int, ...]) -> dict[str, Any]:
    """The record of no entries yet."""
    return {"key": key, "shape": list(shape), "done": 0, "rows": 0, "digest": _first(shape), "broken": {}}


def _after(
    record: Mapping[str, Any], entries: int, pixels: memoryview, broken: Mapping[str, str] | None = None
) -> dict[str, Any]:
    """The record after a chunk of so many entries, of which some may be broken."""
    return {
        "key": record["key"],
        "shape": record["shape"],
        "done": record["done"] + entries,
        "rows": record["rows"] + len(pixels),
        "digest": _next(record["digest"], pixels),
        "broken": record["broken"] | (broken or {}),
    }


def _build(
    place: Path,
    key: str,
    count: int,
    shape: tuple[int, int, int],
    make: Make,
    progress: Progress | None,
    text: str,
) -> None:
    """Decode chunk by chunk, from where an earlier build stood, and give the result its final name."""
    part, state = place.with_suffix(".part"), place.with_suffix(".progress")
    row_bytes, chunk = int(np.prod(shape)), _chunk(shape)
    record = _record(state, key)
    if record is None or _digest(part, record, shape) != record["digest"]:
        record = _begun(key, shape)
    with _writing(place, record, count), part.open("ab") as file:
        file.truncate(record["rows"] * row_bytes)  # what came after the last record may be half a chunk
    block = np.empty((chunk, *shape), np.uint8)
    while record["done"] < count:
        if progress is not None:
            progress(text, record["done"], count)
        start, stop = record["done"], min(record["done"] + chunk, count)
        made = make(start, stop)
        images = [image for image in made if not isinstance(image, str)]
        for row, image in enumerate(images):
            block[row] = _checked(image, shape)
        pixels = block[: len(images)].data
        broken = {str(start + i): why for i, why in enumerate(made) if isinstance(why, str)}
        after = _after(record, stop - start, pixels, broken)
        with _writing(place, record, count):
            with part.open("ab") as file:
                file.write(pixels)
            _write(state, after)
        record = after
    with _writing(place, record, count):
        with part.open("rb+") as file:
            os.fsync(file.fileno())
        _write(place.with_suffix(".json"), record, sync=True)
        part.replace(place.with_suffix(".raw"))
        state.unlink(missing_ok=True)
    if progress is not None:
        progress(text, count, count)


def _checked(image: np.ndarray, shape: tuple[int, int, int]) -> np.ndarray:
    if image.dtype != np.uint8 or image.shape != shape:
        raise TypeError(f"an image is {image.dtype} {image.shape} and not uint8 {shape}")
    return image


def _first(shape: tuple[int, ...]) -> str:
    """The digest of no pixels."""
    return hashlib.sha256(repr(shape).encode()).hexdigest()


def _next(digest: str, pixels: bytes | memoryview) -> str:
    """The digest after one more chunk."""
    chained = hashlib.sha256(digest.encode())
    chained.update(pixels)
    return chained.hexdigest()


def _digest(part: Path, record: dict[str, Any], shape: tuple[int, ...]) -> str | None:
    """The digest of the pixels that a record speaks of, or None when there is no such file."""
    digest, row_bytes, chunk = _first(shape), int(np.prod(shape)), _chunk(shape)
    broken = [int(entry) for entry in record["broken"]]
    try:
        with part.open("rb") as file:
            for start in range(0, record["done"], chunk):
                stop = min(start + chunk, record["done"])
                rows = stop - start - sum(start <= entry < stop for entry in broken)
                digest = _next(digest, file.read(rows * row_bytes))
    except FileNotFoundError:
        return None
    return digest


def _record(path: Path, key: str) -> dict[str, Any] | None:
    """A header or a progress record, or None when it is absent, damaged or of another cache."""
    try:
        record = read_json(path, "it is made anew")
    except (OSError, StorageError):
        return None
    return record if record.get("key") == key else None


def _write(path: Path, record: dict[str, Any], sync: bool = False) -> None:
    """Replace a small JSON file in one step, so that no reader ever sees half of it."""
    put(path, json.dumps(sealed(record)).encode(), sync=sync)


@contextmanager
def _locked(path: Path, progress: Progress | None, count: int) -> Iterator[None]:
    """Hold the build lock; the system lets go of it when the process ends, however it ends."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        file = path.open("a")
    except OSError as error:
        raise _refusal(path.parent, error) from error
    with file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            if progress is not None:
                progress("waiting for another process that decodes the same images", 0, count)
            fcntl.flock(file, fcntl.LOCK_EX)
        yield


@contextmanager
def _writing(place: Path, record: dict[str, Any], count: int) -> Iterator[None]:
    """Turn a failure to write into one sentence that says what is kept."""
    try:
        yield
    except OSError as error:
        done = f"; {record['done']} of {count} images are done and kept"
        raise _refusal(place.parent, error, done) from error


def _refusal(folder: Path, error: OSError, remark: str = "") -> StorageError:
    full = error.errno in (errno.ENOSPC, errno.EDQUOT)
    fix = "free some space" if full else "make it writable"
    return StorageError(
        f"the image cache {folder} cannot be written ({error.strerror}): {fix} or name another folder, "
        f"then run again{remark}"
    )
