"""A run from config to result: the hall where the rooms meet."""

from __future__ import annotations

import hashlib
import json
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from importlib.metadata import version
from pathlib import Path
from typing import Any

import tomli_w
import torch

from equipoise.config import KEPT, Config, departures, read, read_folder, resolve
from equipoise.engine import Engine, Host, Pool, Serial, frames, probe
from equipoise.errors import StorageError
from equipoise.evaluate import ENDING, Evaluation
from equipoise.exchange import Bounds, Ledger
from equipoise.keeping import FIRST, read_json, write_json, write_text
from equipoise.server import Checkpoints, Federation, Header, Journal, check_same, drawn
from equipoise.server.folders import private_folder
from equipoise.setup import SIGHT, Material, keep_memory, make_host, make_sight, material
from equipoise.trackers import Tracker, Tracking, describe, make
from equipoise.tree import Tree, digest
from equipoise.trust import CODE, recorded

Watch = Callable[[str, dict[str, Any]], None]
"""told of events: ("data", …), ("note", …), ("round", …), ("answer", …), ("rejected", …)"""

RESULT, LEDGER = "result.json", "ledger.json"


@dataclass(frozen=True)
class Result:
    """What a run came to."""

    folder: Path
    server: Tree
    state_hash: str
    rounds: list[int]
    """the rounds that are reported; a method's ending counts as one after the last"""
    ending_of: list[int]
    """the rounds whose endings those are; none where the method has no ending"""
    metrics: dict[str, Any]
    history: list[dict[str, Any]]
    classes: tuple[str, ...]

    def summary(self) -> dict[str, Any]:
        """What `run --json` prints."""
        return {
            "state_hash": self.state_hash,
            "selected_rounds": self.rounds,
            "ending_of": self.ending_of,
            "metrics": self.metrics,
            "classes": list(self.classes),
            "folder": str(self.folder),
        }


def run(
    config: Config | Mapping[str, Any] | str | Path,
    out: str | Path | None = None,
    *,
    watch: Watch | None = None,
    wrap: Callable[[Engine], Engine] | None = None,
) -> Result:
    """Train as the config says, into the folder `out` (a temporary one if none), from where it was left if it
    was begun.

    `config` is a path to a TOML file, a table, or a resolved config. `wrap` puts something around the engine
    (tests use it to lose or spoil answers).
    """
    if isinstance(config, str | Path):
        config = read(Path(config))
    elif not isinstance(config, Config):
        config = resolve(config)
    folder = Path(out) if out is not None else Path(tempfile.mkdtemp(prefix="equipoise-"))
    claim(folder, config)
    watch = watch or (lambda event, facts: None)
    steps: dict[str, None] = {}

    def read_data(text: str, done: int, total: int) -> None:
        steps[text] = None
        watch("data", {"text": text, "done": done, "total": total})

    with one_thread():
        stuff = material(config, read_data)
        host = make_host(config, stuff, folder / "sites")
        ledger = make_ledger(config, host, stuff)
        watch(
            "begin", {"sites": stuff.sizes, "classes": stuff.samples.classes, "rounds": config.train.rounds}
        )
        engine = make_engine(config, host, stuff, folder)
        journal = Journal(folder / "journal.jsonl")
        try:
            if steps:
                journal.write("read data", steps=list(steps))
            return train(
                config, stuff, host, ledger, wrap(engine) if wrap else engine, journal, folder, watch
            )
        finally:
            journal.close()
            engine.close()


def resume(folder: str | Path, *, watch: Watch | None = None, trust: bool = False) -> Result:
    """Go on with the run in a folder; `trust` lets it run a method's file or module that you have not run
    before."""
    return run(read_folder(Path(folder), trust), folder, watch=watch)


