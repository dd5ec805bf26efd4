"""The model card: figures of the run, small numbers hidden, hostile names harmless."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from equipoise import run
from equipoise.config import Config
from equipoise.evaluate.scores import read_scores
from equipoise.evaluate.significance import interval, judge, wilson
from equipoise.keeping import read_text
from equipoise.report import read_run, write_report
from equipoise.report.card import blocks, bucket, model_card
from equipoise.report.folder import Run
from equipoise.run_folder import PLAN, RunFolder
from equipoise.running import code_hash
from equipoise.seeds import numpy_generator

EVIL = "a|b <script>"


@pytest.fixture(scope="module")
def done(tmp_path_factory: pytest.TempPathFactory) -> Run:
    """Two sites, 90 images of a class with a name that attacks and 6 of a rare one."""
    folder = tmp_path_factory.mktemp("card")
    draw = np.random.default_rng(0)
    rows = ["file,label,site,split"]
    for i in range(96):
        Image.fromarray(draw.integers(0, 256, (8, 8, 3), dtype=np.uint8)).save(folder / f"{i}.png")
        label = "rare" if i % 16 == 0 else EVIL if i % 2 else "other"
        rows.append(f"{i}.png,{label},{'north' if i < 60 else 'south'},{'test' if i % 3 == 0 else 'train'}")
    (folder / "table.csv").write_text("\n".join(rows) + "\n")
    table = {
        "base": str(folder),
        "data": {
            "kind": "csv",
            "path": "table.csv",
            "label": "label",
            "site": "site",
            "split": "split",
            "image_size": 8,
            "name": "ours",
        },
        "train": {"rounds": 2, "batch_size": 8},
    }
    result = run(table, folder / "run")
    write_report(result.folder)
    return read_run(result.folder)


def line(text: str, start: str) -> list[str]:
    """The cells of the one row that starts so."""
    (found,) = (row for row in text.splitlines() if row.startswith(f"| {start} |"))
    return [cell.strip() for cell in re.split(r"(?<!\\)\|", found)[1:-1]]


@pytest.mark.parametrize(
    ("count", "text"),
    [
        (0, "<10"),
        (9, "<10"),
        (10, "10–49"),
        (49, "10–49"),
        (50, "50–99"),
        (999, "500–999"),
        (5000, "5,000–9,999"),
        (10**6, "≥100,000"),
    ],
)
def test_counts_are_told_in_steps(count: int, text: str) -> None:
    assert bucket(count) == text


def test_the_card_has_the_figures_of_the_run_with_their_intervals(done: Run) -> None:
    text = model_card(done)
    assert read_text(done.folder / "model-card.md", "") == text
    everyone = done.test["generalisation"]
    scores = read_scores(done.folder / "scores", done.result["selected_rounds"])
    low, high = interval(judge(scores), numpy_generator(0, "card"))
    expected = f"{100 * everyone['balanced_accuracy']:.1f} % ({100 * low:.1f}–{100 * high:.1f})"
    assert line(text, "balanced accuracy")[1] == expected
    assert low <= everyone["balanced_accuracy"] <= high
    place = done.data["classes"].index("other")
    recall, count = everyone["recall"][place], everyone["support"][place]
    low, high = wilson(recall, count)
    row = next(row for row in text.splitlines() if row.startswith("| other |") and "%" in row)
    assert f"{100 * recall:.1f} % ({100 * low:.1f}–{100 * high:.1f})" in row
    assert f"calibration error of the global predictor: {100 * everyone['ece']:.1f} %" in text


def test_small_numbers_are_hidden(done: Run) -> None:
    text = model_card(done)
    rows = [row for row in text.splitlines() if row.startswith("| rare |")]
    assert rows == ["| rare | \\<10 |", "| rare | \\<10 | not reported for fewer than 10 |"]
    assert "Tested on fewer than 10 images of rare." in text
    counts = {
        n
        for site in done.data["sites"].values()
        for split in ("train", "test")
        for n in site[split]["counts"]
    }
    told = {int(n) for n in re.findall(r"\| (\d+) \|", text)}
    assert not told & counts


def test_names_cannot_break_out_of_their_cell(done: Run) -> None:
    text = model_card(done)
    assert EVIL not in text and "a\\|b \\<script\\>" in text
    page = (done.folder / "report.html").read_text()
    assert page.count("<script") == 1  # ours


def test_the_card_is_taken_apart_for_the_page(done: Run) -> None:
    found = list(blocks(model_card(done)))
    assert [rows[0][0] for kind, rows in found if kind == "h2"] == [
        "Model", "Data", "Performance", "Calibration", "Limits", "Identity",
    ]  # fmt: skip
    classes = next(rows for kind, rows in found if kind == "table" and rows[0][0] == "class")
    assert classes[0] == ["class", "training images"]
    assert [EVIL, bucket(done.data["train"][done.data["classes"].index(EVIL)])] in classes[1:]
    limits = next(rows for kind, rows in found if kind == "list")
    assert limits[0] == [
        "For research. Not a medical device: nobody has shown that using it helps a patient."
    ]
    assert {kind for kind, _ in found} == {"h1", "h2", "table", "list", "text"}


def test_identity_is_that_of_the_code_that_trained(done: Run) -> None:
    text = model_card(done)
    assert line(text, "code") == ["code", code_hash()]
    assert line(text, "final state") == ["final state", done.result["state_hash"]]
    at = next(i for i, one in enumerate(done.journal) if one["event"] == "started")
    later = {**done.journal[at], "event": "resumed", "code": "looked at it"}
    assert line(model_card(replace(done, journal=[*done.journal, later])), "code") == ["code", code_hash()]
    helped = {**later, "code": "helped"}
    assert line(
        model_card(replace(done, journal=[*done.journal[: at + 1], helped, *done.journal[at + 1 :]])), "code"
    ) == [
        "code",
        f"{code_hash()}, helped",
    ]


def test_the_licence_of_a_published_set_is_told(done: Run) -> None:
    config: dict[str, Any] = {**done.config, "data": {"kind": "ham10000"}}
    text = model_card(replace(done, config=config))
    assert "Licence: CC BY-NC 4.0" in text and "HAM10000" in text
    assert "for the sites to say" in model_card(done)


def test_without_scores_the_card_says_why_there_is_no_interval(
    tiny: Callable[..., Config], tmp_path: Path
) -> None:
    result = run(tiny(evaluate={"exact": False}), tmp_path)
    write_report(result.folder)
    text = (tmp_path / "model-card.md").read_text()
    assert "the scores of single images, which were not kept" in text
    assert re.fullmatch(r"[\d.]+ %", line(text, "balanced accuracy")[1])
    assert "Generated images" in text and "says with confidence" not in text


def test_a_simulation_says_what_it_is_and_hospitals_what_they_are(done: Run, tmp_path: Path) -> None:
    assert line(model_card(done), "method")[1].endswith("(federated; simulated on one machine)")
    RunFolder(tmp_path).write(PLAN, {})
    assert line(model_card(replace(done, folder=tmp_path)), "method")[1].endswith(
        "(federated; images stayed at their sites)"
    )


def test_a_run_without_rounds_has_a_card(tiny: Callable[..., Config], tmp_path: Path) -> None:
    run(tiny(train={"rounds": 0}), tmp_path)
    write_report(tmp_path)
    assert "No round was tested." in (tmp_path / "model-card.md").read_text()
