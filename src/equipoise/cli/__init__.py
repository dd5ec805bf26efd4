"""The command `equipoise`. Nothing heavy is imported before a verb needs it, so that help comes at once."""

from __future__ import annotations

from equipoise.cli.app import main

__all__ = ["main"]
