"""What masks cost: the time of a masked round ÷ that of a plain one, in one run.

    python benchmarks/secure.py [--nets small-cnn,efficientnet-lite0,resnet18] [--sites 3,10,20] [--turns 3]
                                [--images 256] [--size 64] [--quick]

For each network and number of sites the same run is made twice in every turn, plain and masked, one first in
one turn and the other in the next; each site trains one local epoch over so many generated images. A round is
the time between two commits in the run's own timing, training and evaluation; the first round, in which
caches fill and the sites advertise their keys, is left out. Printed: seconds of a plain round, the ratio as
the median over turns, the bytes a site sends, and whether both runs end with the same model, bit for bit.
`--quick` is one turn with three sites, to see that it works.
"""

from __future__ import annotations

import argparse
import json
import statistics
import tempfile
from pathlib import Path
from typing import Any

import torch

from equipoise.config import Config, resolve
from equipoise.keeping import read_lines
from equipoise.running import run

ROUNDS = 3


def config(net: str, sites: int, images: int, size: int, secure: bool) -> Config:
    """A run of a few rounds whose sites have about so many training images each."""
    total = images * sites * 10 / 7  # seven in ten images are for training
    table: dict[str, dict[str, Any]] = {
        "data": {"kind": "phantom", "scale": total / phantom_images(), "image_size": size},
        "partition": {"kind": "iid", "sites": sites},
        "net": {"name": net},
        "method": {"name": "fedavg"},
        "train": {"rounds": ROUNDS, "epochs": 1, "batch_size": 32},
        "engine": {"device": "cpu"},
        "evaluate": {"exact": False, "per_site": False, "every": ROUNDS},
        "exchange": {"secure": secure},
    }
    return resolve(table)


def phantom_images() -> float:
    """How many images generated data has at scale 1."""
    from equipoise.setup import material

    sample = 0.01
    found = material(resolve({"data": {"kind": "phantom", "scale": sample, "image_size": 16}}))
    return len(found.samples) / sample


def measure(plan: Config) -> tuple[float, int, str]:
    """Seconds of a round, the bytes a site sends in it, and the final model's hash."""
    with tempfile.TemporaryDirectory() as folder:
        result = run(plan, Path(folder))
        times = [line["train"] for line in read_lines(Path(folder) / "timing.jsonl")[0]]
    row = result.history[-1]
    return statistics.median(times[1:]), row["bytes_up"] // len(row["sites"]), result.state_hash


def compare(net: str, sites: int, given: argparse.Namespace) -> dict[str, Any]:
    """One line of the table."""
    ratios, seconds, sent, same = list[float](), list[float](), 0, True
    plans = [config(net, sites, given.images, given.size, secure) for secure in (False, True)]
    for turn in range(given.turns):
        found = {i: measure(plans[i]) for i in ((0, 1) if turn % 2 == 0 else (1, 0))}
        ratios.append(found[1][0] / found[0][0])
        seconds.append(found[0][0])
        sent, same = found[1][1], same and found[0][2] == found[1][2]
    return {
        "net": net,
        "sites": sites,
        "plain_seconds": round(statistics.median(seconds), 2),
        "ratio": round(statistics.median(ratios), 3),
        "megabytes": round(sent / 1e6, 1),
        "same": same,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--nets", default="small-cnn,efficientnet-lite0,resnet18")
    parser.add_argument("--sites", default="3,10,20")
    parser.add_argument("--turns", type=int, default=3)
    parser.add_argument("--images", type=int, default=256)
    parser.add_argument("--size", type=int, default=64)
    parser.add_argument("--quick", action="store_true")
    given = parser.parse_args()
    if given.quick:
        given.nets, given.sites, given.turns, given.images = "small-cnn", "3", 1, 16
    torch.set_num_threads(1)
    for net in given.nets.split(","):
        for sites in map(int, given.sites.split(",")):
            print(json.dumps(compare(net, sites, given)), flush=True)


if __name__ == "__main__":
    main()
