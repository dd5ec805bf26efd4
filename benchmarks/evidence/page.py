"""The page of a table: figures, differences, recall per class, how each row was tuned, and curves."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterable, Sequence

from equipoise.config import load, override, resolve
from evidence.curves import curves
from evidence.figures import closed, difference, on_validation, settled, spread, value, values
from evidence.records import RECIPES, ROOT, Record
from evidence.runs import Runs

SINGLE = (
    ("generalisation", "balanced_accuracy", "G bACC"),
    ("specialisation", "balanced_accuracy", "S bACC"),
    ("average", "balanced_accuracy", "A bACC"),
    ("generalisation", "macro_auc", "G AUC"),
    ("generalisation", "accuracy", "G ACC"),
    ("generalisation", "tail", "G tail recall"),
)
MULTI = (
    ("generalisation", "balanced_accuracy", "G bACC"),
    ("generalisation", "macro_auc", "G AUC"),
    ("generalisation", "map", "G mAP"),
    ("generalisation", "tail", "G tail recall"),
)
NOTE = """\
G: the global predictor on the union of test sets; S: each site's own predictor on its own test set, mean
over sites; A: the mean of both. Per cent, mean ± standard deviation over seeds. Δ: difference from
*{reference}*, seed by seed, with its 95 % interval (Student's t over seeds). Moved: mean validation bACC (G)
of the last quarter of rounds less that of the quarter before, over all seeds; a † marks rows that moved by
more than a point and so have not converged: they may tell how fast a method starts rather than how far it
gets; –: nobody can tell, without validation images or of a row that only predicts in another way."""
SAME = """\
All seeds have the same test images, so the interval does not say what others would have given; the column
after it has the same difference on validation images (on which our own method was developed)."""
GAP = """\
Gap closed: how much of the distance between training alone (*Local*, 0) and training on the pooled images
(*Centralised*, 100) the row covers, in per cent, over the seeds that all three have."""
SMALL = """\
**Read this as a record of an earlier stage**: a small budget, rates that were not tuned, few rows that have
converged. It says how fast methods start. The [tuned tables](README.md) overrule it wherever they have the
same rows."""
FEW = 3
"""seeds that every row should have; a column says how many there are"""
ALONE, POOLED = "Local", "Centralised"


def write(runs: Runs, seeds: int) -> list[str]:
    """Write the page and the picture of a table; its lines."""
    lines, picture = drawn(runs, seeds)
    if lines:
        out = ROOT / "docs" / "results" / runs.name
        out.with_suffix(".md").write_text("\n".join(lines))
        out.with_suffix(".svg").write_text(picture)
    return lines


def drawn(runs: Runs, seeds: int) -> tuple[list[str], str]:
    """The lines and the picture of a table's page; none where nothing is recorded."""
    table, name = runs.table, runs.name
    rows = {row: runs.finished(row, seeds) for row in table.rows}
    rows = {row: records for row, records in rows.items() if records}
    if not rows:
        return [], ""
    recipe = override(load(RECIPES / f"{table.recipe}.toml"), table.common)
    multi = resolve(recipe, ROOT).multi
    lines = [f"# {name}", "", *([] if table.rates or not table.chooses else [SMALL, ""])]
    lines += [*opening(runs, seeds), ""]
    same = any(text.startswith("data.split.seed=") for text in table.common)
    lines += main_table(rows, table.compared, MULTI if multi else SINGLE, same)
    lines += ["", NOTE.format(reference=table.compared), *([SAME] * same)]
    if {ALONE, POOLED} <= set(rows):
        lines += [GAP]
    lines += ["", *recall_table(rows, multi), *gap_tables(rows, multi), *tuning(runs, list(rows))]
    missing = [row for row in table.rows if len(rows.get(row, ())) < min(seeds, FEW)]
    if missing:
        lines += ["", f"Not all runs are made yet: {', '.join(missing)}."]
    lines += ["", f"![balanced accuracy over rounds]({name}.svg)", ""]
    notes = ROOT / "docs" / "results" / f"{name}.notes.md"
    if notes.exists():
        lines += [notes.read_text().strip(), ""]
    trained = {row: found for row, found in rows.items() if row not in table.trained_by}
    return lines, curves({row: [one["curve"] for one in found] for row, found in trained.items()})


def opening(runs: Runs, seeds: int) -> Iterable[str]:
    table = runs.table
    changed = ", ".join(f"`{text}`" for text in table.common)
    yield f"{table.about[0].upper()}{table.about[1:]}{'' if table.about.endswith('?') else '.'}"
    yield f"`python benchmarks/tables.py {runs.name} --seeds {seeds}` on `recipes/{table.recipe}.toml`"
    yield (f"with {changed};" if changed else "as it is;")
    yield "every figure is that of the last round, and every run is one line of"
    yield f"[records/{runs.name}.jsonl](records/{runs.name}.jsonl)."


def main_table(
    rows: dict[str, list[Record]], reference: str, columns: Sequence[tuple[str, str, str]], same: bool = False
) -> Iterable[str]:
    """The figures of every row; `same`: all seeds have the same test images, so validation images are asked
    too."""
    view = "average" if any(view == "average" for view, _, _ in columns) else "generalisation"
    letter = "A" if view == "average" else "G"
    bounded = {ALONE, POOLED} <= set(rows)
    heads = [*(title for _, _, title in columns), f"Δ {letter}", *([f"Δ {letter} on validation"] * same)]
    heads += [*(["gap closed"] * bounded), "seeds", "moved"]
    yield "| method | " + " | ".join(heads) + " |"
    yield "|---|" + "---|" * len(heads)
    for row, records in rows.items():
        cells = [spread(values(records, *column[:2])) for column in columns]
        others = [] if row == reference else rows.get(reference, [])
        gap = difference(records, others, view)
        cells.append("" if gap is None else str(gap))
        if same:
            heard = difference(records, others, view, figure=on_validation)
            cells.append("" if heard is None else f"{100 * heard.mean:+.1f}")
        if bounded:
            cells.append("" if row in (ALONE, POOLED) else share(rows, row, of_view(view)))
        yield f"| {row} | " + " | ".join([*cells, str(len(records)), settled(records)]) + " |"


def share(rows: dict[str, list[Record]], row: str, figure: Callable[[Record], float | None]) -> str:
    """How much of the gap between the two bounds a row closes."""
    return closed(rows[row], rows[ALONE], rows[POOLED], figure)


def of_view(view: str) -> Callable[[Record], float | None]:
    return lambda record: value(record, view, "balanced_accuracy")


def recall_table(rows: dict[str, list[Record]], multi: bool) -> Iterable[str]:
    first = next(iter(rows.values()))[0]
    classes, support = first["classes"], first["support"]
    order = sorted(range(len(classes)), key=lambda c: -support[c])
    yield f"Recall per class ({'positives at 0.5, ' if multi else ''}test images in brackets):"
    yield ""
    yield "| method | " + " | ".join(f"{classes[c]} ({int(support[c])})" for c in order) + " |"
    yield "|---|" + "---|" * len(order)
    for row, records in rows.items():
        recall = [[one["recall"][c] for one in records if one["recall"][c] is not None] for c in order]
        yield f"| {row} | " + " | ".join(map(spread, recall)) + " |"


def gap_tables(rows: dict[str, list[Record]], multi: bool) -> Iterable[str]:
    """What part of the gap each row closes for each class, and for each site."""
    if multi or not {ALONE, POOLED} <= set(rows):
        return  # with several labels recall is of a threshold, and rises where everything is called present
    first = rows[ALONE][0]
    classes = [(name, lambda record, c=c: record["recall"][c]) for c, name in enumerate(first["classes"])]
    sites = [(site, lambda record, site=site: record["sites"].get(site)) for site in first["sites"]]
    for what, columns in (
        ("class (recall of the global predictor)", classes),
        ("site (balanced accuracy of its own predictor)", sites),
    ):
        yield ""
        yield f"Gap closed in per cent, by {what}; –: pooled images give less than a point:"
        yield ""
        yield "| method | " + " | ".join(name for name, _ in columns) + " |"
        yield "|---|" + "---|" * len(columns)
        for row in rows:
            if row not in (ALONE, POOLED):
                yield f"| {row} | " + " | ".join(share(rows, row, figure) for _, figure in columns) + " |"


def tuning(runs: Runs, rows: Sequence[str]) -> Iterable[str]:
    """How the learning rate of each row was chosen."""
    table = runs.table
    if not table.rates:
        return
    tried = ", ".join(f"{rate:g}" for rate in table.rates)
    yield ""
    yield (
        f"Tuning, the same for every row: learning rates {tried}, {table.trial_rounds} rounds each with a "
        f"seed of its own, the best {table.metric.replace('_', ' ')} on validation images (mean of G and S). "
        "Chosen: "
    )
    yield "; ".join(f"{row} {runs.rate(row):g}" for row in rows if row not in table.trained_by) + "."
    for source in sorted(set(table.trained_by[row] for row in rows if row in table.trained_by)):
        same = ", ".join(row for row in rows if table.trained_by.get(row) == source)
        yield f"Not trained: {same} predict in another way from the last models of *{source}*."
    trained = (one for one in runs.records.values() if one["row"] not in table.trained_by)
    took = [record["seconds"] for record in trained if record["kind"] == "run"]
    yield f"A run took {statistics.median(took) / 60:.0f} minutes (median) beside other work."
