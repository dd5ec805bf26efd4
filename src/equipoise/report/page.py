"""The pages: one run, or several compared. One file each, without a request to any network."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import tomli_w
from jinja2 import Environment, PackageLoader, StrictUndefined

from equipoise import __version__
from equipoise.report.card import write_card
from equipoise.report.chart import Series, lines
from equipoise.report.folder import FIGURES, Run, by_size, objective_name, percent, read_run, size, standing
from equipoise.server.checkpoint import write_atomic

PAGE = "report.html"

VIEWS = {
    "generalisation": "the global predictor on the union of all test sets",
    "specialisation": "each site's own predictor on its own test set, mean over sites",
    "average": "the mean of the two",
}


def write_report(folder: Path) -> Path:
    """The page of a finished run, into its folder, with the model card beside it."""
    run = read_run(folder)
    card = write_card(run)
    return _write(
        folder,
        "run.html.j2",
        run=run,
        config=tomli_w.dumps({key: value for key, value in run.config.items() if key != "base"}),
        objective=objective_name(run),
        started=_started(run),
        cards=_cards(run),
        card=card.read_text(),
        charts=[
            lines("balanced accuracy over rounds", _accuracy(run), percent=True),
            lines("training loss over rounds", _losses(run)),
        ],
        absences=absences(run.journal),
        traffic={key: sum(row[key] for row in run.history) for key in ("bytes_up", "bytes_down")},
        fingerprint=next((line["data"] for line in run.journal if "data" in line), None),
    )


def write_comparison(rows: Sequence[tuple[str, Path]], folder: Path) -> Path:
    """A page that puts runs on the same data side by side: (title, run folder) each, into `folder`."""
    runs = [(title, read_run(place)) for title, place in rows]
    standings = [(title, standing(run)) for title, run in runs]
    curves = {
        view: lines(
            f"{view}: balanced accuracy over rounds",
            [Series(title, _curve(run, "test", view)) for title, run in runs],
            percent=True,
        )
        for view in ("generalisation", "specialisation")
    }
    return _write(
        folder,
        "comparison.html.j2",
        runs=runs,
        run=runs[0][1],
        standings=standings,
        best={key: _best([one[key] for _, one in standings]) for key in standings[0][1]},
        links={title: place.relative_to(folder).as_posix() + f"/{PAGE}" for title, place in rows},
        curves=curves,
    )


def _write(folder: Path, template: str, **facts: Any) -> Path:
    pages = Environment(
        loader=PackageLoader("equipoise.report", "templates"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    pages.filters |= {"percent": percent, "size": size, "share": _share}
    facts |= {"by_size": by_size, "figures": FIGURES, "views": VIEWS, "version": __version__}
    path = folder / PAGE
    write_atomic(path, pages.get_template(template).render(facts).encode())
    return path


def _share(value: float | None) -> str:
    """A width for a bar."""
    return "0" if value is None else f"{100 * min(1.0, max(0.0, value)):.1f}"


def _best(values: Sequence[float | None]) -> float | None:
    return max((value for value in values if value is not None), default=None)


def _started(run: Run) -> str:
    return datetime.fromtimestamp(run.journal[0]["time"], UTC).strftime("%Y-%m-%d %H:%M UTC") if run.journal else "unknown"


def _cards(run: Run) -> list[tuple[str, str, str]]:
    """The key figures: (value, name, what it is)."""
    if run.test is None:
        return []
    cards = [
        (percent(run.test[view]["balanced_accuracy"]), view, f"balanced accuracy of {text}") for view, text in VIEWS.items()
    ]
    cards[2] = (cards[2][0], "average", "mean of the two balanced accuracies")
    everyone, worst = run.test["generalisation"], run.test["worst_site"]
    return [
        *cards,
        (percent(everyone["macro_auc"]), "macro AUC", "global predictor, mean over classes"),
        (percent(everyone["tail"]), "tail recall", "global predictor, mean over the rarest third of the classes"),
        (
            percent(worst["balanced_accuracy"]),
            "worst site",
            f"balanced accuracy at {worst['name'] or 'the worst site of each round'}",
        ),
    ]


def _curve(run: Run, split: str, view: str) -> list[tuple[int, float | None]]:
    return [(row["round"], row[split][view]["balanced_accuracy"]) for row in run.history if split in row]


def _accuracy(run: Run) -> list[Series]:
    return [
        Series("test, global", _curve(run, "test", "generalisation")),
        Series("test, own", _curve(run, "test", "specialisation")),
        Series("validation, global", _curve(run, "validation", "generalisation")),
    ]


def _losses(run: Run) -> list[Series]:
    """Every mean loss the sites reported, by question."""
    names = dict.fromkeys(key for row in run.history for key in row if key.endswith(".loss"))
    return [Series(name.replace(".", ": "), [(row["round"], row.get(name)) for row in run.history]) for name in names]


def absences(journal: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """Who gave no usable answer to what, why, and in which rounds (counted from 1)."""
    found: dict[tuple[str, str, str], list[int]] = {}
    refused = set()
    for line in journal:
        if line["event"] == "rejected":
            refused.add((line["site"], line["question"], line["round"]))
            found.setdefault((line["site"], line["question"], line["reason"]), []).append(line["round"] + 1)
        elif line["event"] == "missing":
            for site in line["sites"]:
                if (site, line["question"], line["round"]) not in refused:  # a rejected answer is missing too
                    found.setdefault((site, line["question"], "no answer"), []).append(line["round"] + 1)
    return [
        {"site": site, "question": question, "reason": reason, "rounds": _spans(rounds)}
        for (site, question, reason), rounds in sorted(found.items())
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
