"""What must stay at its site: a word planted in paths, image ids and patient ids; labels; private tensors."""

from __future__ import annotations

import csv
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file
from tests import doctored

from equipoise.deploy.policy import Policy
from equipoise.deploy.site import own_config, own_material, read_site
from equipoise.testing import raw, write_federation
from equipoise.trust import nothing

WORD = "Zq7sentinelXw"
LABELS = (0, 1, 2, 0, 1, 2, 1, 1, 0, 2, 2)


def write_hospitals(folder: Path, sites: Sequence[str]) -> dict[str, Any]:
    """The `data` and `partition` tables of a federation whose folder, image ids and patients carry the
    word."""
    tables = write_federation(folder / WORD, dict.fromkeys(sites, LABELS), dict.fromkeys(sites, (0, 1, 2)))
    path = Path(tables["data"]["path"])
    with open(path, newline="") as file:
        rows = list(csv.DictReader(file))
    for i, row in enumerate(rows):
        row |= {"id": f"{WORD}-{row['id']}", "patient": f"patient-{WORD}-{i}"}
    with open(path, "w", newline="") as file:
        writer = csv.DictWriter(file, list(rows[0]))
        writer.writeheader()
        writer.writerows(rows)
    return tables | {"data": tables["data"] | {"group": "patient"}}


def at_home(site: Path) -> dict[str, bytes]:
    """Bytes that nobody but this site may have, by what they are. Tensors row by row: a database breaks what
    is longer."""
    options = read_site(site)
    config = next(site.glob("runs/*/config.json"))
    dataset = own_material(options, own_config(options, site, doctored.table(config), Policy(), nothing))
    held = dataset.samples.labels[dataset.holdings[0].train]
    labels = torch.as_tensor(held)
    found = {"word": WORD.encode(), "labels as text": json.dumps(labels.tolist())[1:-1].encode()}
    for dtype in (torch.int64, torch.int32, torch.float32, torch.uint8):
        found[f"labels as {dtype}"] = raw(labels.to(dtype))
    for path in site.glob("runs/*/private/*/*.safetensors"):
        for name, x in load_file(path).items():
            if name.startswith("tuned/"):
                continue  # the trained model as the site's own predictor: what it learnt is told as its delta
            rows = x.reshape(len(x), -1) if x.dim() > 1 else x.reshape(1, -1)
            wide = [row for row in rows if row.numel() >= 8 and len(row.unique()) > 1]
            found |= {f"{path.stem} {name} {i}": raw(row) for i, row in enumerate(wide)}
    return found
