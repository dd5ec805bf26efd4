"""Code that a test writes and has loaded: unknown again afterwards."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from equipoise.locate import Finder


@contextmanager
def forgotten(folder: Path) -> Iterator[None]:
    """What is loaded from a folder is unknown afterwards.

    Only our own finders leave `sys.meta_path`. An installed package that a test is the first to import may
    have put one there in place of Python's (importlib_metadata does): without it no package has a version.
    """
    _drop_finders()
    yield
    _drop_finders()
    inside = f"{folder}{os.sep}"
    for name, module in [*sys.modules.items()]:
        if (getattr(module, "__file__", None) or "").startswith(inside):
            del sys.modules[name]


def _drop_finders() -> None:
    sys.meta_path[:] = [one for one in sys.meta_path if not isinstance(one, Finder)]
