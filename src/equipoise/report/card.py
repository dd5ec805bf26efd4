"""The model card: what a model is, on whose data it was trained, how good it is and where not to trust it.
Markdown.

Counts are given in steps and never below `SMALL`, and no rate of so few images is given: a card is passed on.
"""

from __future__ import annotations

import re
from bisect import bisect_right
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import groupby
from typing import Any

import torch

from equipoise.data.sets import SETS
from equipoise.evaluate.significance import wilson
from equipoise.report.crowd import crowded, held_by_groups, quantiles
from equipoise.report.folder import (
    SMALL,
    Run,
    by_size,
    figures,
    objective_name,
    percent,
    reported_rounds,
    start_of,
)
from equipoise.report.lacking import gaps, most_trained, tested, untested
from equipoise.report.table import escaped
from equipoise.report.words import REHEARSED, place
from equipoise.site.measure import FIXED_POINT, tallies
from equipoise.text import listed
from equipoise.version import __version__

STEPS = (SMALL, 50, 100, 500, 1_000, 5_000, 10_000, 50_000, 100_000)
POOR, RARE, UNCALIBRATED = 0.5, 50, 0.1
"""what the limits speak of: recall below, training images below, calibration error above"""


def model_card(run: Run) -> str:
    """The card of a finished run."""
    title = f"# Model card: {escaped(run.config['method']['name'])} on {escaped(run.data_name)}"
    sections = {
        "Model": _model(run),
        "Data": _data(run),
        "Performance": _performance(run),
        "Calibration": _calibration(run),
        **({"Privacy": _privacy(run.privacy)} if run.privacy else {}),
        "Limits": (f"- {text}" for text in _limits(run)),
        "Identity": _identity(run),
    }
    parts = [f"## {name}\n\n" + "\n".join(lines) for name, lines in sections.items()]
    return "\n\n".join([title, *parts]) + "\n"


def blocks(text: str) -> Iterator[tuple[str, list[list[str]]]]:
    """A card taken apart for a page: ("h2", …), ("table", …), ("list", …) or ("text", …), each with its rows
    of plain cells."""
    for kind, lines in groupby(text.splitlines(), _kind):
        if kind == "table":
            rows = [[_plain(cell) for cell in re.split(r"(?<!\\)\|", line)[1:-1]] for line in lines]
            yield kind, [rows[0], *rows[2:]]
        elif kind:
            yield kind, [[_plain(line.lstrip("#- "))] for line in lines]


def _kind(line: str) -> str:
    starts = {"# ": "h1", "## ": "h2", "|": "table", "- ": "list"}
    return next((kind for start, kind in starts.items() if line.startswith(start)), "text" if line else "")


def _plain(cell: str) -> str:
    """What `escaped` was given."""
    return re.sub(r"\\(.)", r"\1", cell.strip())


def bucket(count: int) -> str:
    """A count as a step: <10, 10–49, 50–99, …; none and few look alike, as a site may have hidden which."""
    place = bisect_right(STEPS, count)
    if place == 0:
        return f"<{SMALL}"
    return f"≥{STEPS[-1]:,}" if place == len(STEPS) else f"{STEPS[place - 1]:,}–{STEPS[place] - 1:,}"


# Sections ---------------------------------------------------------------------------------------------------


def _model(run: Run) -> Iterator[str]:
    table, data = run.config, run.data
    net, train = table["net"], table["train"]
    reported = reported_rounds(run.result["selected_rounds"], run.result.get("ending_of", ()))
    labels = "one class per image" if data["task"] == "single" else "any number of findings per image"
    yield from _table(
        ("", ""),
        [
            ("task", f"{labels}: {', '.join(data['classes'])}"),
            (
                "method",
                f"{table['method']['name']} (federated; {place(run, 'images stayed at their sites')})",
            ),
            ("base loss", objective_name(run)),
            ("network", f"{net['name']}, from {start_of(run)}"),
            (
                "input",
                f"{data['height']} × {data['width']} pixels, {'grey' if data['channels'] == 1 else 'colour'}",
            ),
            (
                "training",
                f"{_rounds(run)} of {train['epochs']} local epochs, {train['optimizer']}, seed "
                f"{train['seed']}",
            ),
            ("reported round", f"{reported} (rule: {table['evaluate']['select']}; a test set never chooses)"),
        ],
    )


