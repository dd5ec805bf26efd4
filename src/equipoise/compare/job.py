"""One run of a comparison, as a process of the pool or a task of a cluster gets it and carries it
out."""

from __future__ import annotations

import json
import os
import traceback
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from equipoise.compare.plan import Job
from equipoise.config import resolve
from equipoise.engine.ray import framed, node
from equipoise.errors import EquipoiseError
from equipoise.locate import Allow
from equipoise.report import write_report
from equipoise.running import run
from equipoise.trust import only, remember


def letter(job: Job, out: Path) -> str:
    """A job as it is sent to another process."""
    table = {"config": job.config.table(), "code": job.config.marks, "out": str((out / job.name).absolute())}
    return json.dumps(table)


def perform(letter: str) -> bytes:
    """One run as a task of a cluster: how it ended, and at which node."""
    return framed({"node": node(), **carry_out(letter, lambda facts: None)})


def as_planned(marks: Mapping[str, str]) -> Allow:
    """Code of the plan must be what it was then; a tracker is looked up by the run itself, as the user's
    own."""
    same = only(marks)
    return lambda code: same(code) if code.name in marks else remember(code)


def carry_out(letter: str | bytes, report: Callable[[dict[str, Any]], None]) -> dict[str, Any]:
    """One run from where it was left, with its page; how it ended. `report` gets every round."""
    job = json.loads(letter)

    def watch(event: str, facts: dict[str, Any]) -> None:
        if event == "round":
            report({"event": "round", "round": facts["round"]})

    try:
        run(resolve(job["config"], allow=as_planned(job["code"])), job["out"], watch=watch)
        write_report(Path(job["out"]))
    except EquipoiseError as error:
        return {"event": "failed", "error": str(error), "exit_code": error.exit_code}
    except Exception as error:
        if os.environ.get("EQUIPOISE_DEBUG"):
            traceback.print_exc()
        text = f"{type(error).__name__}: {error}".splitlines()[0].rstrip(": ")
        text = f"unexpected {text} (set EQUIPOISE_DEBUG=1 to see the traceback)"
        return {"event": "failed", "error": text, "exit_code": 1}
    return {"event": "done"}
