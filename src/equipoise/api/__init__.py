"""What the command line does, from Python: thin functions over the rooms, and what they give back."""

from __future__ import annotations

from equipoise.api.comparison import Comparison, Picture
from equipoise.api.verbs import Inspection, compare, inspect, ledger, methods, reproduce, resume, run

__all__ = [
    "Comparison",
    "Inspection",
    "Picture",
    "compare",
    "inspect",
    "ledger",
    "methods",
    "reproduce",
    "resume",
    "run",
]
