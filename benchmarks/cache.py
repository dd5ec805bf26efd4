"""Speed and memory of building the image cache, against decoding the same images with PIL alone, in one run.

    python benchmarks/cache.py [IMAGES.zip] [--size 64] [--images 1000] [--turns 9]

In each turn both ways go over the same images: (a) a plain loop that reads, decodes, converts and resizes
with PIL and keeps nothing; (b) the cache, which does the same in its threads and besides checks, hashes,
writes and syncs. (a) is first in one turn and (b) in the next, so that a machine that is busy now and then
slows both. Half of the turns are held to one core and count processor time: what a core does. The others have
all cores and count the time of the clock. Printed: images per second, (b) ÷ (a) as medians over the turns
with their middle half, and the peak memory of a process that builds the cache of a quarter of the images and
of all: flat when they are equal.
"""

from __future__ import annotations

import argparse
import os
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from io import BytesIO
from pathlib import Path

import numpy as np
from PIL import Image

from equipoise.data import FolderData
from equipoise.data.files import EXTENSIONS, Files, open_files
from equipoise.data.images import decode_files

IMAGES = Path(__file__).resolve().parents[2] / "shared" / "data" / "ham10000" / "images.zip"
SCRATCH = tempfile.TemporaryDirectory()


def plain(files: Files, found: list[tuple[str, str]], size: int) -> None:
    """Decode with PIL, one image after another."""
    for name, _ in found:
        with Image.open(BytesIO(files.read(name))) as image:
            image.draft("RGB", (2 * size, 2 * size))
            np.asarray(image.convert("RGB").resize((size, size), Image.Resampling.BILINEAR))


def built(files: Files, found: list[tuple[str, str]], size: int) -> None:
    """Build a cache from nothing."""
    folder = Path(
        tempfile.mkdtemp(dir=SCRATCH.name)
    )  # removed at the end: what that costs is no part of a build
    pixels = decode_files(files, found, FolderData(path="", image_size=size), folder, None)
    assert len(pixels.images) == len(found) and not pixels.broken


def rate(work: Callable[[], None], images: int, clock: Callable[[], float]) -> float:
    """Images per second of a clock."""
    start = clock()
    work()
    return images / (clock() - start)


@contextmanager
def held(cores: set[int]) -> Iterator[None]:
    """Keep this process, and the threads it starts, on some cores."""
    before = os.sched_getaffinity(0)
    os.sched_setaffinity(0, cores)
    try:
        yield
    finally:
        os.sched_setaffinity(0, before)


def stamped(files: Files, limit: int) -> list[tuple[str, str]]:
    """The first images as (name, stamp)."""
    names = [name for name in files.names() if name.lower().endswith(EXTENSIONS)][:limit]
    return [(name, str(files.stamp(name))) for name in names]


def peak(path: Path, images: int, size: int) -> float:
    """Peak memory, in MB, of a process of its own that builds a cache."""
    command = [sys.executable, __file__, str(path), "--size", str(size), "--images", str(images), "--peak"]
    return float(subprocess.run(command, check=True, capture_output=True, text=True).stdout)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("path", nargs="?", type=Path, default=IMAGES, help="a zip file or folder of images")
    parser.add_argument("--size", type=int, default=64)
    parser.add_argument("--images", type=int, default=1000)
    parser.add_argument("--turns", type=int, default=9)
    parser.add_argument("--peak", action="store_true", help=argparse.SUPPRESS)
    given = parser.parse_args()
    with open_files(given.path) as files:
        found = stamped(files, given.images)
        if given.peak:
            built(files, found, given.size)
            print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024)
            return
        print(f"{len(found)} images of {given.path.parent.name} at {given.size} px, {given.turns} turns each")
        cores = os.sched_getaffinity(0)
        for what, allowed, clock in (
            ("one core, processor time", {max(cores)}, time.process_time),
            (f"{len(cores)} cores, clock", cores, time.perf_counter),
        ):
            seen: dict[str, list[float]] = {"plain": [], "cache": []}
            with held(allowed):
                for turn in range(given.turns):
                    for name in sorted(seen, reverse=turn % 2 == 0):
                        way = plain if name == "plain" else built
                        seen[name].append(
                            rate(lambda way=way: way(files, found, given.size), len(found), clock)
                        )  # type: ignore[misc]
            middle = {name: statistics.median(got) for name, got in seen.items()}
            low, ratio, high = statistics.quantiles(
                [b / a for a, b in zip(seen["plain"], seen["cache"], strict=True)], n=4
            )
            told = f"ratio {ratio:.2f} ({low:.2f} – {high:.2f})"
            print(
                f"images per second, {what:26} plain {middle['plain']:6.0f}   cache {middle['cache']:6.0f} "
                f"  {told}",
                flush=True,
            )
    quarter, whole = (peak(given.path, count, given.size) for count in (len(found) // 4, len(found)))
    print(
        f"peak memory of a build     {len(found) // 4} images {quarter:.0f} MB   {len(found)} images "
        f"{whole:.0f} MB"
    )


if __name__ == "__main__":
    main()
