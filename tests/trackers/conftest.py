"""An empty database of MLflow, made once: its tables take seconds. And runs of two sites, one step each."""

from __future__ import annotations

import shutil
import sqlite3
import warnings
from collections.abc import Callable
from contextlib import AbstractContextManager, closing
from pathlib import Path
from typing import Any

import pytest

from equipoise.config import Config
from equipoise.trackers.base import Run
from equipoise.trackers.mlflow import MLflow


@pytest.fixture(scope="session")
def tiny(tiny: Callable[..., Config]) -> Callable[..., Config]:
    def make(*given: Any, train: dict[str, Any] | None = None, **sections: Any) -> Config:
        two = {"partition": {"sites": 2}}
        return tiny(*given, train={"batch_size": 64, **(train or {})}, **two, **sections)

    return make


@pytest.fixture(scope="session")
def empty_store(common: Callable[[str], AbstractContextManager[Path]]) -> Path:
    """As our own tracker makes it where there is none, without the run it has then."""
    with common("store") as folder:
        path = folder / "mlflow" / "mlflow.db"
        if folder.exists():
            return path
        folder.mkdir()
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            MLflow().begin(Run("run", folder, {}, (), {}, ()))
        with closing(sqlite3.connect(path)) as base, base:
            for table in ("params", "tags", "latest_metrics", "metrics", "runs", "experiment_tags"):
                base.execute(f"DELETE FROM {table}")
            base.execute("DELETE FROM experiments WHERE name = 'equipoise'")
    return path


@pytest.fixture
def with_store(empty_store: Path) -> Callable[[Path], Path]:
    """with_store(folder) → the folder, with that database where a run in it looks for its own."""

    def put(folder: Path) -> Path:
        (folder / "mlflow").mkdir(parents=True)
        shutil.copy(empty_store, folder / "mlflow" / "mlflow.db")
        return folder

    return put
