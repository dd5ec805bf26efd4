"""Speed and memory of building the image cache, against decoding the same images with PIL alone, in one run.

    python benchmarks/cache.py [IMAGES.zip] [--size 64] [--images 2000] [--repeats 5]

Passes over the same images take turns: (a) a plain loop that reads, decodes, converts and resizes with PIL and keeps nothing;
(b) the cache, which does the same in its threads and besides checks, hashes, writes and syncs. Printed: images per second of
processor time (what one core does) and of the clock, (b) ÷ (a) as medians over the repeats, and the peak memory of a process that
builds the cache of a quarter of the images and of all: flat when they are equal.
"""

from __future__ import annotations

import argparse
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from io import BytesIO
from pathlib import Path

import numpy as np
from PIL import Image

from equipoise.data import FolderData
from equipoise.data.files import EXTENSIONS, Files, open_files
from equipoise.data.images import decode_files

IMAGES = Path(__file__).resolve().parents[2] / "shared" / "data" / "ham10000" / "images.zip"


def plain(files: Files, found: list[tuple[str, str]], size: int) -> None:
    """Decode with PIL, one image after another."""
    for name, _ in found:
        with Image.open(BytesIO(files.read(name))) as image:
            image.draft("RGB", (2 * size, 2 * size))
            np.asarray(image.convert("RGB").resize((size, size), Image.Resampling.BILINEAR))


def built(files: Files, found: list[tuple[str, str]], size: int) -> None:
    """Build a cache from nothing."""
    with tempfile.TemporaryDirectory() as folder:
        pixels = decode_files(files, found, FolderData(path="", image_size=size), Path(folder), None)
        assert len(pixels.images) == len(found) and not pixels.broken


def rates(work: Callable[[], None], images: int) -> tuple[float, float]:
    """Images per second of processor time and of the clock."""
    clock, processor = time.perf_counter(), time.process_time()
    work()
    return images / (time.process_time() - processor), images / (time.perf_counter() - clock)


def stamped(files: Files, limit: int) -> list[tuple[str, str]]:
    """The first images as (name, stamp)."""
    names = [name for name in files.names() if name.lower().endswith(EXTENSIONS)][:limit]
    return [(name, str(files.stamp(name))) for name in names]


def peak(path: Path, images: int, size: int) -> float:
    """Peak memory, in MB, of a process of its own that builds a cache."""
    command = [sys.executable, __file__, str(path), "--size", str(size), "--images", str(images), "--peak"]
    return float(subprocess.run(command, check=True, capture_output=True, text=True).stdout)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("path", nargs="?", type=Path, default=IMAGES, help="a zip file or folder of images")
    parser.add_argument("--size", type=int, default=64)
    parser.add_argument("--images", type=int, default=2000)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--peak", action="store_true", help=argparse.SUPPRESS)
    given = parser.parse_args()
    with open_files(given.path) as files:
        found = stamped(files, given.images)
        if given.peak:
            built(files, found, given.size)
            print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024)
            return
        ways = {"plain": plain, "cache": built}
        seen: dict[str, list[tuple[float, float]]] = {name: [] for name in ways}
        for _ in range(given.repeats):
            for name, way in ways.items():
                seen[name].append(rates(lambda way=way: way(files, found, given.size), len(found)))  # type: ignore[misc]
    print(f"{len(found)} images of {given.path.parent.name} at {given.size} px, {given.repeats} passes each, taking turns")
    for i, what in enumerate(("second of one core", "second of the clock")):
        middle = {name: statistics.median(rate[i] for rate in got) for name, got in seen.items()}
        ratio = statistics.median(b[i] / a[i] for a, b in zip(seen["plain"], seen["cache"], strict=True))
        print(f"images per {what:20} plain {middle['plain']:8.0f}   cache {middle['cache']:8.0f}   ratio {ratio:.2f}")
    quarter, whole = (peak(given.path, count, given.size) for count in (len(found) // 4, len(found)))
    print(f"peak memory of a build     {len(found) // 4} images {quarter:.0f} MB   {len(found)} images {whole:.0f} MB")


if __name__ == "__main__":
    main()
