"""An empty database of MLflow, made once: its tables take seconds."""

from __future__ import annotations

import shutil
import warnings
from collections.abc import Callable
from pathlib import Path

import pytest


@pytest.fixture(scope="session")
def empty_store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    from mlflow.store.db.utils import _initialize_tables
    from sqlalchemy import create_engine

    path = tmp_path_factory.mktemp("store") / "mlflow.db"
    engine = create_engine(f"sqlite:///{path}")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        _initialize_tables(engine)
    engine.dispose()
    return path


@pytest.fixture
def with_store(empty_store: Path) -> Callable[[Path], Path]:
    """with_store(folder) → the folder, with that database where a run in it looks for its own."""

    def put(folder: Path) -> Path:
        (folder / "mlflow").mkdir(parents=True)
        shutil.copy(empty_store, folder / "mlflow" / "mlflow.db")
        return folder

    return put
