"""Packages that we use report to nobody: a process of ours makes no mark and no call for their makers."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest


def test_onnxruntime_reports_nothing(tmp_path: Path) -> None:
    """Left alone it names the machine in a file of the user's when it is imported, and calls its makers some
    seconds later."""
    pytest.importorskip("onnxruntime")
    homes = {"HOME": str(tmp_path), "XDG_CACHE_HOME": str(tmp_path / "cache")}
    environment = {name: text for name, text in os.environ.items() if name != "ORT_DISABLE_TELEMETRY"} | homes
    subprocess.run([sys.executable, "-c", "import equipoise, onnxruntime"], env=environment, check=True)
    assert list(tmp_path.iterdir()) == []
