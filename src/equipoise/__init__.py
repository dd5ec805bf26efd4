"""Equipoise: federated training of medical image classifiers when the classes that matter most are rare."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

from equipoise.version import __version__

# onnxruntime reports to its makers from the moment it is imported, whoever imports it, unless this is set
os.environ.setdefault("ORT_DISABLE_TELEMETRY", "1")

if TYPE_CHECKING:
    from equipoise.api import Comparison, compare, inspect, ledger, methods, reproduce, resume, run
    from equipoise.data.storing import frame, store
    from equipoise.methods import Method
    from equipoise.running import Result
    from equipoise.use import load

__all__ = [
    "Comparison",
    "Method",
    "Result",
    "__version__",
    "compare",
    "frame",
    "inspect",
    "ledger",
    "load",
    "methods",
    "reproduce",
    "resume",
    "run",
    "store",
]
PACKAGES = ("compare", "methods", "reproduce")
"""public names that are packages too; they can be called, see `verb`"""


def __getattr__(name: str) -> Any:
    """The public names, imported when first used: `import equipoise` and `equipoise --help` stay quick."""
    import importlib
    import sys

    if name == "Method":
        return importlib.import_module("equipoise.methods").Method
    if name in ("store", "frame"):
        return getattr(importlib.import_module("equipoise.data.storing"), name)
    if name == "load":
        return importlib.import_module("equipoise.use").load
    if name == "Result":
        return importlib.import_module("equipoise.running").Result
    if name in __all__:
        api = importlib.import_module("equipoise.api")
        return sys.modules[f"equipoise.{name}"] if name in PACKAGES else getattr(api, name)
    raise AttributeError(f"module 'equipoise' has no attribute '{name}'")


def __dir__() -> list[str]:
    """The public names and nothing else: what completion offers."""
    return sorted(__all__)