def _rounds(run: Run) -> str:
    """How many rounds were trained."""
    planned = f"{run.config['train']['rounds']} rounds"
    return f"{run.done} of {planned} (stopped early)" if run.result.get("stopped_early") else planned


def _data(run: Run) -> Iterator[str]:
    data = run.data
    kind = run.data_kind
    if run.federated and run.rehearsal is None:
        yield (
            f"Images of {escaped(listed(list(data['sites'])))}, which stayed there: {data['images']:,} in "
            f"all, as the sites reported. Their licence is for the sites to say."
        )
    elif kind in SETS:
        facts = SETS[kind].facts
        yield (
            f"{escaped(facts.title)}, from {facts.home}. Licence: {escaped(facts.licence)}. Cite: "
            f"{escaped(facts.citation)}"
        )
    elif kind == "phantom":
        yield "Generated images, drawn by Equipoise: no patient, and no licence needed."
    else:
        yield "Images of the sites' own; their licence is for the sites to say."
    yield ""
    heads = ("site", "training images", "test images")
    parts = {
        site: [bucket(held[split]["images"]) for split in ("train", "test")]
        for site, held in held_by_groups(data)["sites"].items()
    }
    yield from _table(heads, ((site, *counts) for site, counts in parts.items()))
    yield ""
    if run.rehearsal is not None:
        yield f"It was {REHEARSED}: no hospital took part."
        yield ""
    untold = {i for held in data["sites"].values() for i in held["train"].get("untold", ())}
    rows = (
        (data["classes"][i], bucket(data["train"][i]) + (" where reported" if i in untold else ""))
        for i in by_size(data["train"])
    )
    counted = "training images" if data["task"] == "single" else "training images that have it"
    yield from _table(("class", counted), rows)


def _performance(run: Run) -> Iterator[str]:
    test, data = run.test, run.data
    if test is None:
        yield "No round was tested."
        return
    everyone, own = test["generalisation"], test["specialisation"]
    reach = {"balanced_accuracy": run.reach}
    who = f"the sites that answered ({escaped(listed(tested(run)))})" if untested(run) else "all sites"
    yield (
        f"Global: one model on the test images of {who} together. Own: each site's own predictor on "
        "its own test images, mean"
    )
    lacking = "which stay at the sites" if run.federated else "which were not kept (`evaluate.exact`)"
    yield "over sites. In brackets the 95 % interval over test images" + (
        " (bootstrap; Wilson's for recall)."
        if run.reach is not None
        else f" (Wilson's, for recall; the others need the scores of single images, {lacking})."
    )
    yield ""
    rows = (
        (name, percent(everyone[key]) + _brackets(reach.get(key)), percent(own[key]))
        for key, name in figures(everyone).items()
        if everyone.get(key) is not None
    )
    yield from _table(("test images", "global", "own"), rows)
    yield ""
    shown = []
    for i in by_size(data["train"]):
        count, recall = int(everyone["support"][i] or 0), everyone["recall"][i]
        if count < SMALL or recall is None:
            text = f"not reported for fewer than {SMALL}"
        else:
            text = percent(recall) + _brackets(wilson(recall, count))
        shown.append((data["classes"][i], bucket(count), text))
    yield from _table(("class", "test images", "recall, global"), shown)
    yield ""
    judged = {site: one for site, one in test["sites"].items() if _tested(run, site) >= SMALL}
    reached = {site: one["balanced_accuracy"] for site, one in judged.items()}
    shown_sites = quantiles(reached.values()) if crowded(reached) else reached
    head = f"of {len(reached):,} sites" if crowded(reached) else "site"
    of_sites = [(name, percent(value)) for name, value in shown_sites.items()]
    yield from _table((head, "balanced accuracy, own predictor"), of_sites)


def _calibration(run: Run) -> Iterator[str]:
    if run.test is None:
        yield "No round was tested."
        return
    yield f"Expected calibration error of the global predictor: {percent(run.test['generalisation']['ece'])}."
    scores = run.scores
    if scores is None:
        return
    counts = [tallies(page, scores.labels, task=scores.task)["calibration"] for page in scores.logits]
    bins = torch.stack(counts).sum(0).double() / len(counts)
    width = 1 / len(bins)
    rows = [
        (
            f"{i * width:.2f}–{(i + 1) * width:.2f}",
            percent(sure / count / FIXED_POINT),
            percent(right / count),
        )
        for i, (count, right, sure) in enumerate(bins.tolist())
        if count >= SMALL
    ]
    yield ""
    yield from _table(("says with confidence", "mean", "is right"), rows)


