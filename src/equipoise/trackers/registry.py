"""Trackers by name, and the ones that a config names."""

from __future__ import annotations

import importlib.util
import inspect
from collections.abc import Mapping, Sequence
from typing import Any

from equipoise.errors import ConfigError
from equipoise.locate import Parts
from equipoise.names import unknown
from equipoise.trackers.base import Tracker
from equipoise.trackers.mlflow import MLflow
from equipoise.trackers.tensorboard import TensorBoard
from equipoise.trackers.wandb import WandB

TRACKERS: dict[str, type[Tracker]] = {"tensorboard": TensorBoard, "mlflow": MLflow, "wandb": WandB}
WHERE = "evaluate.trackers"
Entry = str | Mapping[str, Any]
"""a name, or a table of `name` and options"""


def make(entries: Sequence[Entry], parts: Parts) -> dict[str, Tracker]:
    """The trackers that a config names, ready to begin; what is wrong with one is said here.

    Those of one's own are found in `parts`.
    """
    made: dict[str, Tracker] = {}
    for entry in entries:
        options = {"name": entry} if isinstance(entry, str) else dict(entry)
        name = str(options.pop("name"))
        made[name] = _made(name, _find(name, parts), options)
    return made


def check_name(name: str) -> None:
    """Refuse a name that is no tracker's and leads to no file or module; nothing is run."""
    if name not in TRACKERS and not name.rpartition(":")[0]:
        raise ConfigError(f"{WHERE}: " + unknown("tracker", name, TRACKERS) + ", or FILE.py:Class")


def _find(name: str, parts: Parts) -> type[Tracker]:
    check_name(name)
    if name in TRACKERS:
        return TRACKERS[name]
    tracker = parts.find(name, WHERE)
    if not (isinstance(tracker, type) and issubclass(tracker, Tracker)):
        source, _, attribute = name.rpartition(":")
        raise ConfigError(
            f"{WHERE}: '{source}' has no class '{attribute}' that derives from equipoise.trackers.Tracker"
        )
    return tracker


def _made(name: str, cls: type[Tracker], options: Mapping[str, Any]) -> Tracker:
    for package in cls.packages:
        if not _installed(package):
            raise ConfigError(
                f"{WHERE}: '{name}' needs the package {package}: run pip install {' '.join(cls.packages)}, "
                f"or leave it out"
            )
    known = inspect.signature(cls).parameters
    if not any(one.kind is one.VAR_KEYWORD for one in known.values()):
        for key in options:
            if key not in known:
                raise ConfigError(f"{WHERE}: " + unknown(f"option of '{name}'", key, known))
    try:
        return cls(**options)
    except Exception as error:
        raise ConfigError(
            f"{WHERE}: '{name}' cannot be made with {dict(options)} ({type(error).__name__}: {error})"
        ) from error


def _installed(package: str) -> bool:
    """Whether there is such a package; a folder of that name in the working directory is none."""
    spec = importlib.util.find_spec(package)
    return spec is not None and spec.origin is not None