def train(
    config: Config,
    stuff: Material,
    host: Host,
    ledger: Ledger,
    engine: Engine,
    journal: Journal,
    folder: Path,
    watch: Watch,
    joining: Sequence[Mapping[str, Any]] = (),
) -> Result:
    """The run in a folder, from its newest checkpoint on if there is one.

    `joining` are the rows of the ledger before any question.
    """
    checkpoints = Checkpoints(folder / "checkpoints")
    found = checkpoints.newest()
    begun = found[1] if found else None
    if begun:
        check_same(begun, folder, config.digest, stuff.samples.fingerprint, journal)
    for text in departures(config):
        watch("note", {"text": text})

    def tell(row: dict[str, Any]) -> None:
        tracking.row(row)
        watch("round", row)

    held = stuff.held()
    evaluation = Evaluation(
        config.method,
        config.evaluate,
        stuff.samples,
        stuff.holdings,
        stuff.counts(),
        config.train.rounds,
        folder / "metrics.jsonl",
        tell=tell,
        held=held,
    )
    view = host.views["eval"]
    sight = make_sight(config, stuff, (tuple(view.mean.tolist()), tuple(view.std.tolist())))
    evaluation.resume(_done(begun), begun.metrics if begun else FIRST)
    write_json(folder / SIGHT, sight.model_dump(mode="json"))
    write_json(folder / LEDGER, {"leaves": [*joining, *ledger.rows()]})
    tracking = make_tracking(config, stuff, folder, evaluation.history)
    journal.write(
        "resumed" if begun else "started",
        config=config.digest,
        data=stuff.samples.fingerprint,
        code=code_hash(),
    )
    federation = Federation(
        method=config.method,
        engine=engine,
        ledger=ledger,
        limits=config.exchange,
        journal=journal,
        checkpoints=checkpoints,
        sites=tuple(holding.name for holding in stuff.holdings),
        rounds=config.train.rounds,
        seed=config.train.seed,
        participation=config.train.participation,
        config_hash=config.digest,
        observer=evaluation,
        bounds=Bounds(
            config.method.limits(len(stuff.samples.classes), config.train.epochs),
            {site: {split: part.images for split, part in splits.items()} for site, splits in held.items()},
        ),
        objection=evaluation.objection,
        told=lambda reason: watch("rejected", {"reason": reason}),
        progress=lambda question, site: watch("answer", {"question": question, "site": site}),
        data=stuff.samples.fingerprint,
    )
    try:
        server = federation.run(host.init)
    except BaseException:
        tracking.end(None)
        raise
    rounds, metrics = evaluation.selected() if config.train.rounds else ([], {})
    ending_of = [row[ENDING] for row in evaluation.history if row["round"] in rounds and ENDING in row]
    result = Result(
        folder, server, digest(server), rounds, ending_of, metrics, evaluation.history, stuff.samples.classes
    )
    marks = {"metrics_hash": evaluation.mark(), "journal_hash": journal.head}
    write_json(folder / RESULT, result.summary() | marks)
    tracking.end(result.summary())
    return result


def read_result(folder: Path) -> dict[str, Any]:
    """What a finished run came to: `Result.summary`, the hash of its last row of metrics and its journal's
    head."""
    return read_json(folder / RESULT, f"delete it, then `equipoise resume {folder}`")


def _done(begun: Header | None) -> int:
    """The last round whose metrics count."""
    if begun is None:
        return -1
    return sys.maxsize if begun.finished else begun.round


@cache
def code_hash() -> str:
    """sha256 over the files of this package: which code trained a model."""
    sha = hashlib.sha256()
    root = Path(__file__).parent
    for path in sorted(root.rglob("*.py")):
        sha.update(f"{path.relative_to(root).as_posix()}\0".encode() + path.read_bytes() + b"\0")
    return sha.hexdigest()


def make_ledger(config: Config, host: Host, stuff: Material) -> Ledger:
    """What this run will exchange."""
    return probe(host, drawn(config.train.participation, len(stuff.holdings)), config.evaluate.exact)


def make_tracking(
    config: Config, stuff: Material, folder: Path, history: Sequence[Mapping[str, Any]]
) -> Tracking:
    """The trackers of the config, told that the run begins; none for a run that has its result."""
    tags = {
        "method": config.method_name,
        "version": version("equipoise"),
        "code": code_hash(),
        "config": config.digest,
        "data": stuff.samples.fingerprint,
    }
    run = describe(folder, config.table(), stuff.samples.classes, tags, history)
    return Tracking(_trackers(config, folder), run)


def _trackers(config: Config, folder: Path) -> dict[str, Tracker]:
    if (folder / RESULT).exists():
        return {}
    return make(config.evaluate.trackers, config.base, config.allow)


def make_engine(config: Config, host: Host, stuff: Material, folder: Path) -> Engine:
    """The engine the config asks for."""
    if config.engine.kind == "serial":
        return Serial(host)
    code, fingerprint = _mark(config), stuff.samples.fingerprint
    setup = {"config": config.table(), "code": code, "private": str(folder / "sites"), "data": fingerprint}
    return Pool(
        frames.command("equipoise.worker"), json.dumps(setup).encode(), config.engine.workers, stuff.sizes
    )


def claim(folder: Path, config: Config) -> None:
    """Make the run folder, or check that the one there is of this very run; refuse trackers that cannot be
    had."""
    _trackers(config, folder)
    try:
        private_folder(folder)
    except OSError as error:
        raise StorageError(
            f"the run folder {folder} cannot be made: {error.strerror}; choose another --out"
        ) from error
    path = folder / KEPT
    if not path.exists():
        if config.code is not None:
            write_json(folder / CODE, {"name": config.method_name, "fingerprint": _mark(config)})
        write_text(path, tomli_w.dumps(config.table()))
    elif read_folder(folder).digest != config.digest:
        raise StorageError(
            f"{folder} holds a run with another config: choose another --out, or `equipoise resume {folder}`"
        )
    elif recorded(folder) not in (None, _mark(config)):
        raise StorageError(
            f"the code of '{config.method_name}' has changed since the run in {folder} began: restore it, "
            f"choose another --out, "
            f"or delete {folder / CODE} to go on with the changed code"
        )


def _mark(config: Config) -> str | None:
    """The fingerprint of the method's code, where that is the user's own."""
    return None if config.code is None else config.code.fingerprint


@contextmanager
def one_thread() -> Iterator[None]:
    """Arithmetic in one thread, so that sums have one order on any number of cores."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    keep_memory()
    try:
        yield
    finally:
        torch.set_num_threads(before)
