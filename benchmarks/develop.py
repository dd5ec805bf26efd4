"""How the project's own method was developed: every part's share, on validation images alone.

    python benchmarks/develop.py [SETTING …] [--seeds 2] [--rows NAME …] [--page]

Short runs of files in recipes/ with overrides (16 pixels where one label per image is given, 20 rounds, a
fifth of the images for validation). The tables that judge the method have the same split, so none of their
test images was among these; tables with another share for validation have other test images. Of every run
only its figures on validation images are kept, in docs/results/records/own-method.jsonl; recorded runs are
not repeated. Writes docs/results/own-method.md, with the remarks of own-method.notes.md, and how far from its
goal the tables have the method.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from evidence import goal
from evidence.lists import BSM, MAS, TABLES, TWO, Rows
from evidence.records import ROOT, mark, rounded
from evidence.runs import Runs

from equipoise.keeping import write_atomic
from equipoise.methods import METHODS

PAGE = ROOT / "docs" / "results" / "own-method.md"
NOTES, RECORDS = PAGE.with_suffix(".notes.md"), PAGE.parent / "records" / "own-method.jsonl"
GOAL = """\
To be better in A than each of these seven on every table with one label per image, with p < 0.05 on most.
Equipoise less the rival, over the seeds that both have: on test images with the 95 % interval (p is below
0.05 where it does not hold 0), then on the validation images of the same runs, on which the method was
developed. Comparisons are not independent: four tables have the same blood cells and three the same skin
lesions, and the images of pbc-overview and pbc-tail have the size with which the method was developed.
"""
OWN = ("method.name=equipoise",)
SPLIT = ("data.split.seed=0", "data.split.validation=0.2")
SHORT = (*SPLIT, "evaluate.every=20", "train.rounds=20")
PARTS: Rows = {f"Equipoise: {name}": (*OWN, f"method.preset={name}") for name in METHODS["equipoise"].presets}
SINGLE: Rows = {
    "Equipoise": OWN,
    **PARTS,
    "FedAvg + balanced softmax": ("method.name=fedavg", *BSM),
    "FCA": ("method.name=fca", *BSM),
    "BalanceFL": ("method.name=balancefl",),
    "Fed-MAS": MAS,
    "FedIIC": ("method.name=fediic", TWO),
    "FedSDC": ("method.name=fedsdc",),
    "FedSDC+": ("method.name=fedsdc+",),
}
MULTI: Rows = {
    "Equipoise": OWN,
    **{name: PARTS[name] for name in ("Equipoise: no-momentum", "Equipoise: no-closed-form")},
    "FedAvg-PL, weighted": ("method.name=fedavg-pl", "method.preset=fedmlp"),
    "FedMLP": ("method.name=fedmlp", "method.warmup=8", TWO),
}


@dataclass(frozen=True)
class Setting:
    """A recipe at a small budget, and the rows tried in it."""

    recipe: str
    rows: Rows
    common: tuple[str, ...] = SHORT

    def overrides(self, row: str, seed: int) -> tuple[str, ...]:
        return (*self.rows[row], *self.common, f"train.seed={seed}")


SMALL = (*SHORT, "data.image_size=16")
LONG = (*SPLIT, "data.image_size=16", "train.epochs=5", "train.rounds=6", "evaluate.every=6")
SETTINGS = {
    "ham10000-sites": Setting("ham10000-sites", SINGLE, SMALL),
    "pbc-longtail": Setting("pbc-longtail", SINGLE, SMALL),
    "ham10000-niid1": Setting("ham10000-niid1", SINGLE, LONG),
    "cxr14-missing": Setting("cxr14-missing", MULTI),
}
Record = dict[str, Any]


def kept(folder: Path) -> Record:
    """The figures of a finished run on its validation images."""
    lines = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    found = [line["validation"] for line in lines if "validation" in line][-1]
    shared, own = found["generalisation"], found.get("specialisation", {})
    return {
        "G": rounded(shared["balanced_accuracy"]),
        "AUC": rounded(shared["macro_auc"]),
        "S": rounded(own.get("balanced_accuracy")),
        "roles": {role: rounded(one["balanced_accuracy"]) for role, one in found["roles"].items()},
    }


def made(setting: Setting, row: str, seed: int) -> Record | None:
    """Run one row with one seed, or continue it; None where it fails."""
    overrides = setting.overrides(row, seed)
    folder = ROOT / "runs" / "develop" / mark(setting.recipe, overrides)
    command = [sys.executable, "-m", "equipoise", "run", f"recipes/{setting.recipe}.toml", *overrides]
    if not (folder / "result.json").exists():
        environment = os.environ | {"OMP_NUM_THREADS": "1"}
        done = subprocess.run(
            [*command, "--out", str(folder), "--json"], cwd=ROOT, env=environment, capture_output=True
        )
        if done.returncode:
            print(f"  {row}, seed {seed}: FAILED: {done.stdout.decode()[-300:]}", file=sys.stderr)
            return None
    print(f"  {row}, seed {seed}: done", file=sys.stderr, flush=True)
    return kept(folder)


def page(records: Mapping[str, Record]) -> str:
    """The remarks, how far from the goal the tables have the method, and the tables of its development."""
    lines = ["# The method of our own: what each part gives", "", *NOTES.read_text().splitlines()]
    lines += ["", "## How far from the goal", "", *GOAL.splitlines(), ""]
    lines += goal.lines({name: Runs(name, TABLES[name], 1) for name in goal.SINGLE})
    lines += ["", "Where images have several labels, in G:", ""]
    several = {name: Runs(name, TABLES[name], 1) for name in goal.SEVERAL}
    lines += goal.lines(several, goal.RIVALS_OF_SEVERAL, "generalisation")
    for name, setting in SETTINGS.items():
        found = {row: seeds for row in setting.rows if (seeds := list(of(records, setting, row)))}
        if not found:
            continue
        common = " ".join(setting.common)
        lines += ["", f"## {name}", "", f"`recipes/{setting.recipe}.toml` with `{common}`", ""]
        multi = setting.rows is MULTI
        heads = ("G bACC", "G AUC") if multi else ("G bACC", "S bACC", "A bACC", "G AUC")
        lines += ["| row | seeds | " + " | ".join(heads) + " |", "|---|---|" + "---|" * len(heads)]
        for row, seeds in found.items():
            columns = {"G bACC": [s["G"] for s in seeds], "G AUC": [s["AUC"] for s in seeds]}
            if not multi:
                columns |= {"S bACC": [s["S"] for s in seeds]}
                columns |= {"A bACC": [(s["G"] + s["S"]) / 2 for s in seeds]}
            cells = [spread(columns[head]) for head in heads]
            lines.append(f"| {row} | {len(seeds)} | " + " | ".join(cells) + " |")
    return "\n".join(lines) + "\n"


def spread(values: list[float]) -> str:
    deviation = f" ± {100 * statistics.stdev(values):.1f}" if len(values) > 1 else ""
    return f"{100 * statistics.mean(values):.1f}{deviation}"


def of(records: Mapping[str, Record], setting: Setting, row: str) -> Iterable[Record]:
    """The recorded runs of a row, whatever their seeds."""
    for seed in range(20):
        record = records.get(mark(setting.recipe, setting.overrides(row, seed)))
        if record is not None:
            yield record


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("settings", nargs="*", metavar="SETTING", help=f"of {', '.join(SETTINGS)}; none: all")
    parser.add_argument("--seeds", type=int, default=2)
    parser.add_argument("--rows", nargs="*", default=(), help="only these rows; the page shows all there are")
    parser.add_argument("--page", action="store_true", help="write the page of what is recorded, run nothing")
    given = parser.parse_args()
    lines = RECORDS.read_text().splitlines() if RECORDS.exists() else []
    records: dict[str, Record] = {record["mark"]: record for record in map(json.loads, lines)}
    wanted = [] if given.page else [SETTINGS[name] for name in given.settings or SETTINGS]
    for seed in range(given.seeds):
        for setting in wanted:
            for row in setting.rows:
                key = mark(setting.recipe, setting.overrides(row, seed))
                if key in records or (given.rows and row not in given.rows):
                    continue
                if (found := made(setting, row, seed)) is not None:
                    facts = {"mark": key, "recipe": setting.recipe, "row": row, "seed": seed}
                    records[key] = facts | found
                    text = "".join(json.dumps(one, sort_keys=True) + "\n" for one in records.values())
                    write_atomic(RECORDS, text.encode())
    write_atomic(PAGE, page(records).encode())


if __name__ == "__main__":
    main()
