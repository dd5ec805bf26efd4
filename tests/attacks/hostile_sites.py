"""Two of ten sites attack: balanced accuracy on real blood cells under every way to combine updates.

Four kinds of cells, 300 images each at 16 pixels, ten sites with equal shares, FedAvg for 30 rounds; 40 % of
the images are for testing.
"""

from __future__ import annotations

import csv
import tempfile
from functools import cache
from pathlib import Path
from typing import Any

from equipoise.config import resolve
from equipoise.errors import SiteError
from equipoise.running import run

CELLS = ("eosinophil", "erythroblast", "lymphocyte", "platelet")
EACH = 300
HOSTILE = ("site-03", "site-07")
RULES: dict[str, dict[str, Any]] = {
    "mean": {},
    "median": {"reduce": "median"},
    "trimmed": {"reduce": "trimmed"},
    "krum": {"reduce": "krum"},
}
KIT = "equipoise.testing.attacks"
ATTACKS: dict[str, dict[str, Any]] = {
    "nobody": {"name": "fedavg"},
    "sign flip, ×10": {"name": f"{KIT}:SignFlip", "sites": HOSTILE},
    "honest update, ×10": {"name": f"{KIT}:Scale", "sites": HOSTILE},
    "random update, ×10": {"name": f"{KIT}:Noise", "sites": HOSTILE},
    "one class mislabelled, ×10": {"name": f"{KIT}:LabelFlip", "sites": HOSTILE, "factor": 10.0},
    "one class mislabelled": {"name": f"{KIT}:LabelFlip", "sites": HOSTILE},
}
TRAIN = {
    **{"rounds": 30, "epochs": 1, "batch_size": 8, "optimizer": "sgd", "lr": 0.05, "momentum": 0.9},
    **{"schedule": "cosine", "views": ["flip"]},
}


@cache
def accuracy(images: Path, rule: str, attack: str) -> float:
    """Balanced accuracy of the global model on all test images, in points; 0 where the model was driven so
    far that no site could train it any more, and the run ended."""
    with tempfile.TemporaryDirectory() as folder:
        config = resolve(
            {
                "data": _cells(images, Path(folder)),
                "partition": {"kind": "iid", "sites": 10},
                "method": ATTACKS[attack],
                "train": TRAIN,
                "evaluate": {"every": TRAIN["rounds"], "own": "received"},
                "exchange": RULES[rule],
                "engine": {"device": "cpu"},
            }
        )
        try:
            result = run(config, Path(folder) / "run")
        except SiteError:
            return 0.0
    return 100 * float(result.metrics["test"]["generalisation"]["balanced_accuracy"])


def _cells(images: Path, folder: Path) -> dict[str, Any]:
    """A few hundred of the blood cells, as the data of a config."""
    left = dict.fromkeys(CELLS, EACH)
    with open(images / "pbc_acevedo20" / "labels.csv") as table, open(folder / "cells.csv", "w") as chosen:
        writer = csv.writer(chosen)
        writer.writerow(["file", "label"])
        for row in csv.DictReader(table):
            if left.get(row["label"], 0):
                left[row["label"]] -= 1
                writer.writerow([row["file"], row["label"]])
    return {
        "kind": "csv",
        "path": str(folder / "cells.csv"),
        "images": str(images / "pbc_acevedo20" / "images.zip"),
        "label": "label",
        "image_size": 16,
        "split": {"test": 0.4, "validation": 0.0},
    }
