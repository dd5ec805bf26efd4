"""A process that runs one job after the other: `python -m equipoise.compare.worker`; see `compare.pool` for
the other end.

It ends when its input ends, so that no run of a killed comparison goes on beside the one that resumes it.
"""

from __future__ import annotations

import json
import os
import sys
import traceback
from pathlib import Path
from typing import Any, BinaryIO

from equipoise.config import resolve
from equipoise.engine import frames
from equipoise.errors import EquipoiseError
from equipoise.report import write_report
from equipoise.running import run
from equipoise.worker import pipes


def main() -> None:
    """Serve one pool."""
    inbox, pipe_out = pipes()
    while True:
        job = json.loads(inbox.get())
        _say(pipe_out, _run(job, pipe_out))


def _run(job: dict[str, Any], pipe: BinaryIO) -> dict[str, Any]:
    """One run from where it was left, with its page; how it ended."""

    def watch(event: str, facts: dict[str, Any]) -> None:
        if event == "round":
            _say(pipe, {"event": "round", "round": facts["round"]})

    try:
        run(resolve(job["config"]), job["out"], watch=watch)
        write_report(Path(job["out"]))
    except EquipoiseError as error:
        return {"event": "failed", "error": str(error), "exit_code": error.exit_code}
    except Exception as error:
        if os.environ.get("EQUIPOISE_DEBUG"):
            traceback.print_exc()
        text = f"{type(error).__name__}: {error}".splitlines()[0].rstrip(": ")
        return {
            "event": "failed",
            "error": f"unexpected {text} (set EQUIPOISE_DEBUG=1 to see the traceback)",
            "exit_code": 1,
        }
    return {"event": "done"}


def _say(pipe: BinaryIO, facts: dict[str, Any]) -> None:
    frames.write(pipe, json.dumps(facts).encode())


if __name__ == "__main__":
    try:
        main()
    except (BrokenPipeError, KeyboardInterrupt):
        sys.exit(1)
