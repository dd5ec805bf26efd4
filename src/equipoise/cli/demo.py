"""Four methods on made-up images at six made-up hospitals, with the same budget each."""

from __future__ import annotations

import os
from itertools import count
from pathlib import Path
from typing import Any

from equipoise.cli.progress import watching
from equipoise.config import Config, read, resolve
from equipoise.data.phantom import SITES
from equipoise.errors import EquipoiseError
from equipoise.report import read_run, standing, write_comparison, write_report
from equipoise.running import run

DEFAULT = Path("runs/demo")

BUDGET: dict[str, Any] = {
    "data": {"kind": "phantom", "name": "made-up dermoscopy", "scale": 0.05, "image_size": 32},
    "partition": {"kind": "column"},
    "train": {"rounds": 20, "epochs": 1, "batch_size": 32, "lr": 1e-3},
    "evaluate": {"every": 4},
}
METHODS: dict[str, tuple[str, dict[str, Any]]] = {
    "local": ("Local", {"method": {"name": "local"}}),
    "fedavg": ("FedAvg", {"method": {"name": "fedavg"}}),
    "fedavg-balanced": (
        "FedAvg + balanced softmax",
        {"method": {"name": "fedavg"}, "train": {"objective": "balanced_softmax"}},
    ),
    "fca": ("FCA", {"method": {"name": "fca"}}),
}


def configs(workers: int | None = None) -> dict[str, Config]:
    """The four configs by folder name."""
    wanted = min(workers or os.cpu_count() or 1, len(SITES))
    engine = {"kind": "pool", "workers": wanted} if wanted > 1 else {"kind": "serial"}
    found = {}
    for name, (_, own) in METHODS.items():
        table = {**BUDGET, **own, "train": {**BUDGET["train"], **own.get("train", {})}, "engine": engine}
        found[name] = resolve(table)
    return found


def choose_folder(out: Path | None) -> Path:
    """`out`, or runs/demo, or the first of runs/demo-2, -3, … that is free or holds this very demo."""
    if out is not None:
        return out
    wanted = configs(workers=1)
    for number in count(1):
        folder = DEFAULT if number == 1 else DEFAULT.with_name(f"{DEFAULT.name}-{number}")
        if all(_fits(folder / name / "config.toml", config) for name, config in wanted.items()):
            return folder
    raise AssertionError


def _fits(path: Path, config: Config) -> bool:
    try:
        return not path.exists() or read(path).digest == config.digest
    except EquipoiseError:
        return False  # left by another version, say


def compare(folder: Path, workers: int | None, quiet: bool) -> tuple[list[dict[str, Any]], Path]:
    """Train (or go on with) the four and write the page; the rows of the table and the page."""
    with watching(quiet, runs=len(METHODS)) as watch:
        for name, config in configs(workers).items():
            watch("run", {"name": METHODS[name][0]})
            run(config, folder / name, watch=watch)
            write_report(folder / name)
    runs = [(METHODS[name][0], folder / name) for name in METHODS]
    return [{"method": title, **standing(read_run(place))} for title, place in runs], write_comparison(runs, folder)
