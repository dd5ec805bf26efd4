"""Tiny runs: three sites, some forty images of 16 pixels, two rounds; a third of a second each."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from equipoise.config import Config, resolve

MakeConfig = Callable[..., Config]


@pytest.fixture(scope="session")
def tiny() -> MakeConfig:
    """tiny(method, engine={…}, train={…}, base=…) → a resolved config."""

    def make(method: str = "fedavg", base: Path | None = None, **sections: dict[str, Any]) -> Config:
        table: dict[str, dict[str, Any]] = {
            "data": {"kind": "phantom", "scale": 0.004, "image_size": 16},
            "partition": {"kind": "iid", "sites": 3},
            "method": {"name": method},
            "train": {"rounds": 2, "batch_size": 8},
            "engine": {"device": "cpu"},
        }
        for name, changes in sections.items():
            table[name] = {**table.get(name, {}), **changes}
        return resolve(table, base)

    return make


@pytest.fixture(scope="session")
def rows() -> Callable[[Path], list[dict[str, Any]]]:
    """The metrics rows of a run folder; bytes depend on who answered how, not on the result."""

    def read(folder: Path) -> list[dict[str, Any]]:
        lines = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
        return [{key: value for key, value in line.items() if not key.startswith("bytes_")} for line in lines]

    return read
