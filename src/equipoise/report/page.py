"""The pages: one run, or several compared. One file each, without a request to any network."""

from __future__ import annotations

import base64
import hashlib
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from functools import cache
from pathlib import Path
from typing import Any

import tomli_w
from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup

from equipoise.evaluate.significance import wilson
from equipoise.methods import METHODS
from equipoise.report import words
from equipoise.report.card import blocks, model_card
from equipoise.report.crowd import QUANTILES, TOGETHER, crowded, held_by_groups, quantile_rows, quantiles
from equipoise.report.figures import Figure as Drawing
from equipoise.report.figures import comparison_figures, run_figures
from equipoise.report.folder import SMALL, Run, by_size, figures, objective_name, percent, read_run, size
from equipoise.report.lacking import gaps, untested
from equipoise.report.table import Figure, Row, Table
from equipoise.run_folder import CARD, PAGE, RunFolder
from equipoise.version import __version__

REFRESH = 5
"""seconds after which a live page looks at its file again"""

VIEWS = {
    "generalisation": "the global predictor on the union of all test sets",
    "specialisation": "each site's own predictor on its own test set, mean over sites",
    "average": "the mean of the two",
}

RUN = {
    "convergence": ("convergence", "loss"),
    "classes": ("recall", "confusion", "reliability", "features"),
    "sites": ("different", "contribution", "rescue"),
    "data": ("distribution",),
    "privacy": ("ledger", "bytes"),
    "more": (),
}
COMPARISON = {"data": ("distribution",), "result": ()}
"""where figures stand, by their keys; one that is not named stands in the last place"""


@dataclass(frozen=True)
class Sheet:
    """A table with its heading and what its columns mean."""

    title: str
    table: Table
    note: str


def write_report(folder: Path, live: bool = False) -> Path:
    """The page of a run, finished or not, into its folder; of a finished one with the model card beside it.

    A `live` page looks at its file again every few seconds, for as long as the run is not finished.
    """
    run = read_run(folder)
    card = model_card(run) if run.finished else ""
    if card:
        RunFolder(folder).write_text(CARD, card)
    return _write(
        folder,
        "run.html.j2",
        run=run,
        metrics=figures(run.test["generalisation"]) if run.test else {},
        live=live and not run.finished,
        short=words.in_short(run),
        method=changed_options(run),
        config=tomli_w.dumps({key: value for key, value in run.config.items() if key != "base"}),
        objective=objective_name(run),
        times={name: _time(line) for name, line in _ends(run).items()},
        stopped=run.journal[-1]["reason"] if run.journal and run.journal[-1]["event"] == "stopped" else None,
        cards=_cards(run),
        card=list(blocks(card)),
        places=placed(run_figures(run), RUN),
        classes=_classes(run),
        site_rows=_site_rows(run),
        absences=absences(run.journal),
        traffic={key: sum(row[key] for row in run.history) for key in ("bytes_up", "bytes_down")},
        untested=untested(run),
        lacking=gaps(run),
        fingerprint=next((line["data"] for line in run.journal if "data" in line), None),
    )


def write_comparison(folder: Path, facts: Mapping[str, Any], sheets: Sequence[Sheet]) -> Path:
    """The page of a comparison, into its folder: `facts` as in comparison.json, and the tables that come
    first."""
    every = [(label, one["runs"]) for label, one in facts["arms"].items()]
    arms = [(label, [read_run(folder / row["folder"]) for row in rows]) for label, rows in every if rows]
    first = arms[0][1][0] if arms else None
    after = [] if first is None else [_recalls(first, every), _sites(first, arms)]
    return _write(
        folder,
        "comparison.html.j2",
        facts=facts,
        run=first,
        live=False,
        short=words.compared(facts, arms),
        sheets=sheets,
        after=after,
        places=placed(comparison_figures(arms), COMPARISON),
        links={
            label: f"{rows[0]['folder']}/{PAGE}" for label, rows in every if len(rows) == facts["runs"] == 1
        },
        page=PAGE,
    )


