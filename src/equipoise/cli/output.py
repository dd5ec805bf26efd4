"""What a verb prints besides tables."""

from __future__ import annotations

import json
import sys
from typing import Any


def note(text: str, json: bool) -> None:
    """A line beside the output, on standard error."""
    if not json:
        print(text, file=sys.stderr)


def print_json(facts: Any) -> None:
    print(json.dumps(facts, indent=1, default=str))
