"""What is put into a site's folder by hand: it has no digest, so the site's journal records what it was."""

from __future__ import annotations

from pathlib import Path

from equipoise.keeping import sha256

FILES = ("site.toml", "policy.toml", "keys/ca.crt", "keys/site.pub", "keys/roster.json")
EVENT = "settings"
"""the journal's event that records them"""


def digests(folder: Path) -> dict[str, str]:
    """The digest of each of these files that is there."""
    return {name: sha256((folder / name).read_bytes()) for name in FILES if (folder / name).is_file()}
