"""`kind = "sites"`: the images of a federation, which stay at its sites."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Literal

from pydantic import model_serializer, model_validator

from equipoise.data.options import DataOptions, Progress
from equipoise.data.samples import Samples
from equipoise.errors import ConfigError

KNOWN = ("kind", "name")
"""what can be said of data that nobody here can see"""


class SitesData(DataOptions):
    """The images of a federation's sites: each describes its own in its `site.toml`, and the config of the
    run says nothing of them but perhaps a name."""

    kind: Literal["sites"] = "sites"

    @model_validator(mode="after")
    def _says_nothing_else(self) -> SitesData:
        for key in sorted(self.model_fields_set - set(KNOWN)):
            raise ValueError(
                f"{key} is for the sites to say, in their site.toml, where kind = 'sites'; remove it"
            )
        return self

    @model_serializer(mode="plain")
    def _known(self) -> dict[str, Any]:
        """Without the keys of other kinds: their defaults would be taken for facts about the sites."""
        return {key: value for key in KNOWN if (value := getattr(self, key)) is not None}

    @property
    def here(self) -> bool:
        return False

    def load(self, *, cache: Path, base: Path, progress: Progress | None = None) -> Samples:
        """There is nothing to read."""
        raise ConfigError(
            "data.kind = 'sites' stands for images that are at the sites of a federation: train it with "
            "`equipoise submit`, or name data that are here"
        )
