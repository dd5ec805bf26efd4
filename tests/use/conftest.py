"""Finished tiny runs, made once and shared."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest

from equipoise.config import Config, resolve
from equipoise.running import Result, run

Finished = Callable[..., Result]


@pytest.fixture(scope="session")
def finished(tiny: Callable[..., Config], tmp_path_factory: pytest.TempPathFactory) -> Finished:
    """finished(method, options of it, **sections): the result of a tiny run; asked again, the same one. It is
    not to be changed."""
    root, done = tmp_path_factory.mktemp("finished"), dict[str, Result]()

    def make(
        method: str = "fedavg", options: Mapping[str, Any] | None = None, **sections: dict[str, Any]
    ) -> Result:
        table = tiny(method, base=Path.cwd(), **sections).table()
        config = resolve({**table, "method": {**table["method"], **(options or {})}})
        if config.digest not in done:
            done[config.digest] = run(config, root / str(len(done)))
        return done[config.digest]

    return make
