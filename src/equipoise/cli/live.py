"""Pages: of a run or a comparison, once, or again after every evaluated round of a run that goes on."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from equipoise.compare import summary
from equipoise.errors import EquipoiseError, StorageError
from equipoise.report import write_report
from equipoise.reproduce import beside
from equipoise.run_folder import CONFIG
from equipoise.running import Watch

LOOK = 2.0
"""seconds between two looks into the folder of a run"""


def write_page(folder: Path) -> Path:
    """The page of whatever is in a folder: a run, a comparison, a table of a paper. No code that the folder
    names is run."""
    if (folder / beside.FACTS).is_file():
        return beside.page(folder)
    if (folder / summary.FACTS).is_file():
        return summary.page(folder)
    if not (folder / CONFIG).is_file():
        raise StorageError(
            f"{folder} has no {CONFIG} and no {summary.FACTS}: name a run folder, or that of a "
            f"comparison that has ended"
        )
    return write_report(folder)


@contextmanager
def following(watch: Watch, folder: Path) -> Iterator[Watch]:
    """A `watch` for `equipoise.run` that also writes the live page, at the start and after every evaluated
    round.

    Left before its end, the run has a page that no longer waits for more.
    """

    def look(event: str, facts: dict[str, Any]) -> None:
        watch(event, facts)
        if event == "begin" or (event == "round" and "test" in facts):
            try:
                write_report(folder, live=True)
            except Exception as error:  # whatever is wrong with a page, hours of training are worth more
                print(f"the live page cannot be written: {error}", file=sys.stderr)

    try:
        yield look
    except BaseException:
        with suppress(EquipoiseError):
            write_report(folder)
        raise


def follow(folder: Path) -> None:
    """Write the live page of a run that goes on elsewhere, again whenever it has more to tell, until the run
    is finished."""
    path, seen = folder / "metrics.jsonl", -1
    try:
        while not (folder / "result.json").is_file():
            size = path.stat().st_size if path.is_file() else 0
            if size != seen:
                write_report(folder, live=True)
                seen = size
            time.sleep(LOOK)
    finally:
        write_report(folder)
