"""Bad answers in whole tiny runs: rejected by name, and otherwise as if the site had not answered."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tests.spoiled import KINDS, Spoil

from equipoise.config import Config
from equipoise.errors import SiteError
from equipoise.running import Result, resume, run

MakeConfig = Callable[..., Config]
Rows = Callable[[Path], list[dict[str, Any]]]
Private = Callable[[Path], dict[str, str]]

BAD_SITE = "site-01"


def journal(folder: Path, event: str) -> list[dict[str, Any]]:
    lines = [json.loads(line) for line in (folder / "journal.jsonl").read_text().splitlines()]
    return [line for line in lines if line["event"] == event]


# Bad answers ---------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def lost(tiny: MakeConfig, tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], tuple[Result, Path]]:
    """A run that loses the bad site's answers, once per method."""
    made: dict[str, tuple[Result, Path]] = {}

    def get(method: str) -> tuple[Result, Path]:
        if method not in made:
            folder = tmp_path_factory.mktemp("lost") / method
            config = tiny(method, train={"rounds": 3})
            made[method] = run(config, folder, wrap=lambda engine: Spoil(engine, BAD_SITE, lambda data: None, (0, 1))), folder
        return made[method]

    return get


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("method", ["fedavg", pytest.param("fca", marks=pytest.mark.slow)])
def test_a_bad_answer_counts_as_none(
    method: str,
    kind: str,
    tiny: MakeConfig,
    rows: Rows,
    lost: Callable[[str], tuple[Result, Path]],
    private: Private,
    tmp_path: Path,
) -> None:
    change, reason = KINDS[kind]
    config = tiny(method, train={"rounds": 3})
    spoiled = run(config, tmp_path, wrap=lambda engine: Spoil(engine, BAD_SITE, change, (0, 1)))
    expected, folder = lost(method)
    assert spoiled.state_hash == expected.state_hash
    assert rows(tmp_path) == rows(folder)
    assert private(tmp_path) == private(folder)
    rejected = journal(tmp_path, "rejected")
    assert [(line["site"], line["round"], line["question"]) for line in rejected] == [(BAD_SITE, r, "train") for r in (0, 1)]
    assert all(reason in line["reason"] and BAD_SITE in line["reason"] for line in rejected)
    assert [row["sites"] for row in rows(tmp_path)] == [["site-00", "site-02"]] * 2 + [["site-00", "site-01", "site-02"]]


def test_losing_a_site_matters(tiny: MakeConfig, lost: Callable[[str], tuple[Result, Path]], tmp_path: Path) -> None:
    assert run(tiny("fedavg", train={"rounds": 3}), tmp_path).state_hash != lost("fedavg")[0].state_hash


def test_too_few_sites_stop_the_run_and_it_can_go_on(tiny: MakeConfig, tmp_path: Path) -> None:
    config = tiny("fca", exchange={"min_sites": 3})
    straight = run(config, tmp_path / "straight")
    with pytest.raises(SiteError, match=r"round 1: only 2 of 3 sites .* 3 are needed"):
        run(config, tmp_path / "a", wrap=lambda engine: Spoil(engine, BAD_SITE, lambda data: None, (1,)))
    assert resume(tmp_path / "a").state_hash == straight.state_hash
