"""The base of every section of the config: frozen, and strict about unknown keys."""

from __future__ import annotations

from pydantic import BaseModel, ConfigDict


class Options(BaseModel):
    """A frozen set of documented options; an unknown key is an error that names the nearest valid one."""

    model_config = ConfigDict(frozen=True, extra="forbid", use_attribute_docstrings=True)
