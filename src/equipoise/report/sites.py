"""Figures of the sites: who holds what, how much each counts in the aggregate, what each gains by joining."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from statistics import mean
from typing import Any

from equipoise.report import table
from equipoise.report.chart import Series
from equipoise.report.crowd import TOGETHER, crowded, groups, held_by_groups
from equipoise.report.figure import Arms, Cell, Figure, json_lines, left_out, lined, rate
from equipoise.report.folder import Run, by_size
from equipoise.report.plots import RIGHT, WRONG, Bar, Part, bars, bubbles

GAINED_OVER = ("alone", "plain")
"""the standards that a site's gain is shown over"""
LINES = 6
"""sites a line chart shows at most, the largest; the others are taken together"""


def distribution(data: dict[str, Any]) -> Iterator[Figure]:
    """Class by site, area by training images."""
    many = crowded(data["sites"])
    data = held_by_groups(data)
    order, sites = by_size(data["train"]), data["sites"]
    if not sites or not order:
        return
    untold = {site: held["train"].get("untold", ()) for site, held in sites.items()}
    why = "not reported there" if any(untold.values()) else "not labelled there"

    def count(i: int, site: str) -> int | None:
        labelled = sites[site].get("labelled")
        lacking = labelled is not None and not labelled[i]
        return None if lacking or i in untold[site] else sites[site]["train"]["counts"][i]

    def hover(row: int, column: int) -> str:
        name, site = data["classes"][order[row]], list(sites)[column]
        held, known = count(order[row], site), sites[site]["train"].get("known")
        if held is None:
            does = "tell how much it has of" if order[row] in untold[site] else "label"
            return f"{site} does not {does} {name}"
        images = f" of {known[order[row]]:,} labelled images" if known else ""
        return f"{site}: {held:,} {name}{images}"

    counts = [[count(i, site) for site in sites] for i in order]
    sums = [sum(n for n in row if n is not None) for row in counts]
    rows = [Bar(data["classes"][i], note=f"{total:,}") for i, total in zip(order, sums, strict=True)]
    partly = any("known" in site["train"] for site in sites.values())
    partial = any(n is None for row in counts for n in row)
    yield Figure(
        "distribution",
        "Who holds what",
        bubbles("training images of each class at each site", rows, list(sites), counts, hover, why),
        "Training images of each class (the number under its name, all sites together) at each site; the "
        "area of a circle is the count, and there is none where the site has none."
        + (f" A cross: the class is {why}." if partial else "")
        + (" Not every image is labelled for every class." if partly else "")
        + (f" {TOGETHER}" if many else ""),
        ("class", *sites),
        tuple((data["classes"][i], *row) for i, row in zip(order, counts, strict=True)),
    )


def contribution(run: Run) -> Iterator[Figure]:
    """Every site's share in the aggregate, and Fed-MAS's rescue factor; both are noted at the sites, and only
    a simulation sees them."""
    if run.standard == "pooled":
        return
    totals = {x: (row, sum(row.values())) for x, row in notes(run, "weight").items()}
    shares = {x: {site: n / total for site, n in row.items()} for x, (row, total) in totals.items() if total}
    about = (
        "Weight of each site's change in the mean over the sum of all weights: training images, or "
        "what the method has instead."
    )
    title, series = "Share of each site in the aggregate", _by_site(run, shares, sum)
    yield from lined("contribution", title, series, about, percent=True)
    about = "How far a site's classes are from the shared self-supervised view, before and in training."
    series = _by_site(run, notes(run, "rescue_factor"), mean)
    yield from lined("rescue", "Rescue factor of each site", series, about)


def notes(run: Run, name: str) -> dict[int, dict[str, float]]:
    """What the sites of a simulation noted of themselves, by round (counted from 1) and site."""
    rounds: dict[int, dict[str, float]] = {row["round"]: {} for row in run.rounds}
    for site in run.data["sites"]:
        for line in json_lines(run, f"sites/{site}/notes.jsonl"):
            if name in line and line["round"] + 1 in rounds:
                # The last note of a round that was repeated after a crash.
                rounds[line["round"] + 1][site] = line[name]
    return {x: row for x, row in rounds.items() if row}


