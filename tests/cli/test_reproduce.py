"""The verb `reproduce`: the list, a table beside the paper's, and what is refused."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
from tests import doctored

from equipoise.cli.show.tables import rough
from equipoise.reproduce import cost, find, names

PHANTOM = '[data]\nkind = "phantom"\nscale = 0.004\nimage_size = 16\n[partition]\nkind = "iid"\nsites = 3\n'


@pytest.fixture
def phantom(tmp_path: Path) -> Path:
    path = tmp_path / "phantom.toml"
    path.write_text(PHANTOM)
    return path


def test_the_list_for_people_and_for_programs(cli, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cost, "pace", lambda net, size: 1e-6)
    told = cli("reproduce", "--list")
    assert told.code == 0, told.err
    assert "table4" in told.out and "fed-isic2019" in told.out and "estimate for one core" in told.out
    found = json.loads(cli("reproduce", "--list", "--json").out)
    assert {"table", "rows", "data", "estimated_seconds"} <= set(found[0]) and len(found) > 40
    assert [one["table"] for one in json.loads(cli("reproduce", "fca-table4", "--list", "--json").out)] == [
        "fca-table4"
    ]


@pytest.mark.parametrize("width", [80, 120])
def test_the_list_is_short_and_breaks_no_word(cli, monkeypatch: pytest.MonkeyPatch, width: int) -> None:
    monkeypatch.setattr(cost, "pace", lambda net, size: 1e-6)
    monkeypatch.setenv("COLUMNS", str(width))
    papers, every = cli("reproduce", "--list").out, names()
    assert len(papers.splitlines()) < 60
    for paper in ("fca", "fediic", "fedmas", "fedmlp", "fedsdc"):
        tables = cli("reproduce", paper, "--list").out
        for name in every:
            if name.startswith(f"{paper}-"):
                assert f"{name} " in tables and re.search(rf"\b{name.removeprefix(paper + '-')}\b", papers)
                assert set(find(name).recipe.title.split()) <= set(tables.split())
    one = cli("reproduce", "fca-table4", "--list").out
    assert (
        "63.3 ± 0.5" in one and "FedAvg BSM" in one and "the released notebooks swap" in " ".join(one.split())
    )
    assert all(len(line) <= width for text in (papers, tables, one) for line in text.splitlines())


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(7, "7 s"), (150, "2.5 min"), (3500, "58 min"), (4.2 * 3600, "4.2 h"), (86400 * 1234, "1,200 days")],
)
def test_an_estimate_has_two_digits(seconds: float, text: str) -> None:
    assert rough(seconds) == text


@pytest.mark.slow
def test_a_table_for_people_and_for_programs(cli, phantom: Path) -> None:
    words = (
        "reproduce",
        "fedsdc-table2",
        "train.rounds=1",
        "--data",
        phantom,
        "--scale",
        "small",
        "--rows",
        "M3 shuffle",
    )
    done = cli(*words)
    assert done.code == 0, done.err
    assert "Small scale" in done.out and "(66.3 ± 1.7)" in done.out
    assert "converged" in done.out and "†: still moving" in done.out
    facts = json.loads(cli(*words, "--json").out)
    assert facts == doctored.table(Path("runs/fedsdc-table2-small/reproduction.json"))
    assert list(facts["rows"]) == ["M3 shuffle"]


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (["fca-tabel4"], "did you mean 'fca-table4'"),
        (["fca-table4"], "give --data ROOT"),
        (["fca-table4", "--scale", "smal"], "did you mean 'small'"),
        (["fca-table4", "--data", "phantom.toml"], "ImageNet weights of EfficientNet-B0"),
        (["fca-table4", "--data", "phantom.toml", "--rows", "FCB"], "unknown row 'FCB'"),
    ],
)
def test_what_is_refused(cli, phantom: Path, words: list[str], expected: str) -> None:
    done = cli("reproduce", *words)
    assert done.code == 2 and expected in done.err and len(done.err.splitlines()) == 1
