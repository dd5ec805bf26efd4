"""From finished runs to the comparison: figures, p-values against a reference, and the files that hold
them."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from equipoise.compare.gap import gaps, sheets, standard_of
from equipoise.compare.plan import Arm, Job, Plan
from equipoise.compare.pool import Failure, finished, race
from equipoise.evaluate import blend
from equipoise.evaluate.observer import scalars
from equipoise.evaluate.own import own_names
from equipoise.evaluate.scores import read_scores
from equipoise.evaluate.significance import Judged, bootstrap, holm, judge, paired_t, sign_flip
from equipoise.keeping import read_json, write_atomic, write_json
from equipoise.report import Sheet, write_comparison
from equipoise.report.table import Figure, Row, Table, Value, comma_separated, latex, markdown
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
underlined.
"""
OWN_NOTE = """\
Columns of your own metrics are not marked: a smaller value may be the better one.
"""
CONVERGED_NOTE = """\
Converged: the runs whose mean validation balanced accuracy over the last quarter of rounds is within one
point of the quarter before. {not_all}: not all of them, so the row may tell how fast a method starts rather
than how far it gets. –: not known, for want of validation images or of evaluated rounds.
"""
TEST_NOTE = """\
Δ: mean difference in G bACC from {reference}. p, two-sided, with Holm's correction over the arms:
*images* resamples test images and asks whether these models would differ on other patients; *t* (Student's)
and *flip* (sign-flip permutation) go over runs and ask whether the methods would differ if trained again.
"""
GUESSING = 0.005
"""how far above the balanced accuracy of guessing a run may be and still count as no better"""


def compare(
    plan: Plan, out: Path, processes: int | None = None, watch: Watch | None = None, on: str | None = None
) -> dict[str, Any]:
    """Run what is left to run, then write tables, comparison.json and the page into `out`; what
    comparison.json holds."""
    return conclude(plan, out, race(plan, out, processes, watch, on))


def conclude(plan: Plan, out: Path, failures: Sequence[Failure] = ()) -> dict[str, Any]:
    """Write table.md, table.csv, table.tex, runs.csv, comparison.json and report.html of the runs that are
    there."""
    facts = summarise(plan, out, failures)
    shown = table_of(facts)
    text = markdown(shown) + "\n" + note(facts)
    remarks = (*facts["collapsed"], *facts["remarks"], *facts["twins"])
    text += "".join(f"\n{sheet.title}\n\n{markdown(sheet.table)}\n{sheet.note}" for sheet in sheets(facts))
    text += "".join(f"\nNote: {remark}.\n" for remark in remarks)
    text += "".join(f"\nFailed: {failure.run}: {failure.error}\n" for failure in failures)
    for name, content in {
        "table.md": text,
        "table.csv": comma_separated(*numbers_of(facts)),
        "table.tex": latex(shown),
        "runs.csv": comma_separated(LONG, runs_of(facts)),
    }.items():
        write_atomic(out / name, content.encode())
    write_json(out / FACTS, facts)
    page(out)
    return facts


def page(out: Path, first: Sequence[Sheet] = ()) -> Path:
    """Write the page of the comparison in a folder; `first` stands before its table."""
    facts = read_facts(out / FACTS)
    result = Sheet("Result", table_of(facts), note(facts).replace("*", ""))
    return write_comparison(out, facts, [*first, result, *sheets(facts)])


def read_facts(path: Path) -> dict[str, Any]:
    """What comparison.json (or reproduction.json) holds."""
    return read_json(path, "start the comparison again, which does not repeat its runs")


def note(facts: Mapping[str, Any]) -> str:
    """What the columns of the table mean; of tests only where there are any."""
    seeds, folds = len(facts["seeds"]), facts["folds"]
    text = NOTE.format(runs=f"{seeds} seed{'s' * (seeds > 1)}" + (f" × {folds} folds" if folds else ""))
    text += OWN_NOTE if own_columns(facts) else ""
    text += CONVERGED_NOTE.format(not_all=NOT_ALL)
    if not facts["versus"]:
        return text
    one = len(references(facts)) == 1
    return text + TEST_NOTE.format(reference=facts["reference"] if one else "the row named under 'against'")


