"""Two of ten sites attack: balanced accuracy on real blood cells under every way to combine updates.

Four kinds of cells, 300 images each at 16 pixels, ten sites with equal shares, FedAvg for 20 rounds; half of
the images are for training, a tenth for validation, the rest for testing. The learning rate is the one of
three that does best on validation images while nobody attacks; nothing is chosen by test images. Kinds of
cells, their size and the optimiser were tried out before, on other images of the same set: the first 300 of
each kind, which are left out here. Rounds and batch size were set beforehand, for a short computation.
"""

from __future__ import annotations

import csv
import tempfile
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

from equipoise.config import Config, resolve
from equipoise.errors import SiteError
from equipoise.keeping import read_lines
from equipoise.running import run

CELLS = ("eosinophil", "erythroblast", "lymphocyte", "platelet")
TRIED, EACH = 300, 300
"""images of a kind that the setting was tried out on, and that are taken after those"""
HOSTILE = ("site-03", "site-07")
SEEDS, TRIAL_SEED = (0, 1, 2), 1000
RATES = (0.0125, 0.05, 0.2)
RULES: dict[str, dict[str, Any]] = {
    "mean": {},
    "median": {"reduce": "median"},
    "trimmed": {"reduce": "trimmed"},
    "krum": {"reduce": "krum"},
}
KIT = "equipoise.testing.attacks"
NOBODY = "nobody attacks"
ATTACKS: dict[str, dict[str, Any]] = {
    NOBODY: {"name": "fedavg"},
    "sign flip, ×10": {"name": f"{KIT}:SignFlip", "sites": HOSTILE},
    "honest update, ×10": {"name": f"{KIT}:Scale", "sites": HOSTILE},
    "random update, ×10": {"name": f"{KIT}:Noise", "sites": HOSTILE},
    "one class mislabelled, ×10": {"name": f"{KIT}:LabelFlip", "sites": HOSTILE, "factor": 10.0},
    "one class mislabelled": {"name": f"{KIT}:LabelFlip", "sites": HOSTILE},
}
TRAIN = {
    **{"rounds": 20, "epochs": 1, "batch_size": 16, "optimizer": "sgd", "momentum": 0.9},
    **{"schedule": "cosine", "views": ["flip"]},
}


@cache
def accuracy(images: Path, rule: str, attack: str, rate: float, seed: int) -> float | None:
    """Balanced accuracy of the global model on all test images, in points; None where the model was driven
    so far that no site could train it any more, and the run ended."""
    with tempfile.TemporaryDirectory() as folder:
        try:
            result = run(_config(images, Path(folder), rule, attack, rate, seed), Path(folder) / "run")
        except SiteError:
            return None
    return round(100 * float(result.metrics["test"]["generalisation"]["balanced_accuracy"]), 2)


def validated(images: Path, rate: float) -> float:
    """The same of the mean while nobody attacks, on validation images; nobody looks at the test images."""
    with tempfile.TemporaryDirectory() as folder:
        run(_config(images, Path(folder), "mean", NOBODY, rate, TRIAL_SEED), Path(folder) / "run")
        last = read_lines(Path(folder) / "run" / "metrics.jsonl")[0][-1]
    return round(100 * float(last["validation"]["generalisation"]["balanced_accuracy"]), 2)


def measured(images: Path, known: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """All figures, with those that are known already; after every run once more."""
    rates: dict[str, float] = known.setdefault("validation", {})
    cells: dict[str, dict[str, list[float | None]]] = known.setdefault("test", {})
    for rate in RATES:
        if str(rate) not in rates:
            rates[str(rate)] = validated(images, rate)
            yield known
    chosen = known["rate"] = max(RATES, key=lambda rate: (rates[str(rate)], rate))
    for seed in SEEDS:
        for attack in ATTACKS:
            for rule in RULES:
                cell = cells.setdefault(attack, {}).setdefault(rule, [])
                if len(cell) <= seed:
                    cell.append(accuracy(images, rule, attack, chosen, seed))
                    yield known


def _config(images: Path, folder: Path, rule: str, attack: str, rate: float, seed: int) -> Config:
    return resolve(
        {
            "data": _cells(images, folder),
            "partition": {"kind": "iid", "sites": 10},
            "method": ATTACKS[attack],
            "train": {**TRAIN, "lr": rate, "seed": seed},
            "evaluate": {"every": TRAIN["rounds"], "own": "received"},
            "exchange": RULES[rule],
            "engine": {"device": "cpu"},
        }
    )


def _cells(images: Path, folder: Path) -> dict[str, Any]:
    """A few hundred of the blood cells, as the data of a config."""
    seen = dict.fromkeys(CELLS, 0)
    with open(images / "pbc_acevedo20" / "labels.csv") as table, open(folder / "cells.csv", "w") as chosen:
        writer = csv.writer(chosen)
        writer.writerow(["file", "label"])
        for row in csv.DictReader(table):
            if row["label"] not in seen:
                continue
            seen[row["label"]] += 1
            if TRIED < seen[row["label"]] <= TRIED + EACH:
                writer.writerow([row["file"], row["label"]])
    return {
        "kind": "csv",
        "path": str(folder / "cells.csv"),
        "images": str(images / "pbc_acevedo20" / "images.zip"),
        "label": "label",
        "image_size": 16,
        "split": {"test": 0.4, "validation": 0.1, "seed": 0},
    }
