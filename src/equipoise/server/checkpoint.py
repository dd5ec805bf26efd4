"""Checkpoints: one safetensors file per round with a JSON header, and a head file that names the newest.

Written to a temporary name, synced, renamed; the head file is renamed last. So at any moment, `kill -9`
included, the head names a whole checkpoint. `Commits` writes them behind the round that follows. Header and
tensors have digests that are checked at every reading; the header also says what the run was begun with, so
that it does not resume from anything else.
"""

from __future__ import annotations

from collections.abc import Callable, Container, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Self

from equipoise.errors import StorageError
from equipoise.exchange import seal, unseal
from equipoise.exchange.codec import CodecError
from equipoise.keeping import read_json, write_atomic, write_json
from equipoise.run_folder import JOURNAL, RunFolder
from equipoise.tree import Tree, digest, flatten, unflatten

HEAD = "HEAD.json"


@dataclass(frozen=True)
class Header:
    """The metadata of a checkpoint."""

    round: int
    """rounds done"""
    config: str
    """hash of the resolved config"""
    state: str
    """digest of the server tree"""
    parent: str
    """digest of the checkpoint before"""
    versions: dict[str, str] = field(default_factory=dict)
    """by site: the committed version of its private tree"""
    norms: dict[str, float] = field(default_factory=dict)
    """by question.leaf: how large answers have been, see `exchange.Sizes`"""
    finished: bool = False
    data: str = ""
    """the fingerprint of the data the run was begun with"""
    metrics: str = ""
    """the hash of the last row of metrics up to this round"""
    journal: str = ""
    """the head of the journal when the round was done"""


class Checkpoints:
    """The checkpoints of one run folder; the newest two and pinned ones are kept."""

    def __init__(self, folder: Path, make: bool = True) -> None:
        self.folder = folder
        if make:
            folder.mkdir(parents=True, exist_ok=True)

    def path(self, round: int) -> Path:
        return self.folder / f"round-{round:06d}.safetensors"

    def save(self, server: Tree, header: Header, pinned: frozenset[int] = frozenset()) -> None:
        """Write a checkpoint and make it the newest."""
        files = self.folder.glob("round-*.safetensors")
        numbers = {int(old.stem.removeprefix("round-")): old for old in files}
        older = [number for number in sorted(numbers) if number < header.round - 1]
        spare = [numbers[number] for number in older if number not in pinned]
        data = seal(asdict(header), flatten(server), header.state)
        write_atomic(self.path(header.round), data, spare.pop() if spare else None)
        write_json(self.folder / HEAD, {"round": header.round, "state": header.state})
        for old in spare:
            old.unlink(missing_ok=True)

    def rounds(self) -> list[int]:
        """The rounds of which there is a checkpoint."""
        files = self.folder.glob("round-*.safetensors")
        return sorted(int(path.stem.removeprefix("round-")) for path in files)

    def newest(self) -> tuple[Tree, Header] | None:
        """The newest checkpoint, or None before the first. Where the head file is gone, that of the latest
        round."""
        head = self.folder / HEAD
        try:
            named = read_json(head, "delete it; the run then continues from the newest checkpoint there is")
        except FileNotFoundError:
            there = self.rounds()
            return self.load(there[-1]) if there else None
        server, header = self.load(named["round"])
        if header.state != named["state"]:
            raise StorageError(
                f"{self.path(header.round)} is not the checkpoint that {head} names: restore it, or start "
                f"the run anew"
            )
        return server, header

    def load(self, round: int) -> tuple[Tree, Header]:
        """One checkpoint, checked against its own digests."""
        path = self.path(round)
        try:
            fields, flat = unseal(path.read_bytes())
            header, server = Header(**fields), unflatten(flat)
        except (OSError, CodecError, TypeError, ValueError) as error:
            why = f" ({error})" if isinstance(error, CodecError) else ""
            raise StorageError(
                f"checkpoint {path} is missing or damaged: restore it, or start the run anew{why}"
            ) from error
        if header.round != round:
            raise StorageError(
                f"checkpoint {path} is that of round {header.round}: restore it, or start the run anew"
            )
        return with_branches(server), header


class Commits:
    """Checkpoints written in a thread while the next round is under way, one at a time and in order.

    `durable` is the newest checkpoint known to be on disk: what a crash at this moment would resume from.
    Leaving the `with` block waits for the last one, also when the round after it failed. `marks` are a
    header's `metrics` and `journal`; `sync` sees to it that what they speak of is on disk before the
    checkpoint.
    """

    def __init__(
        self,
        checkpoints: Checkpoints,
        config: str,
        durable: Header | None,
        on_saved: Callable[[Header], None],
        data: str = "",
        marks: Callable[[], tuple[str, str]] = lambda: ("", ""),
        sync: Callable[[], None] = lambda: None,
    ) -> None:
        self.durable = durable
        self._checkpoints, self._config, self._on_saved = checkpoints, config, on_saved
        self._data, self._marks, self._sync = data, marks, sync
        self._thread = ThreadPoolExecutor(1, "checkpoint")
        self._pending: Future[Header] | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        try:
            self.settle()
        except StorageError:
            if error[0] is None:
                raise
        finally:
            self._thread.shutdown()

    def save(
        self,
        server: Tree,
        round: int,
        versions: Mapping[str, str],
        pinned: frozenset[int] = frozenset(),
        norms: Mapping[str, float] | None = None,
        finished: bool = False,
    ) -> None:
        """Write a checkpoint soon; `server` must not be changed any more. Waits for the one before."""
        before = self.settle()
        metrics, journal = self._marks()
        # A finished run replaces the checkpoint of its last round, and has the same parent.
        parent = "" if before is None else before.parent if before.round == round else before.state

        def write() -> Header:
            header = Header(
                round=round,
                config=self._config,
                state=digest(server),
                parent=parent,
                versions=dict(versions),
                norms=dict(norms or {}),
                finished=finished,
                data=self._data,
                metrics=metrics,
                journal=journal,
            )
            self._sync()
            self._checkpoints.save(server, header, pinned)
            return header

        self._pending = self._thread.submit(write)

    def settle(self) -> Header | None:
        """Wait until the last checkpoint is on disk; its header."""
        if self._pending is not None:
            pending, self._pending = self._pending, None
            self.durable = pending.result()
            self._on_saved(self.durable)
        return self.durable


def with_branches(server: Tree) -> Tree:
    """An empty model (a method that shares nothing) leaves no tensor behind; give its branch back."""
    return server if "model" in server else {**server, "model": {}}


def check_same(header: Header, folder: RunFolder, config: str, data: str, journal: Container[object]) -> None:
    """Refuse to go on from a checkpoint with another config, other data, or a journal that does not reach to
    it."""
    anew = "or start a new run in another folder"
    if header.config != config:
        raise StorageError(
            f"{folder} was begun with another config than its config.toml has now: undo the change, {anew}"
        )
    if header.data != data:
        raise StorageError(
            f"{folder}: the data are not those the run was begun with: bring those back, {anew}"
        )
    if header.journal not in journal:
        raise StorageError(
            f"{folder / JOURNAL} has lost lines or was written anew since round {header.round}: "
            f"restore it, {anew}"
        )
