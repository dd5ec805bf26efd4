"""The configs that come along, in a checkout and in a wheel."""

from __future__ import annotations

import json
import tomllib
from pathlib import Path

import pytest

from equipoise.cli.app import main
from equipoise.cli.verbs import recipes
from equipoise.config import resolve

ROOT = Path(__file__).resolve().parents[2]


def equipoise(capsys: pytest.CaptureFixture[str], *words: object) -> tuple[int, str, str]:
    with pytest.raises(SystemExit) as end:
        main([str(word) for word in words])
    text = capsys.readouterr()
    return int(str(end.value.code)), text.out, text.err


def test_all_files_are_listed_and_say_what_they_are(capsys: pytest.CaptureFixture[str]) -> None:
    code, out, _ = equipoise(capsys, "recipes", "list", "--json")
    found = json.loads(out)
    files = {
        path.relative_to(ROOT / "recipes").with_suffix("").as_posix()
        for path in ROOT.glob("recipes/**/*.toml")
    }
    assert code == 0 and set(found) == files and all(len(text) > 10 for text in found.values())
    assert equipoise(capsys, "recipes") == equipoise(capsys, "recipes", "list")


def test_a_copy_is_the_same_file_and_replaces_none(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    code, out, _ = equipoise(capsys, "recipes", "copy", "phantom", tmp_path / "new")
    copied = tmp_path / "new" / "phantom.toml"
    assert code == 0 and str(copied) in out
    assert copied.read_bytes() == (ROOT / "recipes" / "phantom.toml").read_bytes()
    assert resolve(tomllib.loads(copied.read_text())).train.rounds > 0
    code, _, err = equipoise(capsys, "recipes", "copy", "phantom", tmp_path / "new")
    assert code == 2 and "is there already" in err
    code, _, err = equipoise(capsys, "recipes", "copy", "fantom", tmp_path)
    assert code == 2 and "did you mean 'phantom'" in err


def test_they_are_found_within_an_installed_package_first(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    wheel = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["hatch"]["build"]["targets"]["wheel"]
    assert wheel["force-include"] == {"recipes": "equipoise/recipes"}
    assert recipes.PLACES[0] == recipes.PACKAGE / "recipes" and recipes.PACKAGE.name == "equipoise"
    monkeypatch.setattr(recipes, "PLACES", (tmp_path / "none",))
    code, _, err = equipoise(capsys, "recipes", "list")
    assert code == 8 and "install Equipoise again" in err
