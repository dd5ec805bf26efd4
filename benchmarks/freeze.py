"""What freezing saves, as ratios measured in one run.

    python benchmarks/freeze.py [--net efficientnet-lite0] [--stage stage5] [--size 64] [--repeats 3]

FedAvg over the same sites and images, one local epoch per round, with the usual weak view: (a) all of the
network trains; (b) it is frozen up to the stage, computed anew in every step; (c) the same with eight
variants of every image kept. Runs of a few rounds are interleaved. Printed: the median round of (b) and (c)
over that of (a), which must be at most 0.6 and 0.25 for EfficientNet-Lite0 at 64 pixels, frozen below its
last two stages; the seconds and bytes that keeping costs once; bytes per round with and without.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np

from equipoise.running import run

CLASSES = 8
MOST = {"frozen": 0.6, "kept": 0.25}
"""largest ratio to the round in which everything trains"""


def images(path: Path, count: int, size: int) -> Path:
    """A MedMNIST-like file of random images."""
    draw, part = np.random.default_rng(0), dict[str, Any]()
    for split, n in (("train", count), ("val", CLASSES), ("test", CLASSES)):
        part[f"{split}_images"] = draw.integers(0, 256, (n, size, size, 3), dtype=np.uint8)
        part[f"{split}_labels"] = (np.arange(n) % CLASSES)[:, None]
    np.savez(path, **part)
    return path


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--net", default="efficientnet-lite0")
    parser.add_argument("--stage", default="stage5")
    parser.add_argument("--size", type=int, default=64)
    parser.add_argument("--sites", type=int, default=4)
    parser.add_argument("--images", type=int, default=256, help="training images of each site")
    parser.add_argument("--rounds", type=int, default=4)
    parser.add_argument("--repeats", type=int, default=3)
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        os.environ["EQUIPOISE_CACHE"] = f"{folder}/cache"
        measure(Path(folder), given)


def measure(folder: Path, given: argparse.Namespace) -> None:
    data = images(folder / "images.npz", given.sites * given.images, given.size)
    kinds: dict[str, dict[str, Any]] = {
        "everything trains": {},
        "frozen": {"freeze": given.stage, "views_kept": 0},
        "kept": {"freeze": given.stage},
    }
    seconds: dict[str, list[float]] = {kind: [] for kind in kinds}
    sent: dict[str, int] = {}
    first = 0.0
    for repeat in range(given.repeats):
        for kind, net in kinds.items():
            table = {
                "data": {"kind": "npz", "path": str(data), "image_size": given.size},
                "partition": {"kind": "iid", "sites": given.sites},
                "net": {"name": given.net, **net},
                "train": {"rounds": given.rounds, "optimizer": "sgd", "lr": 0.01},
                "evaluate": {"every": 10**6},
                "engine": {"device": "cpu"},
            }
            out = folder / f"{kind} {repeat}"
            start = time.perf_counter()
            result = run(table, out)
            lines = [json.loads(line) for line in (out / "timing.jsonl").read_text().splitlines()]
            if kind == "kept" and repeat == 0:
                first = time.perf_counter() - start - given.rounds * lines[-2]["train"]
            # The last round is evaluated; the first waits for the cache.
            seconds[kind] += [line["train"] for line in lines[1:-1]]
            sent[kind] = result.history[0]["bytes_up"] + result.history[0]["bytes_down"]
    whole = statistics.median(seconds["everything trains"])
    for kind, found in seconds.items():
        ratio = statistics.median(found) / whole
        goal = f" (at most {MOST[kind]})" if kind in MOST else ""
        print(f"{kind}: {statistics.median(found):.2f} s a round, {ratio:.2f} of the whole{goal}; ", end="")
        print(f"{sent[kind] / 1e6:.2f} MB exchanged a round")
    size = sum(path.stat().st_size for path in (folder / "cache" / "kept").glob("*.raw"))
    print(f"keeping: about {first:.1f} s and {size / 1e6:.1f} MB, once")


if __name__ == "__main__":
    main()
