"""A process that runs one job after the other: `python -m equipoise.compare.worker`; see `compare.pool` for
the other end.

It ends when its input ends, so that no run of a killed comparison goes on beside the one that resumes it.
"""

from __future__ import annotations

import json
import sys
from typing import Any, BinaryIO

from equipoise.compare.job import carry_out
from equipoise.engine import frames
from equipoise.engine.serve import pipes


def main() -> None:
    """Serve one pool."""
    inbox, pipe_out = pipes()
    while True:
        _say(pipe_out, carry_out(inbox.get(), lambda facts: _say(pipe_out, facts)))


def _say(pipe: BinaryIO, facts: dict[str, Any]) -> None:
    frames.write(pipe, json.dumps(facts).encode())


if __name__ == "__main__":
    try:
        main()
    except (BrokenPipeError, KeyboardInterrupt):
        sys.exit(1)
