"""Print the figures of docs/privacy.md, from the project's folder:

    python -m tests.attacks [--write]            what a curious coordinator finds out (a minute or two)
    python -m tests.attacks sites IMAGES [--write]   what hostile sites do to a model (75 short runs)

Each with and without protection. `--write` keeps the figures in docs/results, after every run, and does not
repeat what is there; from those files `docs/generate.py` makes the tables.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

import torch
from tests.attacks import figures, hostile_sites

RESULTS = Path(__file__).resolve().parents[2] / "docs" / "results"
CURIOUS, HOSTILE = RESULTS / "attacks.json", RESULTS / "hostile-sites.json"


def curious(write: bool) -> None:
    """A row per attack and protection."""
    rows: dict[str, dict[str, Any]] = {}
    print("| attack | protection | what is measured | figure |\n|---|---|---|---|")
    for name, protections in figures.TRIED.items():
        about = (getattr(figures, name).__doc__ or "").split(".")[0]
        for protection, attack in protections.items():
            figure = round(attack(), 3)
            rows.setdefault(name, {"about": about, "figures": {}})["figures"][protection] = figure
            print(f"| {name.replace('_', ' ')} | {protection} | {about} | {figure:.2f} |", flush=True)
    if write:
        save(CURIOUS, rows)


def hostile(images: Path, write: bool) -> None:
    """All figures so far after every run."""
    known = json.loads(HOSTILE.read_text()) if write and HOSTILE.exists() else {}
    for facts in hostile_sites.measured(images, known):
        if write:
            save(HOSTILE, facts)
    print(json.dumps(known, indent=1, ensure_ascii=False))


def save(path: Path, facts: dict[str, Any]) -> None:
    path.write_text(json.dumps(facts, indent=1, ensure_ascii=False) + "\n")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("kind", nargs="?", choices=["curious", "sites"], default="curious")
    parser.add_argument("images", nargs="?", type=Path, help="the folder of real images")
    parser.add_argument("--write", action="store_true")
    given = parser.parse_args()
    torch.set_num_threads(1)
    if given.kind == "sites":
        hostile(given.images, given.write)
    else:
        curious(given.write)
