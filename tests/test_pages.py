"""What the documentation says of a run's files and events, its pictures and words; and the site opened from
a folder."""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.report.test_browser import Browser, browser

import equipoise
from equipoise.compare import compare, make_plan

__all__ = ["browser"]  # a fixture

ROOT = Path(__file__).resolve().parents[1]
DOCS = ROOT / "docs"
TINY: dict[str, dict[str, Any]] = {
    "data": {"kind": "phantom", "scale": 0.004, "image_size": 16},
    "partition": {"kind": "iid", "sites": 3},
    "train": {"rounds": 1, "batch_size": 8},
    "engine": {"device": "cpu"},
}
ODD = ("gone on with", "is put out", "made-up image", "made-up hospital", "stayed where they are")
"""phrases for which there are plainer or truer ones"""
FEDERATED = {"words.py"}
"""files that speak of real hospitals, whose images do stay where they are"""


# A run's files and events -----------------------------------------------------------------------------------


def rows(page: str, head: str) -> Iterator[list[str]]:
    """The rows of all tables of a page whose first column has this head."""
    inside = False
    for line in (DOCS / page).read_text().splitlines():
        cells = [cell.strip() for cell in line.strip("|").split("|")]
        inside = line.startswith("|") and (inside or cells[0] == head)
        if inside and cells[0] != head and not set(cells[0]) <= set("- "):
            yield cells


def named(text: str) -> set[str]:
    """What stands in backticks."""
    return {name.rstrip("/") for name in re.findall(r"`([^`]+)`", text)}


def test_every_file_of_a_run_is_on_the_page(tmp_path: Path) -> None:
    equipoise.run(TINY, tmp_path / "run")
    told = set().union(*(named(cells[0]) for cells in rows("run-folder.md", "file")))
    assert {path.name for path in (tmp_path / "run").iterdir()} <= told
    assert {"features.json", "timing.jsonl", "blueprint.json"} <= told


def test_every_event_of_a_run_and_of_a_comparison_is_on_the_page(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    told = {event: set(named(facts)) for event, facts, _ in list(rows("run-folder.md", "event"))[:6]}
    monkeypatch.setenv("EQUIPOISE_CACHE", str(tmp_path / "cache"))  # so that images are drawn
    seen: dict[str, set[str]] = {}

    def watch(event: str, facts: dict[str, Any]) -> None:
        seen.setdefault(event, set()).update(facts)

    equipoise.run(TINY, tmp_path / "run", watch=watch)
    assert {f"`{event}`" for event in seen} <= set(told)
    for event in ("data", "begin", "answer"):
        assert seen[event] == told[f"`{event}`"]
    assert {"round", "test"} <= seen["round"]
    others = {event: named(facts) for event, facts, _ in list(rows("run-folder.md", "event"))[6:]}
    seen.clear()
    arms = make_plan(TINY | {"exchange": {"min_sites": 4}}, ["fedavg"])
    compare(arms, tmp_path / "failing", 1, watch)
    compare(make_plan(TINY, ["fedavg"]), tmp_path / "fine", 1, watch)
    assert {f"`{event}`" for event in seen} == set(others)
    for event, facts in seen.items():
        assert facts - {"run", "event"} == others[f"`{event}`"]


# Pictures and words -----------------------------------------------------------------------------------------


def torn(picture: list[str]) -> list[str]:
    """What is wrong with the boxes of a picture."""
    width = max(map(len, picture))
    lines, found = [line.ljust(width) for line in picture], []
    for top, line in enumerate(lines):
        for corner in re.finditer("┌[^┌┐]*┐", line):
            left, right = corner.start(), corner.end() - 1
            for below in lines[top + 1 :]:
                if below[left] == "└":
                    found += [] if below[right] == "┘" else [below]
                    break
                if below[left] not in "│├┼┤" or below[right] not in "│├┼┤":
                    found.append(below)
    return found


def test_a_torn_box_is_seen() -> None:
    assert torn(["┌──┐", "│  │", "└──┘"]) == []
    assert torn(["┌──┐", "│   │", "└──┘"]) == ["│   │"]


def test_the_pictures_are_whole() -> None:
    pictures = 0
    for page in (*DOCS.glob("*.md"), ROOT / "ARCHITECTURE.md"):
        for block in re.findall(r"```text\n(.*?)```", page.read_text(), re.DOTALL):
            pictures += "┌" in block
            assert torn(block.splitlines()) == [], page.name
    assert pictures


def test_words_are_plain() -> None:
    pages = [page for page in DOCS.glob("*.md") if not page.name.startswith("own-")]
    files = [path for room in ("cli", "report", "reproduce", "compare") for path in folder(room)]
    for path in (*pages, *files):
        text = " ".join(path.read_text().lower().split())
        wrong = [phrase for phrase in ODD if phrase in text]
        assert not wrong or path.name in FEDERATED, (path.name, wrong)


def folder(room: str) -> list[Path]:
    home = Path(equipoise.__file__).parent / room
    return [path for path in home.rglob("*") if path.suffix in (".py", ".j2", ".toml")]


def test_every_table_of_results_is_said_to_be_something() -> None:
    told = [cells[1] for cells in rows("results/README.md", "table")]
    assert len(told) == len(set(told)) >= 9 and all(told)


# The site ---------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    made = tmp_path_factory.mktemp("site")
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--quiet", "--site-dir", str(made)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return made


@pytest.mark.slow
def test_the_site_asks_nothing_of_the_network(site: Path) -> None:
    made = {path.relative_to(site).as_posix() for path in site.rglob("*.html")}
    assert {"index.html", "choosing.html", "results/ham10000-sites.html"} <= made
    for page in made - {"404.html"}:
        text = (site / page).read_text()
        assert not re.search(r'<(?:script|link|img|iframe)[^>]+(?:src|href)="?(?:https?:)?//', text), (
            f"{page} fetches something"
        )
        assert '.py"' not in text and "](" not in re.sub(r"<(pre|code).*?</\1>", "", text, flags=re.DOTALL)


@pytest.mark.slow
@pytest.mark.parametrize("page", ["index.html", "results/fca.html"])
def test_search_works_in_a_site_that_is_a_folder(browser: Browser, site: Path, page: str) -> None:
    browser.open(site / page)
    browser.ask("document.querySelector('[data-md-component=search-query]').focus()")
    browser.call("Input.insertText", text="timing.jsonl")
    results = "[...document.querySelectorAll('.md-search-result__link')].map((one) => one.href)"
    found = browser.until(f"{results}.length && {results}")
    assert any(address.startswith((site / "run-folder.html").as_uri()) for address in found)
    assert browser.complaints() == []
    assert [address for address in browser.requests() if not address.startswith(("file:", "data:"))] == []