@cache
def _templates() -> Environment:
    pages = Environment(
        loader=PackageLoader("equipoise.report", "templates"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    pages.filters |= {"percent": percent, "size": size, "share": _share, "cell": _cell, "prose": _prose}
    return pages


def standalone(svg: str) -> str:
    """A figure of a page with the style it has there on white paper, so that it can stand by itself."""
    head, close, rest = str(svg).partition(">")
    head = head.replace("<svg ", '<svg xmlns="http://www.w3.org/2000/svg" ', 1)
    return f"{head}{close}<style>{_chart_style()}</style>{rest}"


@cache
def _chart_style() -> str:
    """What the style sheet of the pages says of charts, with its light colours."""
    style = _templates().get_template("page.css.j2").render()
    light = re.search(r":root \{(.*?)\}", style, re.DOTALL)
    assert light is not None
    rules = re.findall(r"\.chart [^{]*\{[^}]*\}", style)
    paper = "max-width: 36rem; background: var(--card); font-family: system-ui, sans-serif;"
    own = f".chart {{{light[1]} {paper} }}"
    return "\n".join([own, *(rule for rule in rules if "max-width" not in rule)])


def _write(folder: Path, template: str, **facts: Any) -> Path:
    pages = _templates()
    assert pages.loader is not None
    script = Markup(pages.loader.get_source(pages, "page.js")[0])
    # Only this very script may run, so that no name or label in the data can bring one of its own.
    allowed = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    facts |= {
        "by_size": by_size,
        "crowded": crowded,
        "held_by_groups": held_by_groups,
        "together": TOGETHER,
        "views": VIEWS,
        "version": __version__,
        "refresh": REFRESH,
        "small": SMALL,
        "simulated": words.SIMULATED,
        "place": words.place,
    }
    facts |= {"script": script, "allowed": allowed}
    RunFolder(folder).write_text(PAGE, pages.get_template(template).render(facts))
    return folder / PAGE


def placed(figures: Sequence[Drawing], places: Mapping[str, Sequence[str]]) -> dict[str, list[Drawing]]:
    """The figures of each place."""
    last = list(places)[-1]
    homes = {key: place for place, keys in places.items() for key in keys}
    return {place: [figure for figure in figures if homes.get(figure.key, last) == place] for place in places}


def _share(value: float | None) -> str:
    """A width for a bar."""
    return "0" if value is None else f"{100 * min(1.0, max(0.0, value)):.1f}"


def _prose(text: str) -> Markup:
    """A sentence, with `commands` as such."""
    return Markup("").join(
        Markup("<code>{}</code>" if i % 2 else "{}").format(part) for i, part in enumerate(text.split("`"))
    )


def _cell(value: str | float | None) -> str:
    """A cell of a figure's table."""
    if isinstance(value, float):
        return f"{value:,.4g}" if abs(value) < 10_000 else f"{value:,.0f}"
    return "–" if value is None else f"{value:,}" if isinstance(value, int) else value


# One run ----------------------------------------------------------------------------------------------------


def changed_options(run: Run) -> str:
    """The method, and those of its options that are not as they are by default; all of them for a method of
    one's own."""
    options = {key: value for key, value in run.config["method"].items() if key != "name"}
    if run.method in METHODS:
        usual = METHODS[run.method].model_validate({}).model_dump(mode="json", exclude_none=True)
        options = {key: value for key, value in options.items() if usual.get(key) != value}
    return ", ".join([run.method, *(f"{key} = {value}" for key, value in options.items())])


def _ends(run: Run) -> dict[str, Mapping[str, Any]]:
    """The first line of the journal, and the last of a round."""
    rounds = [line for line in run.journal if line["event"] == "committed"]
    return {"started": run.journal[0] if run.journal else {}, "last": rounds[-1] if rounds else {}}


def _time(line: Mapping[str, Any]) -> str:
    return datetime.fromisoformat(line["time"]).strftime("%Y-%m-%d %H:%M UTC") if line else "unknown"


def _cards(run: Run) -> list[tuple[str, str, str]]:
    """The key figures: (value, name, what it is)."""
    if run.test is None:
        return []
    cards = [
        (percent(run.test[view]["balanced_accuracy"]), view, f"balanced accuracy of {text}")
        for view, text in VIEWS.items()
    ]
    cards[2] = (cards[2][0], "average", "mean of the two balanced accuracies")
    everyone, worst = run.test["generalisation"], run.test["worst_site"]
    where = worst["name"] or "the worst site of each round"
    return [
        *cards,
        (percent(everyone["macro_auc"]), "macro AUC", "global predictor, mean over classes"),
        (percent(everyone["tail"]), "tail recall", "global predictor, mean over the rarest third of classes"),
        (percent(worst["balanced_accuracy"]), "worst site", f"balanced accuracy at {where}"),
    ]


def _classes(run: Run) -> list[dict[str, Any]]:
    """The classes from the most frequent to the rarest: training and test images, recall and its 95 %
    interval (Wilson's)."""
    if run.test is None:
        return []
    everyone, rows = run.test["generalisation"], []
    for i in by_size(run.data["train"]):
        count, recall = int(everyone["support"][i] or 0), everyone["recall"][i]
        low, high = wilson(recall, count) if count and recall is not None else (None, None)
        name, train = run.data["classes"][i], run.data["train"][i]
        rows.append({"name": name, "train": train, "test": count, "recall": recall, "low": low, "high": high})
    return rows


def _site_rows(run: Run) -> list[dict[str, Any]]:
    """What each site's own predictor reaches; of many sites the quantiles."""
    if run.test is None:
        return []
    keys = ("balanced_accuracy", "accuracy", "macro_auc", "tail")
    sites = run.test["sites"]
    if crowded(sites):
        return [{"name": name, **row} for name, row in quantile_rows(sites, keys).items()]
    tested = {name: run.data["sites"][name]["test"]["images"] for name in sites}
    return [
        {"name": name, "images": tested[name], **{key: one.get(key) for key in keys}}
        for name, one in sites.items()
    ]


def absences(journal: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """Who gave no usable answer to what, why, and in which rounds (counted from 1)."""
    absent: dict[tuple[str, str, str], list[int]] = {}
    refused = set()
    for line in journal:
        if line["event"] == "rejected":
            refused.add((line["site"], line["question"], line["round"]))
            absent.setdefault((line["site"], line["question"], line["reason"]), []).append(line["round"])
        elif line["event"] == "missing":
            for site in line["sites"]:
                if (site, line["question"], line["round"]) not in refused:  # a rejected answer is missing too
                    absent.setdefault((site, line["question"], "no answer"), []).append(line["round"])
    if crowded(absent):
        return _absent_crowd(absent)
    return [
        {"site": site, "question": question, "reason": reason, "rounds": _spans(rounds)}
        for (site, question, reason), rounds in sorted(absent.items())
    ]


def _absent_crowd(absent: Mapping[tuple[str, str, str], Sequence[int]]) -> list[dict[str, Any]]:
    """The same with all sites in one row that gave no answer to a question for the same reason."""
    rows: dict[tuple[str, str], list[tuple[str, Sequence[int]]]] = {}
    for (site, question, reason), rounds in sorted(absent.items()):
        rows.setdefault((question, reason.replace(f"'{site}'", "…")), []).append((site, rounds))
    return [
        {
            "site": words.several([site for site, _ in members]),
            "question": question,
            "reason": reason,
            "rounds": _spans([n for _, rounds in members for n in rounds]),
        }
        for (question, reason), members in rows.items()
    ]


def _spans(numbers: Sequence[int]) -> str:
    """1, 2, 3, 7 → 1–3, 7"""
    spans: list[list[int]] = []
    for n in sorted(set(numbers)):
        if spans and n == spans[-1][1] + 1:
            spans[-1][1] = n
        else:
            spans.append([n, n])
    return ", ".join(str(a) if a == b else f"{a}–{b}" for a, b in spans)


# Several runs -----------------------------------------------------------------------------------------------


def _recalls(first: Run, every: Sequence[tuple[str, Sequence[Mapping[str, Any]]]]) -> Sheet:
    """Recall of every class, from the most frequent to the rarest."""
    order = by_size(first.data["train"])
    rows = [
        Row(label, tuple(Figure.of([row["recall"][i] for row in rows if row["recall"]]) for i in order))
        for label, rows in every
    ]
    heads = tuple(f"{first.data['classes'][i]} ({first.data['train'][i]:,})" for i in order)
    note = (
        "The global predictor on the union of all test sets; from the most frequent class to the "
        "rarest, training images in brackets."
    )
    return Sheet("Recall per class", Table(heads, tuple(rows)), note)


def _sites(first: Run, arms: words.Arms) -> Sheet:
    """What each site's own predictor reaches on its own test set."""
    sites = list(first.data["sites"])
    if crowded(sites):
        return _crowd(arms)
    rows = []
    for label, runs in arms:
        tests = [run.test["sites"] if run.test else {} for run in runs]
        own = [[(test.get(site) or {}).get("balanced_accuracy") for test in tests] for site in sites]
        cells = tuple(map(Figure.of, own))
        rows.append(Row(label, cells))
    heads = tuple(f"{site} ({first.data['sites'][site]['train']['images']:,})" for site in sites)
    note = "Balanced accuracy of each site's own predictor on its own test set; training images in brackets."
    note = f"{note} {words.DRAWN}" if words.drawn(arms) else note
    return Sheet("What each site gets", Table(heads, tuple(rows)), note)


def _crowd(arms: words.Arms) -> Sheet:
    """How the own predictors of many sites are spread."""
    rows = []
    for label, runs in arms:
        spreads = [
            quantiles(one.get("balanced_accuracy") for one in run.test["sites"].values() if one)
            for run in runs
            if run.test
        ]
        rows.append(Row(label, tuple(Figure.of([one[name] for one in spreads]) for name in QUANTILES)))
    note = (
        "Balanced accuracy of each site's own predictor on its own test set: its quantiles over the sites, "
        "mean over runs."
    )
    return Sheet("What each site gets", Table(tuple(QUANTILES), tuple(rows)), note)
