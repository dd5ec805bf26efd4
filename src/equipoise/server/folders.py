"""Folders that hold what a run or a federation is about: made for their owner alone, whatever the umask."""

from __future__ import annotations

from pathlib import Path

OWNER = 0o700


def private_folder(folder: Path) -> Path:
    """Make a folder, and what is missing above it, for its owner alone; one that is there keeps its
    rights."""
    missing = [path for path in (folder, *folder.parents) if not path.exists()]
    for path in reversed(missing):
        path.mkdir(mode=OWNER, exist_ok=True)
        path.chmod(OWNER)
    return folder
