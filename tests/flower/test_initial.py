"""A federation that starts from a run of the coordinator's: the model comes with the first question, and no
site opens a path that another names."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from tests import doctored

from equipoise.config import Config
from equipoise.deploy.policy import read_policy
from equipoise.deploy.site import own_config, read_site
from equipoise.errors import ConfigError
from equipoise.running import Result, run

MakeConfig = Callable[..., Config]
Rows = Callable[[Path], list[dict[str, Any]]]


@pytest.fixture(scope="module")
def source(tiny: MakeConfig, tmp_path_factory: pytest.TempPathFactory) -> Result:
    return run(
        tiny(train={"lr": 0.02, "seed": 5}, evaluate={"every": 2}),
        tmp_path_factory.mktemp("source") / "first",
    )


def test_a_federation_starts_as_a_simulation_does(
    tiny: MakeConfig, source: Result, rows: Rows, town: Any, once: Callable[[Config], Result], tmp_path: Path
) -> None:
    config = tiny("fca", train={"init": str(source.folder)}, evaluate={"every": 2})
    there = town(config)
    found = there.go()
    expected = run(replace(config, evaluate=there.config.evaluate), tmp_path / "here")
    assert found.state_hash == expected.state_hash and rows(there.run) == rows(tmp_path / "here")
    for folder in there.sites.values():
        (path,) = (folder / "runs").glob("*/config.json")
        assert not {"init", "init_sha256"} & set(doctored.table(path)["train"])
    assert once(tiny("fca")).state_hash != expected.state_hash


def test_a_site_opens_no_path_of_the_coordinators(tiny: MakeConfig, town: Any, tmp_path: Path) -> None:
    """Not even a pipe, whose reading would never end."""
    os.mkfifo(tmp_path / "config.toml")
    there = town(tiny())
    folder = next(iter(there.sites.values()))
    table = there.config.table()
    table["train"] |= {"init": str(tmp_path), "init_parts": "body"}
    made = own_config(read_site(folder), folder, table, read_policy(folder / "policy.toml"))
    assert (made.train.init, made.train.init_parts, made.train.init_sha256) == (None, None, None)


def test_what_stays_at_the_sites_cannot_start_from_it(tiny: MakeConfig, source: Result, town: Any) -> None:
    there = town(tiny("fedrep", train={"init": str(source.folder)}))
    with pytest.raises(ConfigError, match=r"train\.init sets 'head\.fed\.weight', which stays at the sites"):
        there.go()
    body = town(tiny("fedrep", train={"init": str(source.folder), "init_parts": "body", "rounds": 1}))
    assert body.go().rounds == [1]
