"""`extends`: one file over another, key by key, and one sentence for every mistake."""

from __future__ import annotations

from pathlib import Path

import pytest

from equipoise.config import load, merged, read
from equipoise.errors import ConfigError


@pytest.fixture
def write(tmp_path: Path):
    def one(name: str, text: str) -> Path:
        path = tmp_path / name
        path.parent.mkdir(exist_ok=True)
        path.write_text(text)
        return path

    return one


def test_the_nearer_file_wins_key_by_key(write) -> None:
    write("below/first.toml", "[train]\nrounds = 3\nlr = 0.5\n[train.augment]\nrotation = 5.0\ncrop = 1.0\n")
    write("second.toml", 'extends = "below/first.toml"\n[train]\nrounds = 4\n')
    path = write(
        "third.toml", 'extends = "second.toml"\n[train.augment]\nrotation = 7.0\n[method]\nname = "fca"\n'
    )
    config = read(path)
    assert (config.train.rounds, config.train.lr, config.method_name) == (4, 0.5, "fca")
    assert (config.train.augment.rotation, config.train.augment.crop) == (7.0, 1.0)
    assert "extends" not in load(path)


def test_a_table_of_another_kind_starts_anew(write) -> None:
    write(
        "base.toml",
        '[partition]\nkind = "dirichlet"\nalpha = 0.5\nsites = 4\n[method]\nname = "fedprox"\nmu = 0.1\n',
    )
    path = write("other.toml", 'extends = "base.toml"\n[partition]\nkind = "iid"\n[method]\nname = "fca"\n')
    assert read(path).partition.model_dump()["sites"] == 8
    same = write("same.toml", 'extends = "base.toml"\n[partition]\nkind = "dirichlet"\nsites = 5\n')
    assert load(same)["partition"] == {"kind": "dirichlet", "alpha": 0.5, "sites": 5}


def test_a_name_that_is_only_a_title_does_not_start_anew() -> None:
    below = {"kind": "csv", "name": "one", "path": "x"}
    assert merged(below, {"name": "two"}) == {"kind": "csv", "name": "two", "path": "x"}
    assert merged({"gamma": 1}, {"name": "focal"}) == {"gamma": 1, "name": "focal"}
    assert merged({"name": "focal", "gamma": 1}, {"name": "bce"}) == {"name": "bce"}
    assert merged({"a": [1, 2]}, {"a": [3]}) == {"a": [3]}


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ('extends = "gone.toml"', "there is no config file .*gone.toml"),
        ('extends = ["a.toml"]', "extends must be the name of one file"),
        ('extends = "x.toml"', "extends it in turn"),
        ('extends = "y.toml"', "extends it in turn"),
    ],
)
def test_what_cannot_be_extended(write, text: str, expected: str) -> None:
    write("y.toml", 'extends = "x.toml"')
    with pytest.raises(ConfigError, match=expected) as caught:
        load(write("x.toml", text))
    assert "\n" not in str(caught.value)