def _by_site(
    run: Run, rows: dict[int, dict[str, float]], together: Callable[[list[float]], float]
) -> list[Series]:
    """A line per site from the largest on; the smallest of many as one."""
    sites = run.data["sites"]
    order = sorted(sites, key=lambda site: -sites[site]["train"]["images"])
    few = order if len(order) <= LINES else order[: LINES - 1]
    series = [Series(site, [(x, row.get(site)) for x, row in rows.items()]) for site in few]
    if len(few) < len(order):
        rest = {x: [row[site] for site in order[len(few) :] if site in row] for x, row in rows.items()}
        named = f"the other {len(order) - len(few)}" + (" together" if together is sum else ", mean")
        points = [(x, together(values) if values else None) for x, values in rest.items()]
        series.append(Series(named, points))
    return series


def gains(arms: Arms, shown: Arms) -> Iterator[Figure]:
    """What every site's own predictor gains over training alone, and over plain averaging."""
    for kind in GAINED_OVER:
        titles = [title for title, runs in arms if runs[0].standard == kind]
        if not titles:
            continue
        standard = [run for title, runs in arms if title in titles for run in runs]
        method = standard[0].method
        named = titles[0] if len(titles) == 1 else f"{method} on the same sites"
        text = "training alone" if kind == "alone" else named
        rows, cells, many = [], list[tuple[Cell, ...]](), False
        for title, runs in shown:
            gained = site_gains(runs, standard)
            many = many or crowded(gained)
            over = "sites" if crowded(gained) else "runs"
            gained = gains_by_groups(gained) if crowded(gained) else gained
            rows += [Bar(title, heading=True)] if gained else []
            for site, (images, values) in gained.items():
                gain = table.Figure.of(values)
                assert gain is not None
                hover = f"{title} at {site} ({images:,} training images): {_signed(gain.mean)} points"
                hover += "" if gain.std is None else f" ± {100 * gain.std:.1f} over {len(values)} {over}"
                part = Part(gain.mean, hover, RIGHT if gain.mean >= 0 else WRONG)
                rows.append(Bar(site, (part,), _signed(gain.mean)))
                cells.append((title, site, images, rate(gain.mean), rate(gain.std)))
        if rows:
            yield Figure(
                f"gain-{method}",
                f"What each site gains over {text}",
                bars(f"gain in balanced accuracy over {text}", rows, _tick),
                "Balanced accuracy of each site's own predictor on its own "
                f"test set, less that of {named}, in points; mean over runs; "
                "sites from the largest to the smallest."
                + (f" {TOGETHER}" if many else "")
                + left_out(shown, len(arms)),
                ("method", "site", "training images", "gain, points", "±"),
                tuple(cells),
            )


def site_gains(runs: Sequence[Run], standard: Sequence[Run]) -> dict[str, tuple[int, list[float]]]:
    """By site, from the largest on: training images, and own balanced accuracy less the standard's in every
    run both have; no run is its own standard."""
    others: dict[str, Run] = {}
    for run in standard:
        others.setdefault(_draw(run), run)
    gains: dict[str, list[float]] = {}
    images: dict[str, list[int]] = {}
    for run in runs:
        other = others.get(_draw(run))
        if other is None or other is run or run.test is None or other.test is None:
            continue
        for site, metrics in run.test["sites"].items():
            one, two = (
                (reached or {}).get("balanced_accuracy")
                for reached in (metrics, other.test["sites"].get(site))
            )
            if one is not None and two is not None:
                gains.setdefault(site, []).append(one - two)
                images.setdefault(site, []).append(run.data["sites"][site]["train"]["images"])
    order = sorted(gains, key=lambda site: -mean(images[site]))
    return {site: (round(mean(images[site])), gains[site]) for site in order}


def gains_by_groups(gained: dict[str, tuple[int, list[float]]]) -> dict[str, tuple[int, list[float]]]:
    """The same by groups of sites of like size: their images together, and the mean gain of each."""
    return {
        name: (sum(gained[site][0] for site in members), [mean(gained[site][1]) for site in members])
        for name, members in groups(list(gained)).items()
    }


def _draw(run: Run) -> str:
    """What two runs must share to have the same sites: data with its fold, partition, seed."""
    shared = (run.config["data"], run.config["partition"], run.config["train"]["seed"])
    return json.dumps(shared, sort_keys=True, default=str)


def _tick(value: float) -> str:
    return f"{100 * value:+.3g}" if value else "0"


def _signed(value: float) -> str:
    """A difference in points; nothing has no sign."""
    points = round(100 * value, 1)
    return f"{points:+.1f}" if points else "0.0"
