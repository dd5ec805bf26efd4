"""The page of a real run over images with hostile names, and the comparison of two."""

from __future__ import annotations

import base64
import hashlib
import json
import math
import re
import shutil
from collections.abc import Callable
from html.parser import HTMLParser
from pathlib import Path

import numpy as np
import pytest
from PIL import Image
from tests import doctored

from equipoise import run
from equipoise.compare import Arm, Failure, compare, conclude, make_plan, page
from equipoise.config import Config
from equipoise.errors import StorageError
from equipoise.keeping import read_text
from equipoise.partition import Census
from equipoise.report import read_run, standing, write_report
from equipoise.report.page import absences, changed_options
from equipoise.report.table import Figure
from equipoise.running import Result

EVIL = "</td><script>alert(1)</script>"
SITE = "<img src=x onerror=alert(2)>"
VOID = {"meta", "br", "img", "link", "input", "hr"}


class Page(HTMLParser):
    """Tags opened and closed in order, what is linked, and all text."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.tags: list[str] = []
        self.links: list[str] = []
        self.text = ""
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.links += [
            value or "" for name, value in attrs if name in ("src", "href", "xlink:href", "data", "action")
        ]
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.text += data


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Result]:
    """FedAvg and FCA on 40 images of two classes at two sites, one class and one site with a name that
    attacks."""
    folder = tmp_path_factory.mktemp("runs")
    draw = np.random.default_rng(0)
    rows = ["file,label,site"]
    for i in range(40):
        Image.fromarray(draw.integers(0, 256, (8, 8, 3), dtype=np.uint8)).save(folder / f"{i}.png")
        rows.append(f"{i}.png,{EVIL if i % 4 == 0 else 'plain'},{SITE if i % 2 else 'north'}")
    (folder / "table.csv").write_text("\n".join(rows) + "\n")
    table = {
        "base": str(folder),
        "data": {
            "kind": "csv",
            "path": "table.csv",
            "label": "label",
            "site": "site",
            "image_size": 8,
            "name": "<i>name</i>",
        },
        "partition": {"kind": "column"},
        "train": {"rounds": 2, "batch_size": 8},
    }
    return {name: run({**table, "method": {"name": name}}, folder / name) for name in ("fedavg", "fca")}


def test_the_page_is_whole_and_loads_nothing(runs) -> None:
    path = write_report(runs["fca"].folder)
    assert path == runs["fca"].folder / "report.html"
    page = Page(path.read_text())
    assert page.open == []
    assert page.links and all(link.startswith("#") for link in page.links)
    assert not {"img", "link", "iframe", "object"} & set(page.tags)
    assert page.tags.count("script") == 1 and page.tags.count("svg") >= 6


def test_only_our_script_may_run(runs) -> None:
    text = write_report(runs["fca"].folder).read_text()
    (script,) = re.findall(r"<script>(.*?)</script>", text, re.DOTALL)
    mark = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    (policy,) = re.findall(r'http-equiv="Content-Security-Policy" content="([^"]*)"', text)
    rules = dict(rule.strip().split(" ", 1) for rule in policy.split(";"))
    assert rules["default-src"] == "'none'" and rules["script-src"] == f"'sha256-{mark}'"


def test_hostile_names_are_shown_as_text(runs) -> None:
    text = write_report(runs["fca"].folder).read_text()
    assert "<script>alert" not in text and "<img" not in text and "<i>name" not in text
    page = Page(text)
    assert EVIL in page.text and SITE in page.text and "<i>name</i>" in page.text


def test_only_options_that_were_changed_are_told(runs, tmp_path: Path) -> None:
    assert changed_options(read_run(runs["fca"].folder)) == "fca"
    copy = Path(shutil.copytree(runs["fca"].folder, tmp_path / "copy"))
    doctored.replace(copy / "config.toml", ("lambda_own = 3.0", "lambda_own = 2.0"))
    assert changed_options(read_run(copy)) == "fca, lambda_own = 2.0"
    doctored.replace(
        copy / "config.toml",
        ("lambda_own = 2.0", "lambda_own = 3.0"),
        ('name = "fca"', 'name = "mine.py:Mine"'),
    )
    told = changed_options(
        read_run(copy)
    )  # whose defaults only its own code knows, and a page runs no one's code
    assert told.startswith("mine.py:Mine, ") and "lambda_own = 3.0" in told


def test_the_page_holds_the_figures_of_the_run(runs) -> None:
    done = runs["fca"]
    page = Page(write_report(done.folder).read_text())
    test = done.metrics["test"]
    for view in ("generalisation", "specialisation", "average"):
        assert f"{100 * test[view]['balanced_accuracy']:.1f} %" in page.text
    assert done.state_hash in page.text
    assert "own.own" in page.text and "lambda_own = 3.0" in page.text and "balanced_softmax" in page.text
    assert "Model card" in page.text and "Not a medical device" in page.text
    assert "Every site answered" in page.text
    assert "delta" in page.text and "the weighted mean" in page.text
    assert "base =" not in page.text  # where it ran is nobody's business


def test_the_page_can_be_made_again_without_the_data(runs, tmp_path) -> None:
    first = read_text(write_report(runs["fedavg"].folder), "")
    copy = Path(shutil.copytree(runs["fedavg"].folder, tmp_path / "copy"))
    doctored.replace(copy / "config.toml", ('path = "table.csv"', 'path = "gone.csv"'))
    assert read_text(write_report(copy), "") == first.replace(
        "path = &#34;table.csv&#34;", "path = &#34;gone.csv&#34;"
    )


def test_the_census_adds_up(runs) -> None:
    data = read_run(runs["fedavg"].folder).data
    assert data["classes"] == [EVIL, "plain"]
    assert data["images"] == 40
    assert sum(site[split]["images"] for site in data["sites"].values() for split in data["splits"]) == 40
    assert data["sites"][SITE]["train"]["counts"][0] == 0  # odd rows are never a multiple of four
    assert data["imbalance"] == data["train"][1] / data["train"][0]


def test_a_multi_label_census_counts_positives() -> None:
    from equipoise.config import resolve
    from equipoise.setup import material

    dataset = material(resolve({"data": {"scale": 0.01, "image_size": 8, "task": "multi"}}))
    facts = dataset.facts.table()
    rows = np.concatenate([holding.train for holding in dataset.holdings])
    assert facts["train"] == dataset.samples.labels[rows].sum(0).astype(int).tolist()
    assert facts["task"] == "multi"


@pytest.fixture(scope="module")
def compared(tiny: Callable[..., Config], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """FedAvg, training alone and an arm of a hostile name, two seeds each; one run failed."""
    folder = tmp_path_factory.mktemp("compared")
    table = {key: value for key, value in tiny().table().items() if key not in ("base", "method")}
    table["train"]["rounds"] = 1
    arms = [Arm(EVIL, (("method.name", "fedavg"), ("train.lr", 0.01)))]
    plan = make_plan(table, ["fedavg", "local"], seeds=(0, 1), arms=arms)
    for job in plan.jobs[:-1]:
        run(job.config, folder / job.name)
    conclude(plan, folder, [Failure(plan.jobs[-1].name, "<b>oh</b>", 1)])
    return folder


def test_a_comparison_ranks_tests_links_and_names_failures(compared: Path) -> None:
    text = (compared / "report.html").read_text()
    shown = Page(text)
    assert shown.open == [] and "<script>alert" not in text and "<b>oh" not in text
    facts = json.loads((compared / "comparison.json").read_text())
    folders = [one["folder"] for arm in facts["arms"].values() for one in arm["runs"]]
    assert len(folders) == 5
    assert [link for link in shown.links if not link.startswith("#")] == [
        f"{folder}/report.html" for folder in folders
    ]
    assert EVIL in shown.text and "<b>oh</b>" in shown.text and "1 of 6 failed" in shown.text
    figures = {
        label: arm["figures"]["generalisation"]["balanced_accuracy"] for label, arm in facts["arms"].items()
    }
    order = sorted(
        {round(100 * one["mean"], 1): str(Figure(**one)) for one in figures.values()}.items(), reverse=True
    )
    assert f'<td class="n best">{order[0][1]}</td>' in text
    if len(order) > 1:
        assert f'<td class="n second">{order[1][1]}</td>' in text
    p = facts["versus"]["local"]["holm"]["t"]
    assert f'<td class="n">{p:.3f}</td>' in text


def test_recall_per_class_is_the_mean_over_runs(compared: Path) -> None:
    facts = json.loads((compared / "comparison.json").read_text())
    data = read_run(compared / "local/0").data
    common = max(range(len(data["train"])), key=lambda i: data["train"][i])
    values = [one["recall"][common] for one in facts["arms"]["local"]["runs"]]
    mean = sum(values) / 2
    spread = math.sqrt(sum((value - mean) ** 2 for value in values))
    text = (compared / "report.html").read_text()
    section = text[text.index("<h2>Recall per class</h2>") :]
    assert f"{data['classes'][common]} ({data['train'][common]:,})" in section
    row = next(line for line in section.splitlines() if '<th scope="row">local</th>' in line)
    first = re.search(r'<td class="n[^"]*">([^<]*)</td>', row)
    assert first is not None and first[1] == f"{100 * mean:.1f} ± {100 * spread:.1f}"


def test_the_page_of_a_comparison_can_be_made_again(compared: Path, tmp_path: Path) -> None:
    copy = Path(shutil.copytree(compared, tmp_path / "copy"))
    (copy / "report.html").unlink()
    assert page(copy).read_text() == (compared / "report.html").read_text()
    (copy / "comparison.json").write_text("{")
    with pytest.raises(StorageError, match="is damaged or was changed: start the comparison again"):
        page(copy)


def test_a_comparison_in_which_every_run_failed_has_a_page(
    tiny: Callable[..., Config], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    table = {key: value for key, value in tiny().table().items() if key != "base"}
    plan = make_plan(table, ["fedavg"])
    monkeypatch.setattr("equipoise.compare.summary.race", lambda *given: [Failure("fedavg/0", "oh no", 1)])
    compare(plan, tmp_path)
    shown = Page((tmp_path / "report.html").read_text())
    assert "Nothing: every run failed" in shown.text and "oh no" in shown.text and shown.open == []


def test_standing_takes_the_figures_from_the_metrics(runs) -> None:
    test = runs["fca"].metrics["test"]
    assert standing(read_run(runs["fca"].folder)) == {
        "generalisation": test["generalisation"]["balanced_accuracy"],
        "specialisation": test["specialisation"]["balanced_accuracy"],
        "average": test["average"]["balanced_accuracy"],
        "tail": test["generalisation"]["tail"],
        "macro_auc": test["generalisation"]["macro_auc"],
    }


def test_an_unfinished_run_has_a_page_of_what_is_known(runs, tmp_path: Path) -> None:
    copy = Path(shutil.copytree(runs["fca"].folder, tmp_path / "copy"))
    rows = (copy / "metrics.jsonl").read_text().splitlines(keepends=True)
    for name in ("result.json", "model-card.md"):
        (copy / name).unlink(missing_ok=True)
    (copy / "metrics.jsonl").write_text(rows[0] + rows[1][:40])  # the second is being written
    text = write_report(copy, live=True).read_text()
    shown = Page(text)
    assert 'data-live="5"' in text and shown.open == []
    assert "Round 1 of 2: not finished" in shown.text and "from round 1" in shown.text
    value = json.loads(rows[0])["test"]["generalisation"]["balanced_accuracy"]
    assert f"{100 * value:.1f} %" in shown.text
    assert "not final yet" in shown.text and not (copy / "model-card.md").exists()
    assert "data-live" not in write_report(copy).read_text().partition("<style>")[0]
    for name in ("metrics.jsonl", "journal.jsonl"):  # a run that has only just begun
        (copy / name).unlink()
    shown = Page(write_report(copy, live=True).read_text())
    assert "Round 0 of 2: not finished" in shown.text and "No round has been evaluated yet" in shown.text


def test_a_run_that_stopped_says_why(runs, tmp_path: Path) -> None:
    from equipoise.server import Journal

    copy = Path(shutil.copytree(runs["fca"].folder, tmp_path / "copy"))
    (copy / "result.json").unlink()
    journal = Journal(copy / "journal.jsonl")
    journal.write("stopped", reason="too few sites")
    journal.close()
    assert "It stopped: too few sites." in Page(write_report(copy).read_text()).text


def test_folders_that_are_damaged_or_hold_no_run_are_refused(runs, tmp_path: Path) -> None:
    copy = Path(shutil.copytree(runs["fedavg"].folder, tmp_path / "copy"))
    (copy / "metrics.jsonl").write_text('{"round": 1')
    with pytest.raises(StorageError, match=r"metrics\.jsonl has not the rows the run wrote"):
        write_report(copy)
    (copy / "metrics.jsonl").unlink()
    with pytest.raises(StorageError, match=r"metrics\.jsonl has not the rows the run wrote"):
        write_report(copy)
    (copy / "result.json").unlink()
    (copy / "data.json").unlink()
    with pytest.raises(StorageError, match="nothing is known of its data yet"):
        write_report(copy)
    with pytest.raises(StorageError, match=r"is not a run folder: it has no config\.toml"):
        write_report(tmp_path)


def test_absences_name_who_why_and_when() -> None:
    journal = [
        {"event": "started"},
        {"event": "rejected", "site": "a", "round": 1, "question": "train", "reason": "not finite"},
        {"event": "missing", "sites": ["a", "b"], "round": 1, "question": "train"},
        *[{"event": "missing", "sites": ["b"], "round": i, "question": "train"} for i in (2, 3, 7)],
    ]
    assert absences(journal) == [
        {"site": "a", "question": "train", "reason": "not finite", "rounds": "1"},
        {"site": "b", "question": "train", "reason": "no answer", "rounds": "1–3, 7"},
    ]


def test_absences_are_on_the_page(runs, tmp_path) -> None:
    from equipoise.server import Journal

    copy = Path(shutil.copytree(runs["fedavg"].folder, tmp_path / "copy"))
    journal = Journal(copy / "journal.jsonl")
    journal.write("missing", round=1, question="train", sites=["north"])
    journal.close()
    page = Page(write_report(copy).read_text())
    assert "no answer" in page.text and "Every site answered" not in page.text


def test_data_json_is_whole_json(runs) -> None:
    folder = runs["fedavg"].folder
    write_report(folder)
    assert json.loads((folder / "data.json").read_text()).keys() == {*Census.model_fields, "sha256"}
