"""Equipoise: federated training of medical image classifiers when the classes that matter most are rare."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from equipoise.version import __version__

if TYPE_CHECKING:
    from equipoise.data.storing import frame, store
    from equipoise.methods import Method
    from equipoise.running import Result, resume, run
    from equipoise.use import load

__all__ = ["Method", "Result", "__version__", "frame", "load", "resume", "run", "store"]


def __getattr__(name: str) -> Any:
    """The public names, imported when first used: `import equipoise` and `equipoise --help` stay quick."""
    if name in ("run", "resume", "Result"):
        import importlib

        return getattr(importlib.import_module("equipoise.running"), name)
    if name in ("store", "frame"):
        import importlib

        return getattr(importlib.import_module("equipoise.data.storing"), name)
    if name == "load":
        from equipoise.use import load

        return load
    if name == "Method":
        from equipoise.methods import Method

        return Method
    raise AttributeError(f"module 'equipoise' has no attribute '{name}'")
