"""Cost of each method relative to FedAvg: time and bytes per round, measured in one run with rounds interleaved.

    python benchmarks/methods.py [fca fediic …] [--net small-cnn] [--size 32] [--rounds 6]

Serial engine, noise images, the same plain view for all (augmentation is not what is compared), one local epoch, the same
optimiser. Fed-MAS is given with its frozen network's passes and without them: the second column of its line subtracts what
those passes alone take. FedMLP is timed twice, in its warm-up (two views) and after it.
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
import time
from pathlib import Path
from typing import Any

import torch

from engine import federation_of, noise
from equipoise.config import Config, resolve
from equipoise.running import one_thread

ARMS: dict[str, dict[str, Any]] = {
    "fedavg": {},
    "fedprox": {},
    "fca": {},
    "fediic": {"views": 2},
    "fedmas": {"method": {"target": "small-cnn"}},
    "fedsdc": {},
    "fedsdc+": {},
    "fedmlp warm-up": {"views": 2, "multi": True, "method": {"warmup": 1000}},
    "fedmlp": {"views": 2, "multi": True, "method": {"warmup": 0}},
}


class Nobody:
    """An observer that does not evaluate."""

    def wants_tuned(self, round: int) -> bool:
        return False

    def pinned(self) -> frozenset[int]:
        return frozenset()

    def observe(self, *_: Any) -> None:
        pass


class Stepper:
    """One run, a whole round at a time, checkpoint included."""

    def __init__(self, config: Config, folder: Path) -> None:
        self.federation, self.host = federation_of(config, folder, Nobody())
        self.server, self.versions, self.done = self.host.init(), dict[str, str](), 0
        self.bytes = 0

    def step(self) -> float:
        start = time.perf_counter()
        ask = self.federation.exchange(self.done, self.versions, self.federation.sites)
        self.server = self.federation.method.round(self.server, ask)
        self.done, self.versions = self.done + 1, ask.versions
        self.federation._commit(self.server, self.done, self.versions, "", False)
        self.bytes = (ask.bytes_up + ask.bytes_down) // len(self.federation.sites)
        return time.perf_counter() - start

    def target_passes(self) -> float:
        """What the frozen network's forward passes over the training images take in one round."""
        network = self.host.frozen["target"]
        start = time.perf_counter()
        with torch.no_grad():
            for site in self.host.sites.values():
                rows = site.splits["train"]
                for i in range(0, len(rows), 32):
                    position = torch.arange(i, min(i + 32, len(rows)))
                    network(rows.take(position, [self.host.views["eval"]], [torch.Generator()]).x)
        return time.perf_counter() - start


def config_of(arm: str, given: argparse.Namespace, folder: Path) -> Config:
    setting = ARMS[arm]
    path = folder / "noise.npz"
    if not path.exists():
        noise(path, given.sites * given.images, given.size)
    data: dict[str, Any] = {"kind": "npz", "path": str(path), "image_size": given.size}
    if setting.get("multi") or arm == "fedavg multi":
        data = {"kind": "phantom", "task": "multi", "scale": given.sites * given.images / 18_600, "image_size": given.size}
    views = ["eval"] * setting.get("views", 1)
    train = {"rounds": 10**6, "optimizer": "sgd", "lr": 0.01, "batch_size": 32, "views": views, "persist_optimizer": False}
    return resolve(
        {
            "data": data,
            "partition": {"kind": "iid", "sites": given.sites, "missing": 4 if setting.get("multi") else 0},
            "net": {"name": given.net},
            "method": {"name": arm.split()[0], **setting.get("method", {})},
            "train": train,
        }
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("methods", nargs="*", default=list(ARMS)[1:])
    parser.add_argument("--net", default="small-cnn")
    parser.add_argument("--size", type=int, default=32)
    parser.add_argument("--sites", type=int, default=4)
    parser.add_argument("--images", type=int, default=256)
    parser.add_argument("--rounds", type=int, default=6)
    given = parser.parse_args()
    ARMS["fedavg multi"] = {"multi": True}
    print(f"{given.net} at {given.size} px, {given.sites} sites × {given.images} images; round ÷ FedAvg's round, median")
    with one_thread(), tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        for arm in given.methods:
            base = "fedavg multi" if ARMS[arm].get("multi") else "fedavg"
            pair = [Stepper(config_of(a, given, folder), Path(tempfile.mkdtemp(dir=folder))) for a in (base, arm)]
            times = [[stepper.step() for stepper in pair] for _ in range(given.rounds + 1)][1:]
            ratio = statistics.median(own / reference for reference, own in times)
            extra = ""
            if arm == "fedmas":
                passes = statistics.median(pair[1].target_passes() for _ in range(3))
                extra = f"   {statistics.median((own - passes) / reference for reference, own in times):.2f} without its target passes"
            print(f"  {arm:16} {ratio:5.2f} × time   {pair[1].bytes / pair[0].bytes:5.2f} × bytes{extra}", flush=True)


if __name__ == "__main__":
    main()
