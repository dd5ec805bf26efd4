"""How long training waits for its images, as a share of the training step, measured in one run.

    python benchmarks/pipeline.py [eval weak fca …] [--net efficientnet-lite0] [--size 64] [--images 256]
    [--rounds 2]

FedAvg at two sites on the serial engine, one thread, batches of 32. Waiting is all that comes before a step:
reading the batch from the cache of uint8 images and making the view of it; the step is forward, loss,
backward and optimiser. Both are timed batch by batch in the same loop, so that a busy machine slows both, and
given as medians; the first round warms up. The images are the first rows of HAM10000 in ../shared/data where
they are at hand, and made-up ones where they are not.
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
import time
from pathlib import Path
from typing import Any

import torch

from engine import engine_rounds
from equipoise.config import Config, resolve
from equipoise.running import one_thread
from equipoise.site import Loc
from equipoise.site.batches import Batch, Rows

HAM = Path(__file__).resolve().parents[2] / "shared" / "data" / "ham10000"
VIEWS = ("eval", "weak", "fca", "fedmas", "fedsdc-skin")
LIMIT = 0.05


class Clock:
    """Times of the batches and steps inside `Loc.fit`."""

    def __init__(self) -> None:
        self.waits: list[float] = []
        self.steps: list[float] = []
        self.fit, self.take = Loc.fit, Rows.take
        self.end: float | None = None
        """when the last batch was ready; None outside of training"""

    def __enter__(self) -> Clock:
        clock = self

        def take(rows: Rows, *args: Any) -> Batch:
            start = time.perf_counter()
            if clock.end:
                clock.steps.append(start - clock.end)
            batch = clock.take(rows, *args)
            now = time.perf_counter()
            if clock.end is not None:
                clock.waits.append(now - start)
                clock.end = now
            return batch

        def fit(loc: Loc, *args: Any, **options: Any) -> float:
            clock.end = 0.0
            try:
                return clock.fit(loc, *args, **options)
            finally:
                clock.steps.append(time.perf_counter() - (clock.end or 0.0))
                clock.end = None

        Loc.fit, Rows.take = fit, take  # type: ignore[method-assign]
        return self

    def __exit__(self, *_: object) -> None:
        Loc.fit, Rows.take = self.fit, self.take  # type: ignore[method-assign]


def data_of(images: int, size: int, folder: Path) -> dict[str, Any]:
    """The `[data]` of real images, or of made-up ones."""
    if not HAM.is_dir():
        return {"kind": "phantom", "scale": images / 3000, "image_size": size}
    table = folder / "labels.csv"
    rows = (HAM / "labels.csv").read_text().splitlines()
    table.write_text("\n".join(rows[: images + 1]) + "\n")
    return {
        "kind": "csv",
        "path": str(table),
        "images": str(HAM / "images.zip"),
        "label": "label",
        "image_size": size,
    }


def config_of(view: str, net: str, data: dict[str, Any]) -> Config:
    return resolve(
        {
            "data": {**data, "split": {"test": 0.1, "validation": 0.0}},
            "partition": {"kind": "iid", "sites": 2},
            "net": {"name": net},
            "train": {"rounds": 10**6, "optimizer": "sgd", "lr": 0.01, "batch_size": 32, "views": [view]},
            "evaluate": {"every": 10**9},
        }
    )


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("views", nargs="*", default=list(VIEWS))
    parser.add_argument("--net", default="efficientnet-lite0")
    parser.add_argument("--size", type=int, default=64)
    parser.add_argument("--images", type=int, default=256)
    parser.add_argument("--rounds", type=int, default=2)
    given = parser.parse_args()
    with one_thread(), tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        data = data_of(given.images, given.size, folder)
        print(
            f"{given.net} at {given.size} px, batches of 32, {data['kind']} images, torch {torch.__version__}"
        )
        print(f"{'view':14} {'wait, ms':>9} {'step, ms':>9} {'wait ÷ step':>12}")
        shares = []
        for view in given.views:
            with Clock() as clock:
                engine_rounds(config_of(view, given.net, data), folder, given.rounds, {})
            warm = len(clock.waits) // (given.rounds + 1)
            wait, step = (statistics.median(times[warm:]) for times in (clock.waits, clock.steps))
            shares.append(
                statistics.median(a / b for a, b in zip(clock.waits[warm:], clock.steps[warm:], strict=True))
            )
            print(f"{view:14} {1000 * wait:9.1f} {1000 * step:9.1f} {shares[-1]:12.1%}", flush=True)
    print(f"largest share {max(shares):.1%}: {'below' if max(shares) < LIMIT else 'NOT below'} {LIMIT:.0%}")


if __name__ == "__main__":
    main()