def references(facts: Mapping[str, Any]) -> list[str]:
    """The rows others are compared with: one, or one for every point of a grid."""
    return list(dict.fromkeys(arm["reference"] for arm in facts["arms"].values()))


def summarise(plan: Plan, out: Path, failures: Sequence[Failure] = ()) -> dict[str, Any]:
    """All there is to say about the runs, in plain JSON types and without a path or a date: the same runs
    give the same text."""
    private_folder(out)
    results = results_of(plan, out)
    tested = (one["metrics"].get("test", {}).get("generalisation", {}) for one in results.values())
    names = dict.fromkeys([*NAMES, *(name for one in tested for name in own_names(one))])
    arms: dict[str, dict[str, Any]] = {}
    for arm in plan.arms:
        jobs = [job for job in plan.jobs if job.arm == arm and job.name in results]
        rows = [_run(job, results[job.name]) for job in jobs]
        arms[arm.label] = {
            "changes": dict(arm.changes),
            "reference": plan.reference_of(arm).label,
            "standard": standard_of(plan, arm),
            "runs": rows,
            "figures": {
                view: {
                    name: _figure([row["metrics"].get(view, {}).get(name) for row in rows]) for name in names
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
        "gaps": gaps(plan, results),
        "failures": [asdict(failure) for failure in failures],
        "left_out": list(plan.left_out),
        "remarks": list(plan.remarks),
        "twins": twins(arms),
        "collapsed": collapsed(plan.task, arms),
    }


def collapsed(task: str, arms: Mapping[str, Mapping[str, Any]]) -> list[str]:
    """A sentence where no run of any arm is better than guessing: such a table has no order."""
    runs = [row for arm in arms.values() for row in arm["runs"]]
    if not runs or not all(_guesses(task, row) for row in runs):
        return []
    return [
        "every row collapsed: no run is better than guessing (balanced accuracy), so the order of the rows "
        "means nothing; train longer, or with another learning rate"
    ]


def _guesses(task: str, row: Mapping[str, Any]) -> bool:
    reached = row["metrics"].get("generalisation", {}).get("balanced_accuracy")
    present = sum(recall is not None for recall in row["recall"] or ())
    if reached is None or not present:
        return False
    return bool(reached <= (0.5 if task == "multi" else 1 / present) + GUESSING)


def twins(arms: Mapping[str, Mapping[str, Any]]) -> list[str]:
    """Arms whose runs all ended with the very figures of an earlier arm: an option, or a whole method, that
    did nothing."""
    sentences, seen = [], dict[str, str]()
    for label, arm in arms.items():
        key = json.dumps([(row["seed"], row["fold"], row["metrics"]) for row in arm["runs"]], sort_keys=True)
        if arm["runs"] and key in seen:
            apart = "what sets it apart had no effect (a warm-up longer than the run?)"
            sentences.append(f"{label} ended exactly as {seen[key]}: {apart}")
        seen.setdefault(key, label)
    return sentences


def table_of(facts: Mapping[str, Any]) -> Table:
    """The table of a comparison."""
    columns = columns_of(facts)
    several = len(references(facts)) > 1
    rows = []
    for label, arm in facts["arms"].items():
        figures = [arm["figures"][view][name] for view, name in columns]
        versus = facts["versus"].get(label)
        remarks = ["", *("" for _ in TESTS)]
        if versus is not None:
            remarks = [f"{100 * versus['difference']:+.1f}"]
            remarks += [p_text(versus["holm"][test]) for test in TESTS]
        if several:
            remarks.insert(0, "" if versus is None else arm["reference"])
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
                ranked=arm.get("standard") != "pooled",
            )
        )
    heads = tuple(f"{LETTERS[view]} {NAMES.get(name, name)}" for view, name in columns)
    against = ("against",) if several else ()
    remarks_heads = (*against, "Δ", *TESTS.values(), CONVERGED, "runs")
    return Table(heads, tuple(rows), remarks_heads, len(own_columns(facts)))


def converged_text(runs: Sequence[Mapping[str, Any]]) -> str:
    """How many of an arm's runs have converged, marked where not all have; a dash where none is known."""
    known = [run.get(CONVERGED) for run in runs]
    if all(one is None for one in known):
        return "–"
    done = sum(one is True for one in known)
    return f"{done} of {len(known)}" + ("" if done == len(known) else f" {NOT_ALL}")


