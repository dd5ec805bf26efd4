"""The verb `report`, and `--live`: a page of whatever is in a folder, again and again while a run goes on."""

from __future__ import annotations

import json
import shutil
import threading
import time
from pathlib import Path

import pytest

from equipoise import run
from equipoise.cli import live
from equipoise.compare import conclude, make_plan
from equipoise.config import load
from equipoise.keeping import write_atomic, write_json


@pytest.fixture(scope="module")
def done(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A finished run of two rounds."""
    folder = tmp_path_factory.mktemp("done")
    table = {
        "data": {"scale": 0.004, "image_size": 16},
        "partition": {"kind": "iid", "sites": 3},
        "train": {"rounds": 2, "batch_size": 8},
    }
    return run(table, folder / "run").folder


def shown(folder: Path) -> str:
    """The page up to its style, and its banner."""
    text = (folder / "report.html").read_text()
    return text.partition("<style>")[0] + text.partition("</header>")[2]


def test_a_run_and_an_unfinished_one(cli, done: Path, tmp_path: Path) -> None:
    told = cli("report", done)
    assert (told.code, told.out) == (0, f"{done}/report.html\n")
    assert "not finished" not in shown(done)
    copy = Path(shutil.copytree(done, tmp_path / "copy"))
    (copy / "result.json").unlink()
    (copy / "report.html").unlink()
    told = cli("report", copy, "--json")
    assert (told.code, told.err) == (0, "") and json.loads(told.out) == {"report": f"{copy}/report.html"}
    assert "Round 2 of 2: not finished" in shown(copy) and "data-live" not in shown(copy)


def test_a_comparison_and_a_table_of_a_paper(cli, tiny: Path) -> None:
    plan = make_plan(load(tiny) | {"train": {"rounds": 1, "batch_size": 16}}, ["fedavg"])
    for job in plan.jobs:
        run(job.config, Path("out") / job.name)
    conclude(plan, Path("out"))
    before = Path("out/report.html").read_text()
    Path("out/report.html").unlink()
    assert cli("report", "out").out == "out/report.html\n"
    assert Path("out/report.html").read_text() == before
    cell = {"ours": 41.5, "ours_std": None, "paper": 40.0, "paper_std": 1.5, "difference": 1.5}
    facts = {
        "title": "skin <lesions>",
        "source": "Table 4",
        "runs": 1,
        "remarks": ["fewer rounds"],
        "columns": ["S bACC"],
        "rows": {"fedavg": {"runs": 1, "cells": {"S bACC": cell}}},
    }
    write_json(Path("out/reproduction.json"), facts)
    cli("report", "out")
    page = Path("out/report.html").read_text()
    assert page.index("Beside the paper: skin &lt;lesions&gt;") < page.index("<h2>Result</h2>")
    assert (
        '<td class="n">41.5</td><td class="n">40.0 ± 1.5</td><td class="n">+1.5</td>' in page
        and "fewer rounds." in page
    )


def test_what_has_no_page(cli, tmp_path: Path) -> None:
    told = cli("report", tmp_path / "nowhere")
    assert told.code == 8 and "has no config.toml and no comparison.json" in told.err
    assert cli("report", tmp_path / "nowhere", "--live").code == 8


def test_a_page_can_be_opened(cli, done: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    opened: list[str] = []
    monkeypatch.setattr("webbrowser.open", opened.append)
    cli("report", done)
    assert opened == []
    cli("report", done, "--open")
    assert opened == [(done / "report.html").as_uri()]


def test_a_live_run_writes_its_page_at_the_start_and_after_every_evaluated_round(
    cli, tiny: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pages: list[str] = []
    write = live.write_report

    def noted(folder: Path, live: bool = False) -> Path:
        path = write(folder, live)
        pages.append(shown(folder))
        return path

    monkeypatch.setattr(live, "write_report", noted)
    told = cli("run", tiny, "train.rounds=3", "evaluate.every=2", "--live", "--out", "out")
    assert told.code == 0 and "out/report.html follows the run" in told.err
    assert [text.partition("<h2>Round ")[2][:6] for text in pages] == ["0 of 3", "2 of 3", "3 of 3"]
    assert all('data-live="5"' in text for text in pages)
    assert "not finished" not in shown(Path("out")) and "data-live" not in shown(Path("out"))


def test_a_live_run_that_is_broken_off_leaves_a_page_that_waits_no_longer(
    cli, tiny: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(*given: object, **more: object) -> object:
        raise KeyboardInterrupt

    monkeypatch.setattr("equipoise.running.Federation.run", broken)
    told = cli("run", tiny, "--live", "--out", "out")
    assert told.code == 130 and "equipoise resume out" in told.err
    assert "Round 0 of 2: not finished" in shown(Path("out")) and "data-live" not in shown(Path("out"))


def test_a_page_that_cannot_be_written_does_not_end_the_run(
    cli, tiny: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(folder: Path, live: bool = False) -> Path:
        raise ValueError("no ink")

    monkeypatch.setattr(live, "write_report", broken)
    told = cli("run", tiny, "--live", "--out", "out")
    assert told.code == 0 and "the live page cannot be written: no ink" in told.err
    assert Path("out/report.html").is_file()


def test_a_run_elsewhere_is_followed_until_it_is_finished(
    cli, done: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(live, "LOOK", 0.01)
    copy = Path(shutil.copytree(done, tmp_path / "copy"))
    rows, result = (
        (copy / "metrics.jsonl").read_text().splitlines(keepends=True),
        (copy / "result.json").read_bytes(),
    )
    (copy / "result.json").unlink()
    (copy / "metrics.jsonl").write_text(rows[0])
    seen: list[str] = []

    def until(text: str) -> None:
        end = time.monotonic() + 60
        while text not in shown(copy) or "data-live" not in shown(copy):
            assert time.monotonic() < end, "it did not happen"
            time.sleep(0.01)
        seen.append(text)

    def train() -> None:
        until("Round 1 of 2: not finished")
        write_atomic(copy / "metrics.jsonl", "".join(rows).encode())  # as a run does: never half a file
        until("Round 2 of 2: not finished")
        write_atomic(copy / "result.json", result)

    thread = threading.Thread(target=train, daemon=True)
    live.write_page(copy)
    thread.start()
    told = cli("report", copy, "--live")
    thread.join()
    assert told.code == 0 and len(seen) == 2 and "Ctrl-C ends" in told.err
    assert "not finished" not in shown(copy) and "data-live" not in shown(copy)


def test_a_page_that_is_no_longer_followed_waits_no_longer(
    cli, done: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def tired(seconds: float) -> None:
        assert "data-live" in shown(copy)
        raise KeyboardInterrupt

    copy = Path(shutil.copytree(done, tmp_path / "copy"))
    (copy / "result.json").unlink()
    monkeypatch.setattr(live.time, "sleep", tired)
    told = cli("report", copy, "--live")
    assert told.code == 130 and f"equipoise report {copy} --live" in told.err
    assert "Round 2 of 2: not finished" in shown(copy) and "data-live" not in shown(copy)
