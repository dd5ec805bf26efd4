"""A round with as many participants of ever more registered sites: time and memory should stay level.

    python benchmarks/sites.py [--rounds 5] [--sites 100 1000 10000 100000]

The same images for every number of sites; each site trains on at most three of them, 100 sites take part in
a round, and rounds are evaluated at 100 drawn sites. Each number of sites runs in a process of its own.
Printed: seconds to read and divide the data; seconds until the first question could be asked; the median
round (training, evaluation, checkpoint), by the clock and in seconds of a processor; memory of the process at
its end without mapped files; size of a checkpoint and of what the journal has per round. Ratios are to the
smallest number of sites.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np

from equipoise.config import Config, resolve
from equipoise.run_folder import CHECKPOINTS, JOURNAL, RunFolder
from equipoise.running import make_engine, one_thread, prepare, train
from equipoise.server import Journal
from equipoise.setup import material

SIDE, CLASSES, ASKED = 8, 8, 100
SIZES = {"train": 300_000, "val": 8, "test": 2 * ASKED}


def noise(path: Path) -> Path:
    """A MedMNIST-like file of small random images: three training images for each of 100,000 sites, and
    test images for some."""
    draw = np.random.default_rng(0)
    images = {
        f"{split}_images": draw.integers(0, 256, (n, SIDE, SIDE), np.uint8) for split, n in SIZES.items()
    }
    labels = {
        f"{split}_labels": draw.integers(0, CLASSES, (n, 1)).astype(np.uint8) for split, n in SIZES.items()
    }
    np.savez(path, **images, **labels)
    return path


def config_of(sites: int, rounds: int, folder: Path) -> Config:
    return resolve(
        {
            "data": {"kind": "npz", "path": str(folder / "noise.npz"), "image_size": SIDE, "channels": 1},
            "partition": {"kind": "iid", "sites": sites, "train_size": 3},
            "net": {"name": "small-cnn"},
            "train": {"rounds": rounds, "batch_size": 4, "lr": 0.01, "participation": ASKED / sites},
            "evaluate": {"sites": ASKED, "exact": False},
        }
    )


def one(sites: int, rounds: int, folder: Path) -> dict[str, float]:
    """A run with so many sites, in this process."""
    config = config_of(sites, rounds, folder)
    out = RunFolder(Path(tempfile.mkdtemp(dir=folder)))
    times: list[tuple[float, float]] = []

    def watch(event: str, facts: dict[str, Any]) -> None:
        if event == "round":
            times.append((time.perf_counter(), time.process_time()))

    start = time.perf_counter()
    dataset = material(config)
    divided = time.perf_counter()
    plan = prepare(config, dataset.facts, dataset)
    journal, engine = Journal(out / JOURNAL), make_engine(plan, dataset, out)
    ready = time.perf_counter()
    train(plan, engine, journal, out, watch, None)
    journal.close()
    engine.close()
    clock, processor = np.median(np.diff(times, axis=0), axis=0)
    checkpoint = sorted((out / CHECKPOINTS).glob("round-*"))[-1]
    return {
        "read and divide, s": divided - start,
        "start-up, s": ready - divided,
        "round, s": float(clock),
        "round, processor s": float(processor),
        "memory, MB": anonymous() / 2**20,
        "checkpoint, kB": checkpoint.stat().st_size / 1000,
        "journal a round, kB": (out / JOURNAL).stat().st_size / 1000 / rounds,
    }


def anonymous() -> int:
    """Bytes of this process's memory that belong to no file."""
    status = Path("/proc/self/status").read_text()
    return int(status.partition("RssAnon:")[2].split()[0]) * 1024


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--sites", type=int, nargs="+", default=[100, 1000, 10_000, 100_000])
    parser.add_argument("--in-folder", type=Path, help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.in_folder:
        with one_thread():
            print(json.dumps(one(given.sites[0], given.rounds, given.in_folder)))
        return
    with tempfile.TemporaryDirectory() as folder:
        os.environ["EQUIPOISE_CACHE"] = folder
        noise(Path(folder) / "noise.npz")
        material(config_of(ASKED, 1, Path(folder)))  # decoded once, for all
        first: dict[str, float] | None = None
        for sites in given.sites:
            command = [sys.executable, __file__, "--in-folder", folder]
            command += ["--sites", str(sites), "--rounds", str(given.rounds)]
            found = subprocess.run(command, stdout=subprocess.PIPE, check=True, text=True)
            facts = json.loads(found.stdout.splitlines()[-1])
            first = first or facts
            print(f"{sites:,} sites, {ASKED} asked a round")
            for name, value in facts.items():
                print(f"  {name:24} {value:10.2f}   ({value / first[name]:.2f})", flush=True)


if __name__ == "__main__":
    sys.exit(main())
