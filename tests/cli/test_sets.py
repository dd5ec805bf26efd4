"""`equipoise data list` and `equipoise data check`."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from PIL import Image

from equipoise.data import SETS

CELLS = tuple(SETS["acevedo20"].facts.classes)


@pytest.fixture
def cells(tmp_path: Path) -> Path:
    """One blood cell of every class, in the layout of Acevedo-20."""
    for name in CELLS:
        folder = tmp_path / "pbc" / "PBC_dataset_normal_DIB" / name
        folder.mkdir(parents=True)
        Image.new("RGB", (12, 12), (90, 60, 30)).save(folder / "X_1.jpg")
    return tmp_path / "pbc"


def test_list_names_every_set(cli) -> None:
    done = cli("data", "list")
    assert done.code == 0
    for name, options in SETS.items():
        assert f" {name} " in done.out and options.facts.title in done.out
    facts = json.loads(cli("data", "list", "--json").out)
    assert [one["name"] for one in facts] == list(SETS)
    assert all(one["layout"] and one["home"] and one["citation"] and one["text"] for one in facts)


def test_check_shows_found_beside_published(cli, cells: Path) -> None:
    done = cli("data", "check", "acevedo20", cells)
    assert done.code == 3
    assert "1,218" in done.out and "17,092" in done.out
    assert "✗ images: 8 where 17,092 are published" in done.out
    found = cli("data", "check", "acevedo20", cells, "--json")
    assert found.code == 3 and found.err == ""
    facts = json.loads(found.out)
    assert facts["ok"] is False
    assert facts["classes"]["ig"] == {"found": 1, "published": 2895}


def test_check_of_a_whole_set_is_content(cli, cells: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from equipoise.data.sets import Counts

    monkeypatch.setattr(SETS["acevedo20"], "expected", lambda self: Counts(8, dict.fromkeys(CELLS, 1)))
    done = cli("data", "check", "acevedo20", cells)
    assert done.code == 0
    assert "is as published" in done.out


def test_check_names_what_is_missing(cli, cells: Path) -> None:
    (cells / "PBC_dataset_normal_DIB" / "ig").rename(cells / "away")
    done = cli("data", "check", "acevedo20", cells)
    assert done.code == 3
    assert "has no folder 'ig', which Acevedo-20 needs" in done.err
    assert json.loads(cli("data", "check", "acevedo20", cells, "--json").out)["exit_code"] == 3


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (("acevedo", "x"), "unknown data set 'acevedo': did you mean 'acevedo20'?"),
        (("csv", "x"), "unknown data set 'csv'"),
        (("rsna-ich", "x", "tsk=multi"), "did you mean 'task'?"),
        (("rsna-ich", "x", "stage=3"), "data.stage"),
        (("rsna-ich", "x", "stage"), "not of the form"),
    ],
)
def test_check_with_wrong_words(cli, words: tuple[str, ...], sentence: str) -> None:
    done = cli("data", "check", *words)
    assert done.code == 2
    assert sentence in done.err
