"""Which methods can be trained with differential privacy, and what of their answers ε covers.

    python benchmarks/private.py [METHOD …] [--write]

Every method is tried on generated images as `equipoise check` would, with its own defaults (warm-ups of one
round, so that all its phases are seen). `--write` puts what was found into docs/results/private.json, from
which docs/privacy.md has its table.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

from equipoise.config import resolve
from equipoise.errors import EquipoiseError
from equipoise.methods import METHODS
from equipoise.running import one_thread, prepare
from equipoise.setup import material

FOUND = Path(__file__).resolve().parents[1] / "docs" / "results" / "private.json"
SETTINGS: dict[str, dict[str, Any]] = {
    "fedmas": {"target": "small-cnn"},
    "creff": {"features": 10, "match_steps": 10, "head_epochs": 10, "draws": 2},
    **{name: {"warmup": 1} for name in ("fedmlp", "fedirm", "cbafed", "fednoro", "prr-imb")},
}


def tried(name: str) -> dict[str, str]:
    """By question: whether ε covers its answer; or the sentence with which the method is refused."""
    multi = METHODS[name].tasks == ("multi",)
    table = {
        "data": {"kind": "phantom", "scale": 0.004, "image_size": 16, **({"task": "multi"} if multi else {})},
        "partition": {"kind": "iid", "sites": 3, **({"missing": 1} if multi else {})},
        "net": {"name": "small-cnn", "batch_norm": "group"},
        "method": {"name": name, **SETTINGS.get(name, {})},
        "train": {"rounds": 3, "batch_size": 8},
        "privacy": {"noise": 1.0},
        "engine": {"device": "cpu"},
    }
    config = resolve(table)
    try:
        with one_thread():
            dataset = material(config)
            ledger = prepare(config, dataset.facts, dataset).ledger
    except EquipoiseError as error:
        return {"refused": str(error)}
    found: dict[str, str] = {}
    for line in ledger.lines:  # the last phase of a question tells most
        found[line.question] = line.covered
    return found


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("methods", nargs="*", metavar="METHOD", default=list(METHODS))
    parser.add_argument("--write", action="store_true", help="write docs/results/private.json")
    given = parser.parse_args()
    found = {name: tried(name) for name in given.methods}
    for name, facts in found.items():
        print(name, json.dumps(facts, ensure_ascii=False))
    if given.write:
        found = json.loads(FOUND.read_text()) | found
        FOUND.write_text(json.dumps(found, indent=1, ensure_ascii=False) + "\n")


if __name__ == "__main__":
    main()
