"""Where sites run."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from equipoise.options import Options


class EngineOptions(Options):
    """Where sites run; the result does not depend on it."""

    kind: Literal["serial", "pool", "ray"] = "serial"
    """one site after the other in this process, several worker processes, or the nodes of a Ray cluster"""
    workers: int = Field(2, ge=1)
    """worker processes of a pool, or of a Ray cluster that is started here"""
    address: str | None = None
    """ray: the cluster, as HOST:PORT or "auto"; none = one on this machine, for this run only"""
    cpus: float = Field(1.0, ge=0)
    """ray: cores that a site takes of its node"""
    gpus: float = Field(0.0, ge=0)
    """ray: the share of a GPU that a site takes, 0.25 for four sites on one"""
    device: str = "auto"
    """auto, cpu, cuda, cuda:1, mps"""
    deadline: float = Field(3600.0, gt=0)
    """hospitals: seconds a site has for its answer before it is asked again or left out"""
    retries: int = Field(1, ge=0)
    """hospitals: how often a question is repeated at a site that did not answer, or failed"""
    patience: float = Field(600.0, ge=0)
    """hospitals: seconds the sites have to come online before the first round"""
