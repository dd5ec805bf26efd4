"""Where sites run."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from equipoise.options import Options


class EngineOptions(Options):
    """Where sites run; the result does not depend on it."""

    kind: Literal["serial", "pool"] = "serial"
    """one site after the other in this process, or several worker processes"""
    workers: int = Field(2, ge=1)
    """worker processes of a pool"""
    device: str = "auto"
    """auto, cpu, cuda, cuda:1, mps"""
    deadline: float = Field(3600.0, gt=0)
    """hospitals: seconds a site has for its answer before it is asked again or left out"""
    retries: int = Field(1, ge=0)
    """hospitals: how often a question is repeated at a site that did not answer, or failed"""
    patience: float = Field(600.0, ge=0)
    """hospitals: seconds the sites have to come online before the first round"""
