"""How much the coordinator's server takes from whoever connects to it."""

from __future__ import annotations

from pydantic import Field

from equipoise.options import Options


class Limits(Options):
    """Caps and timeouts of the coordinator's port; a site that keeps to Flower's sizes comes nowhere near."""

    body_mb: float = Field(default=16.0, gt=0)
    """megabytes one request may have; Flower cuts tensors into pieces of 5"""
    header_seconds: float = Field(default=10.0, gt=0)
    """time for a TLS handshake, and again for the headers of a request"""
    stall_seconds: float = Field(default=20.0, gt=0)
    """a request's body must advance by `SLOWEST` bytes per second, looked at this often"""
    connections: int = Field(default=512, ge=1)
    """open connections from everywhere"""
    per_address: int = Field(default=64, ge=1)
    """open connections from one address; a site needs two"""