def _privacy(privacy: Mapping[str, Any]) -> Iterator[str]:
    """What differential privacy promises, to whom, and what it leaves out."""
    promise = privacy["promise"]
    yield f"Trained with differential privacy: {promise}. A patient with k images has k times that ε."
    yield ""
    yield from _table(("site", "ε spent"), privacy["spent"].items())
    yield ""
    yield from _table(
        ("", ""),
        [
            ("covered", "every gradient of a training image"),
            ("not covered", "; ".join(privacy["not_covered"]) or "nothing"),
            ("largest norm of a gradient", privacy["clip"]),
            ("noise from", privacy["draws"]),
        ],
    )


def _limits(run: Run) -> Iterator[str]:
    """What a reader must know before trusting the model; all of it follows from the run."""
    data, test = run.data, run.test
    yield "For research. Not a medical device: nobody has shown that using it helps a patient."
    if run.data_kind == "phantom":
        yield "Trained on generated images: it says nothing about real ones."
    where = f"the {len(data['sites'])} sites"
    where = f"{len(tested(run))} of {where}" if untested(run) else where
    yield (
        f"Tested at {where} it was trained at, not elsewhere: `equipoise evaluate` "
        "tests it on the images of another."
    )
    yield from map(escaped, gaps(run))
    most = [most_trained(data, i) for i in range(len(data["classes"]))]
    rare = (n is not None and n < RARE for n in most)
    yield from _names(data["classes"], rare, f"Trained on fewer than {RARE} images of")
    if test is None:
        return
    everyone = test["generalisation"]
    support = [int(n or 0) for n in everyone["support"]]
    few = (n < SMALL for n in support)
    yield from _names(data["classes"], few, f"Tested on fewer than {SMALL} images of")
    pairs = zip(support, everyone["recall"], strict=True)
    missed = (n >= SMALL and (recall or 0.0) < POOR for n, recall in pairs)
    yield from _names(data["classes"], missed, "Misses more than half of the images of")
    if (everyone["ece"] or 0.0) > UNCALIBRATED:
        yield "Its probabilities are not to be taken at face value: see Calibration."
    worst = test["worst_site"]
    if worst["name"] is not None and _tested(run, worst["name"]) >= SMALL:
        yield f"Weakest at {escaped(worst['name'])}: balanced accuracy {percent(worst['balanced_accuracy'])}."


def _identity(run: Run) -> Iterator[str]:
    rows = []
    end = next((i for i, line in enumerate(run.journal) if line.get("finished")), len(run.journal))
    # Lines after the end only looked at the run; several digests where other code resumed it.
    starts = [line for line in run.journal[:end] if line["event"] in ("started", "resumed")]
    for key in ("config", "code", "data"):
        digests = dict.fromkeys(line.get(key, "unknown") for line in starts)
        rows.append((key, ", ".join(digests) or "unknown"))
    yield from _table(("sha256 of", ""), [*rows, ("final state", run.result["state_hash"])])
    yield ""
    yield f"Equipoise {__version__}."


# Pieces -----------------------------------------------------------------------------------------------------


def _table(heads: Sequence[str], rows: Iterable[Sequence[str]]) -> Iterator[str]:
    yield f"| {' | '.join(heads)} |"
    yield f"|{'---|' * len(heads)}"
    for row in rows:
        yield f"| {' | '.join(map(escaped, row))} |"


def _brackets(reach: tuple[float, float] | None) -> str:
    return "" if reach is None else f" ({100 * reach[0]:.1f}–{100 * reach[1]:.1f})"


def _tested(run: Run, site: str) -> int:
    return int(run.data["sites"][site]["test"]["images"])


def _names(classes: Sequence[str], chosen: Iterable[bool], text: str) -> Iterator[str]:
    names = [escaped(name) for name, yes in zip(classes, chosen, strict=True) if yes]
    if names:
        yield f"{text} {', '.join(names)}."
