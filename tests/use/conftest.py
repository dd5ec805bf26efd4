"""Finished tiny runs, made once and shared."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest
from tests.light import sparing

from equipoise.config import Config, resolve
from equipoise.running import Result

Finished = Callable[..., Result]


@pytest.fixture(scope="session")
def tiny(tiny: Callable[..., Config]) -> Callable[..., Config]:
    return sparing(tiny)


@pytest.fixture(scope="session")
def finished(tiny: Callable[..., Config], once: Callable[[Config], Result]) -> Finished:
    """finished(method, options of it, **sections): the result of a tiny run; asked again, the same one. It is
    not to be changed."""

    def make(
        method: str = "fedavg", options: Mapping[str, Any] | None = None, **sections: dict[str, Any]
    ) -> Result:
        table = tiny(method, base=Path.cwd(), **sections).table()
        return once(resolve({**table, "method": {**table["method"], **(options or {})}}))

    return make
