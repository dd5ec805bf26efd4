"""Figures of how a run went: accuracy and loss over rounds, what left the sites, seconds and bytes."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from equipoise.evaluate import blend
from equipoise.exchange.ledger import COMPARED
from equipoise.report import table
from equipoise.report.chart import Series, Show
from equipoise.report.figure import Arms, Cell, Figure, digits, json_lines, left_out, lined
from equipoise.report.folder import Run, size
from equipoise.report.plots import Bar, Look, Part, bars
from equipoise.run_folder import TIMING

KINDS = {"sum": Look(3, 0.85), "mean": Look(0, 0.45), "each": Look(1, 0.12, broken=True)}
READERS = {"sum": "only the sum is kept", "mean": "only the weighted mean is kept", "each": "read per site"}
WAYS = {"up, from the sites": "bytes_up", "down, to the sites": "bytes_down"}
Value = Callable[[Mapping[str, Any]], float | None]
"""a number of a row of the metrics"""
ENDED = ", after the ending"
ENDINGS = (
    " After the ending: with what the method trains once the rounds are over, drawn beyond the last of them."
)


def progress(run: Run) -> Iterator[Figure]:
    """Balanced accuracy and training loss of one run."""
    views = {
        "test, global": ("test", "generalisation"),
        "test, own": ("test", "specialisation"),
        "validation, global": ("validation", "generalisation"),
    }
    accuracy = [Series(name, _curve(run.rounds, *view)) for name, view in views.items()]
    accuracy += [Series(name + ENDED, _curve(run.endings, *view)) for name, view in views.items()]
    names = dict.fromkeys(key for row in run.history for key in row if key.endswith(".loss"))
    losses = _both(run, {name.replace(".", ": "): _under(name) for name in names})
    ended = ENDINGS if run.endings else ""
    about = (
        "Global: one model on the union of test sets. Own: each site's own predictor on its own test "
        "set, mean over sites."
    )
    yield from lined("convergence", "Balanced accuracy over rounds", accuracy, about + ended, percent=True)
    about = "Mean over the sites' images, as each question reported it."
    yield from lined("loss", "Training loss over rounds", losses, about + ended)


def convergence(arms: Arms, of: int) -> Iterator[Figure]:
    """Balanced accuracy of every arm, mean and standard deviation over its runs."""
    names = {"generalisation": "one model on all test sets", "specialisation": "each site's own predictor"}
    seeds = max(len(runs) for _, runs in arms)
    for view, text in names.items():
        series = [
            Series(title + kind, *_spread([_curve(getattr(run, rows), "test", view) for run in runs]))
            for kind, rows in (("", "rounds"), (ENDED, "endings"))
            for title, runs in arms
        ]
        about = f"Balanced accuracy on the test sets, {text}"
        about += f": mean and standard deviation over {seeds} runs." if seeds > 1 else "."
        about += ENDINGS if any(run.endings for _, runs in arms for run in runs) else ""
        title = f"{view.capitalize()} over rounds"
        yield from lined(f"convergence-{view}", title, series, about + left_out(arms, of), percent=True)


def _curve(rows: Sequence[Mapping[str, Any]], split: str, view: str) -> list[tuple[int, float | None]]:
    return [(row["round"], row[split][view]["balanced_accuracy"]) for row in rows if split in row]


def _under(key: str) -> Value:
    return lambda row: row.get(key)


def _both(run: Run, values: Mapping[str, Value]) -> list[Series]:
    """A line over the rounds for every value, and points of its own for the method's ending."""
    kinds = (("", run.rounds), (ENDED, run.endings))
    return [
        Series(name + kind, [(row["round"], value(row)) for row in rows])
        for kind, rows in kinds
        for name, value in values.items()
    ]


def _spread(
    curves: Sequence[Sequence[tuple[int, float | None]]],
) -> tuple[list[tuple[int, float | None]], list[float | None]]:
    """Mean and standard deviation over curves, round by round."""
    rounds = sorted({x for curve in curves for x, _ in curve})
    figures = [table.Figure.of([dict(curve).get(x) for curve in curves]) for x in rounds]
    points = [(x, None if one is None else one.mean) for x, one in zip(rounds, figures, strict=True)]
    return points, [None if one is None else one.std for one in figures]


