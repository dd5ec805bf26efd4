"""A run from config to result: the hall where the rooms meet."""

from __future__ import annotations

import hashlib
import json
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import tomli_w
import torch

from equipoise.config import Config, read, read_folder, resolve
from equipoise.engine import Engine, Host, Pool, Serial, frames, probe
from equipoise.errors import StorageError
from equipoise.evaluate import Board, Evaluation
from equipoise.exchange import Ledger
from equipoise.server import Checkpoints, Federation, Journal, drawn
from equipoise.server.checkpoint import write_atomic
from equipoise.setup import SIGHT, Material, keep_memory, make_host, make_sight, material
from equipoise.tree import Tree, digest
from equipoise.trust import CODE, recorded

Watch = Callable[[str, dict[str, Any]], None]
"""told of events: ("data", …), ("round", …), ("answer", …)"""


@dataclass(frozen=True)
class Result:
    """What a run came to."""

    folder: Path
    server: Tree
    state_hash: str
    rounds: list[int]
    """the rounds that were selected"""
    metrics: dict[str, Any]
    history: list[dict[str, Any]]
    classes: tuple[str, ...]

    def summary(self) -> dict[str, Any]:
        """What `run --json` prints."""
        return {
            "state_hash": self.state_hash,
            "selected_rounds": self.rounds,
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
    """Train as the config says, into the folder `out` (a temporary one if none), from where it was left if it was begun.

    `config` is a path to a TOML file, a table, or a resolved config. `wrap` puts something around the engine (tests use it to
    lose or spoil answers).
    """
    if isinstance(config, str | Path):
        config = read(Path(config))
    elif not isinstance(config, Config):
        config = resolve(config)
    folder = Path(out) if out is not None else Path(tempfile.mkdtemp(prefix="equipoise-"))
    claim(folder, config)
    watch = watch or (lambda event, facts: None)
    with one_thread():
        stuff = material(config, lambda text, done, total: watch("data", {"text": text, "done": done, "total": total}))
        host = make_host(config, stuff, folder / "sites")
        ledger = make_ledger(config, host, stuff)
        write_atomic(folder / "ledger.json", json.dumps(ledger.rows(), indent=1).encode())
        watch("begin", {"sites": stuff.sizes, "classes": stuff.samples.classes, "rounds": config.train.rounds})
        engine = make_engine(config, host, stuff, folder)
        journal = Journal(folder / "journal.jsonl")
        try:
            return train(config, stuff, host, ledger, wrap(engine) if wrap else engine, journal, folder, watch)
        finally:
            journal.close()
            engine.close()


def resume(folder: str | Path, *, watch: Watch | None = None, trust: bool = False) -> Result:
    """Go on with the run in a folder; `trust` lets it run a method's file or module that you have not run before."""
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
) -> Result:
    board: Board | None = None

    def tell(row: dict[str, Any]) -> None:
        if board is not None:
            board.write(row)
        watch("round", row)

    evaluation = Evaluation(
        config.method,
        config.evaluate,
        stuff.samples,
        stuff.holdings,
        stuff.counts(),
        config.train.rounds,
        folder / "metrics.jsonl",
        tell=tell,
    )
    view = host.views["eval"]
    sight = make_sight(config, stuff, (tuple(view.mean.tolist()), tuple(view.std.tolist())))
    write_atomic(folder / SIGHT, sight.model_dump_json(indent=1).encode())
    checkpoints = Checkpoints(folder / "checkpoints")
    found = checkpoints.newest()
    evaluation.resume(-1 if found is None else sys.maxsize if found[1].finished else found[1].round)
    if config.evaluate.tensorboard and not (found and found[1].finished):
        board = Board(folder, stuff.samples.classes, found[1].round if found else 0)
    journal.write("resumed" if found else "started", config=config.digest, data=stuff.samples.fingerprint, code=code_hash())
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
        progress=lambda question, site: watch("answer", {"question": question, "site": site}),
    )
    try:
        server = federation.run(host.init)
    finally:
        if board is not None:
            board.close()
    rounds, metrics = evaluation.selected() if config.train.rounds else ([], {})
    result = Result(folder, server, digest(server), rounds, metrics, evaluation.history, stuff.samples.classes)
    write_atomic(folder / "result.json", json.dumps(result.summary(), indent=1).encode())
    return result


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


def make_engine(config: Config, host: Host, stuff: Material, folder: Path) -> Engine:
    """The engine the config asks for."""
    if config.engine.kind == "serial":
        return Serial(host)
    setup = {"config": config.table(), "code": _mark(config), "private": str(folder / "sites")}
    return Pool(frames.command("equipoise.worker"), json.dumps(setup).encode(), config.engine.workers, stuff.sizes)


def claim(folder: Path, config: Config) -> None:
    """Make the run folder, or check that the one there is of this very run."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise StorageError(f"the run folder {folder} cannot be made: {error.strerror}; choose another --out") from error
    path = folder / "config.toml"
    if not path.exists():
        if config.code is not None:
            write_atomic(folder / CODE, json.dumps({"name": config.method_name, "fingerprint": _mark(config)}).encode())
        write_atomic(path, tomli_w.dumps(config.table()).encode())
    elif read_folder(folder).digest != config.digest:
        raise StorageError(f"{folder} holds a run with another config: choose another --out, or `equipoise resume {folder}`")
    elif recorded(folder) not in (None, _mark(config)):
        raise StorageError(
            f"the code of '{config.method_name}' has changed since the run in {folder} began: restore it, choose another --out, "
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
