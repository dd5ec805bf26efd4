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
