"""From finished runs to the comparison: figures, p-values against a reference, and the files that hold
them."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from equipoise.compare.plan import Arm, Job, Plan
from equipoise.compare.pool import Failure, finished, race
from equipoise.evaluate import blend
from equipoise.evaluate.observer import scalars
from equipoise.evaluate.scores import read_scores
from equipoise.evaluate.significance import Judged, bootstrap, holm, judge, paired_t, sign_flip
from equipoise.keeping import read_json, write_atomic, write_json
from equipoise.report import Sheet, write_comparison
from equipoise.report.table import Figure, Row, Table, comma_separated, latex, markdown
from equipoise.run_folder import RESULT, SCORES, RunFolder, private_folder
from equipoise.running import Watch
from equipoise.seeds import numpy_generator

FACTS = "comparison.json"
LETTERS = {"generalisation": "G", "specialisation": "S", "average": "A"}
NAMES = {
    "balanced_accuracy": "bACC",
    "macro_auc": "AUC",
    "map": "mAP",
    "accuracy": "ACC",
    "macro_f1": "F1",
    "tail": "tail recall",
}
BALANCED = tuple((view, "balanced_accuracy") for view in LETTERS)
COLUMNS: dict[str, tuple[tuple[str, str], ...]] = {
    "single": (
        *BALANCED,
        *(("generalisation", name) for name in ("macro_auc", "accuracy", "macro_f1", "tail")),
    ),
    "multi": (*BALANCED, *(("generalisation", name) for name in ("macro_auc", "map"))),
}
"""what the table shows of each task: view and metric"""
TESTS = {"images": "p images", "t": "p t", "sign_flip": "p flip"}
CONVERGED = "converged"
NOT_ALL = "†"
NOTE = """\
Mean ± standard deviation in per cent over {runs}. G: the global predictor on the union of test sets;
S: each site's own predictor on its own test set, mean over sites; A: the mean of both. Best bold, second
underlined. Δ: mean difference in G bACC from {reference}. p, two-sided, with Holm's correction over the arms:
*images* resamples test images and asks whether these models would differ on other patients; *t* (Student's)
and *flip* (sign-flip permutation) go over runs and ask whether the methods would differ if trained again.
Converged: the runs whose mean validation balanced accuracy over the last quarter of rounds is within one
point of the quarter before. {not_all}: not all of them, so the row may tell how fast a method starts rather
than how far it gets. –: not known, for want of validation images or of evaluated rounds.
"""


def compare(
    plan: Plan, out: Path, processes: int | None = None, watch: Watch | None = None
) -> dict[str, Any]:
    """Run what is left to run, then write tables, comparison.json and the page into `out`; what
    comparison.json holds."""
    return conclude(plan, out, race(plan, out, processes, watch))


def conclude(plan: Plan, out: Path, failures: Sequence[Failure] = ()) -> dict[str, Any]:
    """Write table.md, table.csv, table.tex, comparison.json and report.html of the runs that are there."""
    facts = summarise(plan, out, failures)
    shown = table_of(facts)
    text = markdown(shown) + "\n" + note(facts)
    text += "".join(f"\nNote: {remark}.\n" for remark in (*facts["remarks"], *facts["twins"]))
    text += "".join(f"\nFailed: {failure.run}: {failure.error}\n" for failure in failures)
    for name, content in {
        "table.md": text,
        "table.csv": comma_separated(shown),
        "table.tex": latex(shown),
    }.items():
        write_atomic(out / name, content.encode())
    write_json(out / FACTS, facts)
    page(out)
    return facts


def page(out: Path, first: Sequence[Sheet] = ()) -> Path:
    """Write the page of the comparison in a folder; `first` stands before its table."""
    facts = read_facts(out / FACTS)
    return write_comparison(
        out, facts, [*first, Sheet("Result", table_of(facts), note(facts).replace("*", ""))]
    )


def read_facts(path: Path) -> dict[str, Any]:
    """What comparison.json (or reproduction.json) holds."""
    return read_json(path, "start the comparison again, which does not repeat its runs")


def note(facts: Mapping[str, Any]) -> str:
    """What the columns of the table mean."""
    seeds, folds = len(facts["seeds"]), facts["folds"]
    return NOTE.format(
        runs=f"{seeds} seed{'s' * (seeds > 1)}" + (f" × {folds} folds" if folds else ""),
        reference=facts["reference"],
        not_all=NOT_ALL,
    )


def summarise(plan: Plan, out: Path, failures: Sequence[Failure] = ()) -> dict[str, Any]:
    """All there is to say about the runs, in plain JSON types and without a path or a date: the same runs
    give the same text."""
    private_folder(out)
    results = results_of(plan, out)
    arms: dict[str, dict[str, Any]] = {}
    for arm in plan.arms:
        jobs = [job for job in plan.jobs if job.arm == arm and job.name in results]
        rows = [_run(job, results[job.name]) for job in jobs]
        arms[arm.label] = {
            "changes": dict(arm.changes),
            "runs": rows,
            "figures": {
                view: {
                    name: _figure([row["metrics"].get(view, {}).get(name) for row in rows]) for name in NAMES
                }
                for view in LETTERS
            },
            "recall": blend([row["recall"] for row in rows]),
        }
    return {
        "task": plan.task,
        "classes": next((result["classes"] for result in results.values()), []),
        "seeds": list(plan.seeds),
        "folds": plan.folds,
        "runs": len(plan.jobs) // len(plan.arms),
        "reference": plan.reference.label,
        "arms": arms,
        "versus": _versus(plan, out, results),
        "failures": [asdict(failure) for failure in failures],
        "left_out": list(plan.left_out),
        "remarks": list(plan.remarks),
        "twins": twins(arms),
    }


def twins(arms: Mapping[str, Mapping[str, Any]]) -> list[str]:
    """Arms whose runs all ended with the very figures of an earlier arm: an option, or a whole method, that
    did nothing."""
    found, seen = [], dict[str, str]()
    for label, arm in arms.items():
        key = json.dumps([(row["seed"], row["fold"], row["metrics"]) for row in arm["runs"]], sort_keys=True)
        if arm["runs"] and key in seen:
            found.append(
                f"{label} ended exactly as {seen[key]}: what sets it apart had no effect (a warm-up longer "
                f"than the run?)"
            )
        seen.setdefault(key, label)
    return found


def table_of(facts: Mapping[str, Any]) -> Table:
    """The table of a comparison."""
    columns = COLUMNS[facts["task"]]
    rows = []
    for label, arm in facts["arms"].items():
        figures = [arm["figures"][view][name] for view, name in columns]
        versus = facts["versus"].get(label)
        remarks = ["", *("" for _ in TESTS)]
        if versus is not None:
            remarks = [_signed(versus["difference"]), *(p_text(versus["holm"][test]) for test in TESTS)]
        done, wanted = len(arm["runs"]), facts["runs"]
        rows.append(
            Row(
                label,
                tuple(None if one is None else Figure(**one) for one in figures),
                (
                    *remarks,
                    converged_text(arm["runs"]),
                    f"{done}" if done == wanted else f"{done} of {wanted}",
                ),
            )
        )
    heads = tuple(f"{LETTERS[view]} {NAMES[name]}" for view, name in columns)
    return Table(heads, tuple(rows), ("Δ", *TESTS.values(), CONVERGED, "runs"))


def converged_text(runs: Sequence[Mapping[str, Any]]) -> str:
    """How many of an arm's runs have converged, marked where not all have; a dash where none is known."""
    known = [run.get(CONVERGED) for run in runs]
    if all(one is None for one in known):
        return "–"
    done = sum(one is True for one in known)
    return f"{done} of {len(known)}" + ("" if done == len(known) else f" {NOT_ALL}")


def results_of(plan: Plan, out: Path) -> dict[str, dict[str, Any]]:
    """What every finished run came to, by its name."""
    return {job.name: RunFolder(out / job.name).read(RESULT) for job in plan.jobs if finished(out / job.name)}


def _run(job: Job, result: Mapping[str, Any]) -> dict[str, Any]:
    test = result["metrics"].get("test", {})
    return {
        "folder": job.name,
        "seed": job.seed,
        "fold": job.fold,
        "selected_rounds": result["selected_rounds"],
        "ending_of": result.get("ending_of", []),
        "state_hash": result["state_hash"],
        "converged": result.get("converged"),
        "metrics": {view: scalars(test[view]) for view in LETTERS if view in test},
        "recall": test.get("generalisation", {}).get("recall"),
    }


def _figure(values: Sequence[float | None]) -> dict[str, float | None] | None:
    figure = Figure.of(values)
    return None if figure is None else asdict(figure)


def _versus(plan: Plan, out: Path, results: Mapping[str, Mapping[str, Any]]) -> dict[str, Any]:
    """Every other arm against the reference, over the seeds and folds that both have finished."""

    def scored(arm: Arm) -> dict[tuple[int, int | None], tuple[float, Job]]:
        found = {}
        for job in plan.jobs:
            test = results.get(job.name, {}).get("metrics", {}).get("test", {})
            value = test.get("generalisation", {}).get("balanced_accuracy")
            if job.arm == arm and value is not None:
                found[job.seed, job.fold] = (value, job)
        return found

    def judged(job: Job) -> Judged | None:
        scores = read_scores(out / job.name / SCORES, results[job.name]["selected_rounds"])
        return None if scores is None else judge(scores)

    reference = scored(plan.reference)
    standards = {key: judged(job) for key, (_, job) in reference.items()}
    overlap = 1 / (plan.folds - 1) if plan.folds else 0.0
    versus: dict[str, dict[str, Any]] = {}
    for arm in plan.arms:
        mine = scored(arm)
        keys = [key for key in reference if key in mine]
        if arm == plan.reference or not keys:
            continue
        differences = [mine[key][0] - reference[key][0] for key in keys]
        pairs = [(judged(mine[key][1]), standards[key]) for key in keys]
        whole = [(one, other) for one, other in pairs if one is not None and other is not None]
        images = None
        if len(whole) == len(pairs):
            draw = numpy_generator(0, "bootstrap")  # the same resamples for every arm
            images = bootstrap([one for one, _ in whole], [other for _, other in whole], draw)
        versus[arm.label] = {
            "difference": sum(differences) / len(differences),
            "differences": differences,
            "interval": None if images is None else [images.low, images.high],
            "p": {
                "images": None if images is None else images.p,
                "t": paired_t(differences, overlap),
                "sign_flip": sign_flip(differences, numpy_generator(0, "sign flip")),
            },
        }
    for test in TESTS:
        corrected = holm([one["p"][test] for one in versus.values()])
        for one, p in zip(versus.values(), corrected, strict=True):
            one.setdefault("holm", {})[test] = p
    return versus


def _signed(value: float) -> str:
    return f"{100 * value:+.1f}"


def p_text(value: float | None) -> str:
    """0.0123 → 0.012; what is smaller than can be shown is said to be."""
    return "–" if value is None else "< 0.001" if value < 0.001 else f"{value:.3f}"
