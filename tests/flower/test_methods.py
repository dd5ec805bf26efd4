"""Every method through Flower's ClientApp and Message layer: the bits of the serial simulation."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from tests import doctored
from tests.methods.test_conformance import OPTIONS

from equipoise.config import Config
from equipoise.methods import METHODS
from equipoise.running import run

MakeConfig = Callable[..., Config]
Rows = Callable[[Path], list[dict[str, Any]]]


def tiny_for(tiny: MakeConfig, name: str) -> Config:
    task = METHODS[name].tasks[0]
    sections: dict[str, dict[str, Any]] = {"data": {"task": task}, "evaluate": {"every": 2}}
    config = tiny(name, **sections, partition={"missing": 2} if task == "multi" else {})
    return replace(config, method=METHODS[name](**OPTIONS.get(name, {})))


QUICK = ("fca", "fediic", "fedsdc")
"""private state; two questions; leaves that are read site by site"""


@pytest.mark.parametrize("name", [pytest.param(name, marks=() if name in QUICK else pytest.mark.slow) for name in METHODS])
def test_a_method_over_flower_is_the_simulation(name: str, tiny: MakeConfig, rows: Rows, town: Any, tmp_path: Path) -> None:
    config = tiny_for(tiny, name)
    there = town(config)
    found = there.go()
    simulated = replace(config, evaluate=there.config.evaluate)
    expected = run(simulated, tmp_path / "here")
    assert found.state_hash == expected.state_hash
    assert rows(there.run) == rows(tmp_path / "here")
    listed = [doctored.table(folder / "ledger.json")["leaves"] for folder in (there.run, tmp_path / "here")]
    assert [row for row in listed[0] if row["question"] != "join"] == listed[1]
