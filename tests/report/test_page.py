"""The page of a real run over images with hostile names, and the comparison of two."""

from __future__ import annotations

import json
import shutil
from html.parser import HTMLParser
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from equipoise import run
from equipoise.errors import StorageError
from equipoise.report import census, read_run, standing, write_comparison, write_report
from equipoise.report.page import absences
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
        self.links += [value or "" for name, value in attrs if name in ("src", "href", "xlink:href", "data", "action")]
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
    """FedAvg and FCA on 40 images of two classes at two sites, one class and one site with a name that attacks."""
    folder = tmp_path_factory.mktemp("runs")
    draw = np.random.default_rng(0)
    rows = ["file,label,site"]
    for i in range(40):
        Image.fromarray(draw.integers(0, 256, (8, 8, 3), dtype=np.uint8)).save(folder / f"{i}.png")
        rows.append(f"{i}.png,{EVIL if i % 4 == 0 else 'plain'},{SITE if i % 2 else 'north'}")
    (folder / "table.csv").write_text("\n".join(rows) + "\n")
    table = {
        "base": str(folder),
        "data": {"kind": "csv", "path": "table.csv", "label": "label", "site": "site", "image_size": 8, "name": "<i>name</i>"},
        "partition": {"kind": "column"},
        "train": {"rounds": 2, "batch_size": 8},
    }
    return {name: run({**table, "method": {"name": name}}, folder / name) for name in ("fedavg", "fca")}


def test_the_page_is_whole_and_loads_nothing(runs) -> None:
    path = write_report(runs["fca"].folder)
    assert path == runs["fca"].folder / "report.html"
    page = Page(path.read_text())
    assert page.open == []
    assert page.links == []
    assert not {"script", "img", "link", "iframe", "object"} & set(page.tags)
    assert page.tags.count("svg") == 2 and page.tags.count("title") == 3


def test_hostile_names_are_shown_as_text(runs) -> None:
    text = write_report(runs["fca"].folder).read_text()
    assert "<script" not in text and "<img" not in text and "<i>name" not in text
    page = Page(text)
    assert EVIL in page.text and SITE in page.text and "<i>name</i>" in page.text


def test_the_page_holds_the_figures_of_the_run(runs) -> None:
    done = runs["fca"]
    page = Page(write_report(done.folder).read_text())
    test = done.metrics["test"]
    for view in ("generalisation", "specialisation", "average"):
        assert f"{100 * test[view]['balanced_accuracy']:.1f} %" in page.text
    assert done.state_hash in page.text
    assert "own.own" in page.text and "lambda_own = 3.0" in page.text and "balanced_softmax" in page.text
    assert "Every site answered" in page.text
    assert "delta" in page.text and "the weighted mean" in page.text
    assert "base =" not in page.text  # where it ran is nobody's business


def test_the_page_can_be_made_again_without_the_data(runs, tmp_path) -> None:
    first = write_report(runs["fedavg"].folder).read_text()
    copy = Path(shutil.copytree(runs["fedavg"].folder, tmp_path / "copy"))
    config = (copy / "config.toml").read_text()
    (copy / "config.toml").write_text(config.replace('path = "table.csv"', 'path = "gone.csv"'))
    assert write_report(copy).read_text() == first.replace("path = &#34;table.csv&#34;", "path = &#34;gone.csv&#34;")


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

    stuff = material(resolve({"data": {"scale": 0.01, "image_size": 8, "task": "multi"}}))
    facts = census(stuff)
    rows = np.concatenate([holding.train for holding in stuff.holdings])
    assert facts["train"] == stuff.samples.labels[rows].sum(0).astype(int).tolist()
    assert facts["task"] == "multi"


def test_a_comparison_marks_the_best_and_links_the_runs(runs) -> None:
    for done in runs.values():
        write_report(done.folder)
    folder = runs["fca"].folder.parent
    rows = [("FedAvg <1>", runs["fedavg"].folder), ("FCA", runs["fca"].folder)]
    path = write_comparison(rows, folder)
    text = path.read_text()
    page = Page(text)
    assert page.open == []
    assert page.links == ["fedavg/report.html", "fca/report.html"]
    assert "FedAvg <1>" in page.text and EVIL in page.text and "<script" not in text
    best = max(standing(read_run(place))["average"] for _, place in rows)
    assert f'<td class="n best">{100 * best:.1f} %</td>' in text


def test_standing_takes_the_figures_from_the_metrics(runs) -> None:
    test = runs["fca"].metrics["test"]
    assert standing(read_run(runs["fca"].folder)) == {
        "generalisation": test["generalisation"]["balanced_accuracy"],
        "specialisation": test["specialisation"]["balanced_accuracy"],
        "average": test["average"]["balanced_accuracy"],
        "tail": test["generalisation"]["tail"],
        "macro_auc": test["generalisation"]["macro_auc"],
    }


def test_unfinished_and_damaged_folders_are_refused(runs, tmp_path) -> None:
    copy = Path(shutil.copytree(runs["fedavg"].folder, tmp_path / "copy"))
    (copy / "metrics.jsonl").write_text('{"round": 1')
    with pytest.raises(StorageError, match="is damaged"):
        write_report(copy)
    (copy / "result.json").unlink()
    with pytest.raises(StorageError, match=r"no result\.json: finish the run"):
        write_report(copy)


def test_absences_name_who_why_and_when() -> None:
    journal = [
        {"event": "started"},
        {"event": "rejected", "site": "a", "round": 0, "question": "train", "reason": "not finite"},
        {"event": "missing", "sites": ["a", "b"], "round": 0, "question": "train"},
        *[{"event": "missing", "sites": ["b"], "round": i, "question": "train"} for i in (1, 2, 6)],
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
    assert json.loads((folder / "data.json").read_text()) == read_run(folder).data
