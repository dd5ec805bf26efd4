"""The pages: one run, or several compared."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path


def write_report(folder: Path) -> Path:
    return folder / "report.html"


def write_comparison(rows: Sequence[tuple[str, Path]], folder: Path) -> Path:
    return folder / "report.html"
