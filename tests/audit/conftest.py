"""Flower without its servers, as in the tests of that room."""

from tests.flower.conftest import _identity, town

__all__ = ["_identity", "town"]