def exchanged(run: Run) -> Iterator[Figure]:
    """Bytes of everything that leaves a site, and of what it gets."""
    if not run.ledger:
        return
    rows, cells = [Bar("up: one answer of one site", heading=True)], list[tuple[Cell, ...]]()
    for question, since in dict.fromkeys((row["question"], row["from_round"]) for row in run.ledger):
        leaves = [row for row in run.ledger if (row["question"], row["from_round"]) == (question, since)]
        varies = " × n" if any(row["varies"] for row in leaves) else ""
        parts = tuple(
            Part(
                row["bytes"],
                f"{question}: {row['leaf']}, {row['kind']}, {size(row['bytes'])}{varies}",
                KINDS[row["kind"]],
            )
            for row in sorted(leaves, key=lambda row: -row["bytes"])
        )
        note = f"from round {since + 1}" if since else ""
        rows.append(Bar(question, parts, size(sum(row["bytes"] for row in leaves)) + varies, note))
        cells += [("up", f"{question}: {row['leaf']}", row["kind"], row["bytes"]) for row in leaves]
    down = _per_site(run, "bytes_down")
    if down is not None:
        part = Part(down, f"down: {size(down)}", Look(2, 0.3))
        rows.append(Bar("down: all questions of a round to one site, mean", heading=True))
        rows.append(Bar("broadcast", (part,), size(down)))
        cells.append(("down", "all questions of a round, mean", None, round(down)))
    several = any(row["varies"] for row in run.ledger)
    yield Figure(
        "ledger",
        "What leaves a site",
        bars(
            "bytes that leave a site, by leaf",
            rows,
            size,
            kinds=[(f"{kind}: {_reader(run, kind)}", look) for kind, look in KINDS.items()],
        ),
        "Bytes of each answer, leaf by leaf, and who can read them."
        + (" n: a length that differs from site to site, such as its test images." if several else ""),
        ("way", "leaf", "kind", "bytes"),
        tuple(cells),
    )


def _reader(run: Run, kind: str) -> str:
    compared = kind == "mean" and any(row["read_by"] == COMPARED for row in run.ledger)
    return "read per site, to compare sites" if compared else READERS[kind]


def timing(run: Run) -> Iterator[Figure]:
    """Seconds and bytes of every round."""
    seconds = {line["round"]: line for line in json_lines(run, TIMING)}
    ended = ENDINGS if run.endings else ""
    series = _both(
        run,
        {
            "training": lambda row: seconds.get(row["round"], {}).get("train"),
            "testing": lambda row: seconds.get(row["round"], {}).get("evaluate") if "test" in row else None,
        },
    )
    about = "All sites of a round, with what carries their answers, on the machine that ran it."
    yield from lined("time", "Seconds per round", series, about + ended, show=_seconds, unit="s")
    series = _both(run, {name: _under(key) for name, key in WAYS.items()})
    about = "All sites together, without testing."
    yield from lined("bytes", "Bytes per round", series, about + ended, show=size, unit="bytes")


def costs(arms: Arms) -> Iterator[Figure]:
    """Seconds and bytes of a round under every arm."""
    time = {title: blend([seconds for run in runs for seconds in _trained(run)]) for title, runs in arms}
    about = "All sites of a round, on the machine that ran it; mean over rounds and runs."
    yield from _cost("time", "Seconds of training per round", time, _seconds, "seconds", about)
    both = ("bytes_up", "bytes_down")
    traffic = {title: blend([_per_site(run, *both) for run in runs]) for title, runs in arms}
    about = "Up and down, without testing; mean over sites, rounds and runs."
    yield from _cost("bytes", "Bytes per site and round", traffic, size, "bytes", about)


def _cost(
    key: str, title: str, costs: Mapping[str, float | None], show: Show, unit: str, about: str
) -> Iterator[Figure]:
    known = {name: value for name, value in costs.items() if value is not None}
    if known:
        rows = [
            Bar(name, (Part(value, f"{name}: {show(value)}"),), show(value)) for name, value in known.items()
        ]
        cells = tuple((name, digits(value)) for name, value in known.items())
        yield Figure(key, title, bars(title, rows, show), about, ("method", unit), cells)


def _trained(run: Run) -> list[float]:
    """Seconds of training of every round, also of one that was repeated after a break."""
    rounds = {row["round"] for row in run.rounds}
    return [line["train"] for line in json_lines(run, TIMING) if line["round"] in rounds]


def _seconds(value: float) -> str:
    return f"{value:.3g} s"


def _per_site(run: Run, *keys: str) -> float | None:
    """Mean bytes of a site in a round."""
    answers = sum(len(row["sites"]) for row in run.rounds)
    return sum(row[key] for row in run.rounds for key in keys) / answers if answers else None
