"""Shared fixtures: one thread, a cache folder of the tests' own, and the real images where they are at hand."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch


@pytest.fixture(autouse=True, scope="session")
def _one_thread() -> None:
    torch.set_num_threads(1)


@pytest.fixture(autouse=True, scope="session")
def _cache(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    before = os.environ.get("EQUIPOISE_CACHE")
    os.environ["EQUIPOISE_CACHE"] = str(tmp_path_factory.mktemp("cache"))
    yield
    if before is None:
        del os.environ["EQUIPOISE_CACHE"]
    else:
        os.environ["EQUIPOISE_CACHE"] = before


@pytest.fixture(scope="session")
def shared_data() -> Path:
    """The folder of real images: $EQUIPOISE_DATA, or ../shared/data beside the project."""
    given = os.environ.get("EQUIPOISE_DATA")
    folder = Path(given) if given else Path(__file__).resolve().parents[2] / "shared" / "data"
    if not (folder / "ham10000" / "images.zip").is_file():
        pytest.skip(f"no real images: {folder} is missing; set EQUIPOISE_DATA to the folder that has ham10000/")
    return folder
