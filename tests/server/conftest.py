"""What several tests of this room look at."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from safetensors.torch import load_file
from tests.light import sparing

from equipoise.config import Config
from equipoise.server import Checkpoints
from equipoise.tree import digest, unflatten


@pytest.fixture(scope="session")
def private() -> Callable[[Path], dict[str, str]]:
    """private(folder): digests of the private versions that the newest checkpoint counts as committed."""

    def read(folder: Path) -> dict[str, str]:
        found = Checkpoints(folder / "checkpoints").newest()
        assert found is not None
        return {
            site: version + digest(unflatten(load_file(folder / "sites" / site / f"{version}.safetensors")))
            for site, version in found[1].versions.items()
        }

    return read


@pytest.fixture(scope="session")
def tiny(tiny: Callable[..., Config]) -> Callable[..., Config]:
    return sparing(tiny)
