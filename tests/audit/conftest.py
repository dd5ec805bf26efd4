"""Flower's messages without its servers, as in tests/flower."""

from __future__ import annotations

from tests.flower.conftest import _identity, town  # noqa: F401
