"""A run folder: what its files are called, and how each is written and read back.

| file | what it holds |
|---|---|
| `config.toml` | the config with every default filled in, as it was when the run began |
| `code.json` | fingerprints of your own code that the config names; it must be the same on resume |
| `blueprint.json` | what is trained: task, classes, image size, normalisation, network, shared names |
| `frozen.safetensors` | where tensors are frozen: the tensors that never change |
| `data.json` | how many images of which class every site holds |
| `ledger.json` | every tensor that leaves a site, by question: kind, shape, bytes, who can read it |
| `journal.jsonl` | what happened, in order, a line each |
| `metrics.jsonl`, `timing.jsonl` | a line per round: loss and metrics; seconds |
| `scores/` | in a simulation: the global predictor's scores of the test images |
| `checkpoints/` | the coordinator's state after a round: the newest two, and any that may be selected |
| `sites/` | what the sites keep (in a real federation it never leaves them) |
| `features.json` | where the classes lie in the network's features |
| `result.json` | selected rounds, their metrics, classes, hash of the final state; written last |
| `report.html`, `model-card.md` | the page, and the model card: on what, how good, where not to trust it |
| `federation.json`, `roster.json`, `tickets.json`, `lock` | of a federation: its sites, what they hold |

The run writes all of them; whoever else opens the folder only reads. Files are written in one step and have
digests that are checked when they are read (see `keeping`).
"""

from __future__ import annotations

import fcntl
import os
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from equipoise import keeping
from equipoise.errors import ConfigError, StorageError

CONFIG, CODE, BLUEPRINT, CENSUS = "config.toml", "code.json", "blueprint.json", "data.json"
FROZEN = "frozen.safetensors"
LEDGER, JOURNAL, METRICS, TIMING = "ledger.json", "journal.jsonl", "metrics.jsonl", "timing.jsonl"
SCORES, CHECKPOINTS, PRIVATE = "scores", "checkpoints", "sites"
FEATURES, RESULT, PAGE, CARD = "features.json", "result.json", "report.html", "model-card.md"
PLAN, ROSTER, TICKETS, LOCK = "federation.json", "roster.json", "tickets.json", "lock"
SUBMITTED = "flower.json"

AGAIN = "submit the run again into a new folder"
FIX = {
    CONFIG: "undo the change, or start a new run in another folder; "
    "`equipoise run FILE.toml --out` takes another [engine] or base",
    CODE: "restore it, or start the run anew",
    LEDGER: "{again} writes it again",
    PLAN: f"restore it, or {AGAIN}",
    ROSTER: f"restore it, or {AGAIN}",
}
"""what to do where a file is not as it was written; any other: delete it and resume the run"""
OWNER = 0o700


def private_folder(folder: Path) -> Path:
    """Make a folder, and what is missing above it, for its owner alone, whatever the umask; one that is there
    keeps its rights."""
    missing = [path for path in (folder, *folder.parents) if not path.exists()]
    for path in reversed(missing):
        path.mkdir(mode=OWNER, exist_ok=True)
        path.chmod(OWNER)
    return folder


class RunFolder(os.PathLike[str]):
    """The folder of one run."""

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self.path = Path(path)

    def __truediv__(self, name: str) -> Path:
        return self.path / name

    def __fspath__(self) -> str:
        return str(self.path)

    def __str__(self) -> str:
        return str(self.path)

    def __repr__(self) -> str:
        return f"RunFolder({str(self.path)!r})"

    def has(self, name: str) -> bool:
        """Whether there is such a file."""
        return (self / name).is_file()

    def make(self) -> None:
        """Make the folder, for its owner alone."""
        try:
            private_folder(self.path)
        except OSError as error:
            raise StorageError(
                f"the run folder {self} cannot be made: {error.strerror}; choose another --out"
            ) from error

    @property
    def again(self) -> str:
        """The command that continues the run."""
        if not self.has(PLAN):
            return f"`equipoise resume {self}`"
        try:
            where = keeping.read_json(self / SUBMITTED, "")["coordinator"]
        except (OSError, StorageError, KeyError):
            where = "COORDINATOR"
        return f"`equipoise submit {self / CONFIG} --to {where} --out {self}`"

    def refuse_federation(self) -> None:
        """Refuse to train here what the sites of a federation train."""
        if self.has(PLAN):
            raise ConfigError(f"{self} is a federation's run: go on with {self.again}")

    # JSON and text ------------------------------------------------------------------------------------------

    def fix(self, name: str) -> str:
        """What to do where a file is not as it was written."""
        return FIX.get(name, "delete it, then {again}").format(again=self.again)

    def read(self, name: str) -> dict[str, Any]:
        """The table in a JSON file."""
        try:
            return keeping.read_json(self / name, self.fix(name))
        except FileNotFoundError:
            raise self._missing(name) from None

    def write(self, name: str, table: Mapping[str, Any]) -> None:
        """Write a table as JSON."""
        keeping.write_json(self / name, table)

    def text(self, name: str) -> str:
        """The text in a file."""
        try:
            return keeping.read_text(self / name, self.fix(name))
        except FileNotFoundError:
            raise self._missing(name) from None

    def write_text(self, name: str, text: str) -> None:
        """Write a text."""
        keeping.write_text(self / name, text)

    def _missing(self, name: str) -> StorageError:
        if name == CONFIG:
            return StorageError(f"{self} is not a run folder: it has no {CONFIG}")
        again = self.fix(name) if name in FIX else f"{self.again} writes it"
        return StorageError(f"{self} has no {name}: {again}")

    # JSON lines ---------------------------------------------------------------------------------------------

    def rows(self, name: str, last: str | None = None) -> list[dict[str, Any]]:
        """The rows of a file; with `last`, the hash of the last one, missing rows are noticed at the end
        too."""
        lines, _ = keeping.read_lines(self / name)
        if last is not None and last != (lines[-1]["hash"] if lines else keeping.FIRST):
            raise StorageError(f"{self / name} has not the rows the run wrote: restore it, or start anew")
        return [keeping.bare(line) for line in lines]

    def append(self, name: str, row: Mapping[str, Any], sync: bool = False) -> str:
        """Add a row; the hash of its line."""
        return keeping.append_line(self / name, row, sync)

    def keep_rows(self, name: str, upto: int, last: str) -> list[dict[str, Any]]:
        """The rows of rounds that were committed; later ones, and a line that a crash cut short, are dropped.

        `last` is the hash of the last row that was committed.
        """
        lines, _ = keeping.read_lines(self / name)
        committed = [line for line in lines if line["round"] <= upto]
        if (committed[-1]["hash"] if committed else keeping.FIRST) != last:
            raise StorageError(
                f"{self / name} has not the rows it had when the newest checkpoint was written: restore it, "
                f"or start the run anew"
            )
        keeping.write_atomic(self / name, b"".join(keeping.as_bytes(line) for line in committed))
        return [keeping.bare(line) for line in committed]

    # One process at a time ----------------------------------------------------------------------------------

    @contextmanager
    def alone(self, patience: float = 30.0) -> Iterator[None]:
        """One coordinator per run folder: a run that is submitted twice, or again while its killed
        predecessor still ends, must wait."""
        end = time.monotonic() + patience
        with open(self / LOCK, "w") as file:
            while True:
                try:
                    fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                    break
                except BlockingIOError:
                    if time.monotonic() >= end:
                        raise StorageError(
                            f"another process works on the run in {self}: stop it first, or wait for it"
                        ) from None
                    time.sleep(0.2)
            yield
