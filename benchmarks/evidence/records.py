"""What is kept of every run of a table: one line in docs/results/records, so that a table can be continued on
another machine, and anybody can read what its figures come from."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Mapping
from pathlib import Path
from statistics import mean
from typing import Any

from equipoise.keeping import write_atomic

ROOT = Path(__file__).resolve().parents[2]
RECIPES = ROOT / "recipes"
FOLDER = ROOT / "docs" / "results" / "records"
VIEWS = ("generalisation", "specialisation", "average")
RUN, TRIAL = "run", "trial"
Record = dict[str, Any]


def mark(recipe: str, overrides: Iterable[str]) -> str:
    """The fingerprint of a run's settings: the recipe's text and what is changed in it."""
    text = (RECIPES / f"{recipe}.toml").read_text()
    return hashlib.sha256(json.dumps([text, sorted(overrides)]).encode()).hexdigest()[:16]


def read(name: str) -> dict[str, Record]:
    """The records of a table by fingerprint; none where it has not been begun."""
    path = FOLDER / f"{name}.jsonl"
    lines = path.read_text().splitlines() if path.exists() else []
    return {record["mark"]: record for record in map(json.loads, lines)}


def write(name: str, records: Mapping[str, Record]) -> None:
    """All records of a table, in an order that does not depend on which run ended first."""
    FOLDER.mkdir(parents=True, exist_ok=True)
    order = sorted(records.values(), key=lambda r: (r["kind"], r["seed"], r["row"], r["rate"], r["mark"]))
    text = "".join(json.dumps(record, sort_keys=True) + "\n" for record in order)
    write_atomic(FOLDER / f"{name}.jsonl", text.encode())


def record_of(folder: Path) -> Record:
    """What is kept of the run in a folder."""
    result = json.loads((folder / "result.json").read_text())
    history = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    test = result["metrics"]["test"]
    shared = test["generalisation"]
    return {
        "classes": result["classes"],
        "converged": result["converged"],
        "curve": [point(row) for row in history if "test" in row],
        "metrics": {view: scalars(test[view]) for view in VIEWS if view in test},
        "recall": rounded(shared["recall"]),
        "support": shared["support"],
        "sites": {site: rounded(own.get("balanced_accuracy")) for site, own in test.get("sites", {}).items()},
        "site_recall": {site: rounded(own.get("recall")) for site, own in test.get("sites", {}).items()},
        "bytes_up": result["metrics"].get("bytes_up"),
        "round": result["selected_rounds"][-1],
        "state": result["state_hash"][:16],
        "stopped_early": result.get("stopped_early"),
    }


def validated(folder: Path, metric: str) -> float:
    """The mean of a figure on validation images, G and S together, over the last two evaluated rounds."""
    history = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    found = [row["validation"]["average"][metric] for row in history if "validation" in row]
    return float(rounded(mean(found[-2:])))


def point(row: Mapping[str, Any]) -> list[Any]:
    """Round, then balanced accuracy: validation G and S, test G and S."""
    found = [row["round"]]
    for split in ("validation", "test"):
        for view in VIEWS[:2]:
            found.append(rounded(row.get(split, {}).get(view, {}).get("balanced_accuracy")))
    return found


def scalars(metrics: Mapping[str, Any]) -> dict[str, float]:
    return {name: rounded(value) for name, value in metrics.items() if isinstance(value, int | float)}


def rounded(value: Any) -> Any:
    if isinstance(value, list):
        return [rounded(one) for one in value]
    return round(value, 5) if isinstance(value, float) else value