def columns_of(facts: Mapping[str, Any]) -> list[tuple[str, str]]:
    """View and metric of every column: ours, then metrics of one's own."""
    return [*COLUMNS[facts["task"]], *(("generalisation", name) for name in own_columns(facts))]


def own_columns(facts: Mapping[str, Any]) -> list[str]:
    """The metrics of one's own that the table shows."""
    names = (name for arm in facts["arms"].values() for name in arm["figures"]["generalisation"])
    return list(dict.fromkeys(name for name in names if name not in NAMES))


def numbers_of(facts: Mapping[str, Any]) -> tuple[list[str], list[list[Value]]]:
    """The table for programs, heads and rows: shares from 0 to 1, as in comparison.json, and whole numbers
    of runs."""
    columns = [(f"{LETTERS[view]} {NAMES.get(name, name)}", view, name) for view, name in columns_of(facts)]
    heads = ["method", "reference"]
    heads += [f"{title} {part}" for title, _, _ in columns for part in ("mean", "std")]
    heads += ["difference", *TESTS.values(), "runs", "runs planned"]
    rows = []
    for label, arm in facts["arms"].items():
        figures = [arm["figures"][view][name] or {} for _, view, name in columns]
        versus = facts["versus"].get(label, {})
        row: list[Value] = [label, arm["reference"] if versus else None]
        row += [figure.get(part) for figure in figures for part in ("mean", "std")]
        row += [versus.get("difference"), *(versus.get("holm", {}).get(test) for test in TESTS)]
        rows.append([*row, len(arm["runs"]), facts["runs"]])
    return heads, rows


LONG = ("method", "run", "seed", "fold", "round", "converged", "view", "metric", "class", "value")
"""the columns of the long table"""


def runs_of(facts: Mapping[str, Any]) -> list[list[Value]]:
    """The rows of the long table: one for every metric of every run, and for the recall of every class."""
    rows: list[list[Value]] = []
    for label, arm in facts["arms"].items():
        for run in arm["runs"]:
            round = run["selected_rounds"][-1] if run["selected_rounds"] else None
            which: list[Value] = [label, run["folder"], run["seed"], run["fold"], round, run.get(CONVERGED)]
            for view, metrics in run["metrics"].items():
                rows += [[*which, view, name, None, value] for name, value in metrics.items()]
            recalls = zip(facts["classes"], run["recall"] or (), strict=False)
            rows += [[*which, "generalisation", "recall", name, value] for name, value in recalls]
    return rows


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
        figure = {}
        for job in plan.jobs:
            test = results.get(job.name, {}).get("metrics", {}).get("test", {})
            value = test.get("generalisation", {}).get("balanced_accuracy")
            if job.arm == arm and value is not None:
                figure[job.seed, job.fold] = (value, job)
        return figure

    def judged(job: Job) -> Judged | None:
        scores = read_scores(out / job.name / SCORES, results[job.name]["selected_rounds"])
        return None if scores is None else judge(scores)

    references = {arm.label: plan.reference_of(arm) for arm in plan.arms}
    figures = {arm.label: scored(arm) for arm in references.values()}
    standards = {job.name: judged(job) for figure in figures.values() for _, job in figure.values()}
    overlap = 1 / (plan.folds - 1) if plan.folds else 0.0
    versus: dict[str, dict[str, Any]] = {}
    for arm in plan.arms:
        mine, reference = scored(arm), figures[references[arm.label].label]
        keys = [key for key in reference if key in mine]
        if arm == references[arm.label] or not keys:
            continue
        differences = [mine[key][0] - reference[key][0] for key in keys]
        pairs = [(judged(mine[key][1]), standards[reference[key][1].name]) for key in keys]
        whole = [(one, other) for one, other in pairs if one is not None and other is not None]
        images = None
        if len(whole) == len(pairs):
            draw = numpy_generator(0, "bootstrap")  # the same resamples for every arm
            images = bootstrap([one for one, _ in whole], [other for _, other in whole], draw)
        versus[arm.label] = {
            "reference": references[arm.label].label,
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


def p_text(value: float | None) -> str:
    """0.0123 → 0.012; what is smaller than can be shown is said to be."""
    return "–" if value is None else "< 0.001" if value < 0.001 else f"{value:.3f}"
