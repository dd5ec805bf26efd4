"""The versions of Python that are stated: the same in the metadata and on the pages, and every source
compiles with each that is installed here."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import tomllib
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
STATED = ("3.11", "3.12", "3.13")
PROGRAM = """
import pathlib, sys, warnings
warnings.simplefilter("error")
for path in pathlib.Path(sys.argv[1]).rglob("*.py"):
    compile(path.read_text(encoding="utf-8"), str(path), "exec")
print("%d.%d" % sys.version_info[:2])
"""


def interpreters(version: str) -> list[str]:
    """Where a Python of this version may be: on the path, or one of pyenv's."""
    home = Path(os.environ.get("PYENV_ROOT", Path.home() / ".pyenv")) / "versions"
    kept = [str(path / "bin" / "python") for path in sorted(home.glob(f"{version}.*"))]
    found = shutil.which(f"python{version}")
    return [*kept, *([found] if found else [])]


def test_they_are_stated_alike() -> None:
    classifiers = re.findall(r"Python :: (3\.\d+)", " ".join(PROJECT["classifiers"]))
    assert tuple(classifiers) == STATED and PROJECT["requires-python"] == ">=3.11,<3.14"
    assert "Python 3.11 to 3.13" in (ROOT / "README.md").read_text()
    assert "Python 3.11, 3.12 or 3.13" in (ROOT / "docs" / "install.md").read_text()


@pytest.mark.parametrize("version", STATED)
def test_every_source_compiles(version: str) -> None:
    for python in interpreters(version):
        command = [python, "-I", "-c", PROGRAM, str(ROOT / "src")]
        done = subprocess.run(command, capture_output=True, text=True)
        if done.stdout.strip() == version:
            return
        if "SyntaxError" in done.stderr or "Warning" in done.stderr:
            raise AssertionError(done.stderr)
    pytest.skip(f"no Python {version} here")
