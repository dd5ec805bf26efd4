"""Figures of how good a model is: recall of each class, what is taken for what, calibration, where the
classes lie."""

from __future__ import annotations

from collections.abc import Iterator

from equipoise.report import table
from equipoise.report.decisions import Decisions
from equipoise.report.figure import Arms, Cell, Figure, digits, left_out, rate, whole
from equipoise.report.folder import Run, by_size, percent
from equipoise.report.plots import RIGHT, WRONG, Bar, Part, Spot, bars, dots, maps, matrix, reliability


def recalls(run: Run) -> Iterator[Figure]:
    """Recall of every class, from the most frequent to the rarest."""
    if run.test is None:
        return
    data, metrics = run.data, run.test["generalisation"]
    order = by_size(data["train"])
    rows, cells = [], list[tuple[Cell, ...]]()
    for i in order:
        name, recall, support = data["classes"][i], metrics["recall"][i], round(metrics["support"][i] or 0)
        hover = f"{name}: {percent(recall)} of {support:,} test images found"
        parts = () if recall is None else (Part(recall, hover),)
        rows.append(Bar(name, parts, percent(recall), f"{data['train'][i]:,}"))
        cells.append((name, data["train"][i], support, rate(recall)))
    yield Figure(
        "recall",
        "Recall of each class, from the most frequent to the rarest",
        bars("recall of each class", rows, whole, high=1.0),
        "The global predictor on the union of test sets. Under the names: training images. A dash: the "
        "class is in no test set.",
        ("class", "training images", "test images", "recall, %"),
        tuple(cells),
    )


def recalls_of_arms(arms: Arms, of: int) -> Iterator[Figure]:
    """Recall of every class under every arm."""
    data = arms[0][1][0].data
    rows, cells = [], list[tuple[Cell, ...]]()
    for i in by_size(data["train"]):
        name = data["classes"][i]
        means = [
            table.Figure.of([run.test["generalisation"]["recall"][i] for run in runs if run.test])
            for _, runs in arms
        ]
        marks = [
            None if one is None else (one.mean, f"{name}, {title}: {one} %")
            for (title, _), one in zip(arms, means, strict=True)
        ]
        rows.append((Bar(name, note=f"{data['train'][i]:,}"), marks))
        cells.append((name, data["train"][i], *(None if one is None else rate(one.mean) for one in means)))
    if any(one is not None for _, marks in rows for one in marks):
        yield Figure(
            "recall",
            "Recall of each class, from the most frequent to the rarest",
            dots("recall of each class under each method", rows, [title for title, _ in arms], whole),
            "The global predictor on the union of test sets, mean over runs. Under the names: training "
            "images." + left_out(arms, of),
            ("class", "training images", *(f"{title}, %" for title, _ in arms)),
            tuple(cells),
        )


def decided(run: Run, decisions: Decisions | None) -> Iterator[Figure]:
    """The confusion matrix, or for several labels what was found and what was missed."""
    if decisions is None:
        return
    order, classes = by_size(run.data["train"]), run.data["classes"]
    counts = decisions.decided
    if run.data["task"] == "single":
        values = [[float(counts[i, j]) for j in order] for i in order]
        names = [classes[i] for i in order]
        yield Figure(
            "confusion",
            "What is taken for what",
            matrix("true class by predicted class", [Bar(name) for name in names], names, values, _number),
            "Test images of each true class (rows) by the class the global predictor gives them (columns), "
            "both from the most frequent to the rarest. The darker, the larger the share of the row; "
            "framed: right.",
            ("true class", *names),
            tuple((name, *row) for name, row in zip(names, values, strict=True)),
        )
        return
    rows, cells = [], list[tuple[Cell, ...]]()
    for i in order:
        (tn, fp), (fn, tp) = counts[i].tolist()
        rows.append(Bar(classes[i], heading=True))
        for name, good, bad, said in (
            ("has it", tp, fn, ("found", "missed")),
            ("has it not", tn, fp, ("not called", "called")),
        ):
            total = good + bad
            parts = tuple(
                Part(n / total, f"{classes[i]}, {name}: {_number(n)} {verb} ({percent(n / total)})", look)
                for n, verb, look in ((good, said[0], RIGHT), (bad, said[1], WRONG))
                if n
            )
            rows.append(Bar(name, parts, _number(total), ""))
        cells.append((classes[i], tp, fn, fp, tn))
    kinds = [("right", RIGHT), ("wrong", WRONG)]
    yield Figure(
        "confusion",
        "What is found and what is missed",
        bars("right and wrong decisions of each finding", rows, whole, kinds=kinds),
        "Test images that have a finding and those that have it not, as shares; at the end how many there "
        "are. A finding is called where the global predictor gives it more than 50 %.",
        ("finding", "found (TP)", "missed (FN)", "called in error (FP)", "rightly not called (TN)"),
        tuple(cells),
    )


def calibration(decisions: Decisions | None) -> Iterator[Figure]:
    """How often decisions are right against how sure they were."""
    if decisions is None:
        return
    bins = decisions.bins()
    yield Figure(
        "reliability",
        f"How far its confidence can be trusted: calibration error {percent(decisions.ece)}",
        reliability("share of right decisions by confidence", bins),
        "Decisions of the global predictor in bins of its confidence: how often they are right (bars; the "
        "diamond stands at the bin's mean confidence) and how many there are (below). On the broken line "
        "it would be right as often as it is sure. The calibration error is the mean distance from it.",
        ("confidence from, %", "to, %", "decisions", "mean confidence, %", "right, %"),
        tuple(
            (rate(low), rate(high), digits(n), rate(sure), rate(right))
            for low, high, n, sure, right in bins
            if n
        ),
    )


def feature_map(run: Run) -> Iterator[Figure]:
    """Class means in the features of the body, and of the projector."""
    features = run.features
    if features is None:
        return
    data = run.data
    titles = {"body": "body", "projector": "after the projector"}
    most, panels, cells = max(data["train"]) or 1, [], list[tuple[Cell, ...]]()
    for layer, places in features["maps"].items():
        spots = [
            Spot(place[0], place[1], n / most, name, f"{name}: {n:,} training images")
            for name, n, place in zip(data["classes"], data["train"], places["points"], strict=True)
            if place is not None
        ]
        across, up = places["share"]
        panels.append((f"{titles[layer]}: {percent(across)} across, {percent(up)} up", spots))
        cells += [(titles[layer], spot.name, spot.x, spot.y) for spot in spots]
    yield Figure(
        "features",
        "Where the classes lie",
        maps("class means of the features", panels),
        f"Mean features of each class over {features['images']:,} test images after round "
        f"{features['round']}, along the two axes that spread the class means most; per cent: how much of "
        "the spread each axis holds. The area grows with the training images. Classes that lie together are "
        "hard to tell apart.",
        ("features", "class", "across", "up"),
        tuple(cells),
    )


def _number(value: float) -> str:
    """A count, or the mean of some."""
    return f"{value:,.0f}" if value == round(value) else f"{value:,.1f}"
