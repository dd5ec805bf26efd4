"""Write deploy/requirements.lock: every package of the container, with its version and the sha256 of its
file.

    python deploy/lock.py

Run it on Linux with Python 3.11, as in the container, after a change of pyproject.toml or constraints.txt.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
LOCK = ROOT / "deploy" / "requirements.lock"
BUILD = "hatchling"
HEAD = """\
# Made by `python deploy/lock.py`: what the container is built from, file by file. For Linux on x86-64 with Python 3.11.
# PyTorch is its CPU build, which comes from PyTorch's own index or a wheel in deploy/wheels/.
"""


def resolved() -> list[tuple[str, str, str]]:
    """Name, version and sha256 of every package that pip would install, by name."""
    with tempfile.TemporaryDirectory() as folder:
        report = Path(folder) / "report.json"
        wanted = ["torch", BUILD, f"{ROOT}[flower,medical,export]"]
        command = [sys.executable, "-m", "pip", "install", "--quiet", "--dry-run", "--ignore-installed"]
        subprocess.run([*command, "-c", str(ROOT / "constraints.txt"), "--report", str(report), *wanted], check=True)
        found = json.loads(report.read_text())["install"]
    packages = []
    for one in found:
        name = one["metadata"]["name"].lower().replace("_", "-")
        if name != "equipoise":
            packages.append((name, one["metadata"]["version"], one["download_info"]["archive_info"]["hashes"]["sha256"]))
    return sorted(packages)


if __name__ == "__main__":
    lines = [f"{name}=={version} --hash=sha256:{digest}\n" for name, version, digest in resolved()]
    LOCK.write_text(HEAD + "".join(lines))
    print(f"{LOCK.relative_to(ROOT)}: {len(lines)} packages")
