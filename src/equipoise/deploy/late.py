"""Sites that are listed while a run waits for others to join: they are invited too."""

from __future__ import annotations

import base64
from collections.abc import Iterable
from pathlib import Path

from equipoise.deploy.keys import listed, read_public
from equipoise.errors import EquipoiseError
from equipoise.keeping import read_json
from equipoise.run_folder import PLAN, RunFolder

FLOWER = "flower.json"
"""in the folder of a run: its number at the server, and the coordinator's folder"""


class Late:
    """Called: the sites that are new in the coordinator's allow-list, with their keys; `sites` are known."""

    def __init__(self, folder: RunFolder, sites: Iterable[str]) -> None:
        self._folder, self._known = folder, set(sites)
        self._new: dict[str, bytes] = {}

    def __call__(self) -> dict[str, bytes]:
        try:
            home = Path(read_json(self._folder / FLOWER, "submit the run again")["coordinator"])
            new = {site: path for site, path in listed(home).items() if site not in self._known}
            keys = {site: read_public(path) for site, path in new.items()}
        except (EquipoiseError, OSError, KeyError, TypeError):
            return {}  # not noted yet, or a file that is being written: the next look will do
        self._known |= set(keys)
        self._new |= keys
        return keys

    def keep(self) -> list[str]:
        """Write the new sites into the run's plan, so that they are known when it continues; their names."""
        if self._new:
            table = self._folder.read(PLAN)
            table["keys"] |= {site: base64.b64encode(key).decode() for site, key in self._new.items()}
            self._folder.write(PLAN, table)
        return sorted(self._new)
