"""Checkpoints: one safetensors file per round with a JSON header, and a head file that names the newest.

Written to a temporary name, synced, renamed; the head file is renamed last. So at any moment, `kill -9` included, the head names
a whole checkpoint. `Commits` writes them behind the round that follows.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Self

from equipoise.errors import StorageError
from equipoise.exchange import pack, unpack
from equipoise.exchange.codec import CodecError
from equipoise.tree import Tree, digest, flatten, unflatten

HEAD = "HEAD.json"


@dataclass(frozen=True)
class Header:
    """What a checkpoint says of itself."""

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


def write_atomic(path: Path, data: bytes, recycle: Path | None = None) -> None:
    """tmp → fsync → rename. An old file given to `recycle` is written over and renamed: its place on disk is there already."""
    part = path.with_name(path.name + ".part")
    try:
        if recycle is not None:
            os.replace(recycle, part)
        with open(part, "wb" if recycle is None else "r+b") as file:
            file.write(data)
            file.truncate()
            file.flush()
            os.fsync(file.fileno())
        os.replace(part, path)
    except OSError as error:
        raise StorageError(f"{path} cannot be written: {error.strerror}; free disk space, then `equipoise resume`") from error


class Checkpoints:
    """The checkpoints of one run folder; the newest two and pinned ones are kept."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        folder.mkdir(parents=True, exist_ok=True)

    def path(self, round: int) -> Path:
        return self.folder / f"round-{round:06d}.safetensors"

    def save(self, server: Tree, header: Header, pinned: frozenset[int] = frozenset()) -> None:
        """Write a checkpoint and make it the newest."""
        numbers = {int(old.stem.removeprefix("round-")): old for old in self.folder.glob("round-*.safetensors")}
        spare = [old for number, old in sorted(numbers.items()) if number not in pinned and number < header.round - 1]
        write_atomic(self.path(header.round), pack(asdict(header), flatten(server)), spare.pop() if spare else None)
        write_atomic(self.folder / HEAD, json.dumps({"round": header.round, "state": header.state}).encode())
        for old in spare:
            old.unlink(missing_ok=True)

    def newest(self) -> tuple[Tree, Header] | None:
        """The newest checkpoint, or None before the first."""
        head = self.folder / HEAD
        if not head.exists():
            return None
        try:
            number = int(json.loads(head.read_bytes())["round"])
        except (OSError, ValueError, KeyError, TypeError, OverflowError) as error:
            raise StorageError(f'{head} is damaged: name a whole checkpoint in it as {{"round": N}}, or start anew') from error
        return self.load(number)

    def load(self, round: int) -> tuple[Tree, Header]:
        """One checkpoint, checked against its own digest."""
        path = self.path(round)
        try:
            fields, flat = unpack(path.read_bytes())
            header = Header(**fields)
        except (OSError, CodecError, TypeError) as error:
            raise StorageError(f"checkpoint {path} is missing or damaged: restore it, or start the run anew") from error
        server = unflatten(flat)
        if digest(server) != header.state:
            raise StorageError(f"checkpoint {path} does not have the digest it claims: restore it, or start the run anew")
        return with_branches(server, fields), header


class Commits:
    """Checkpoints written in a thread while the next round is under way, one at a time and in order.

    `durable` is the newest checkpoint known to be on disk: what a crash at this moment would resume from. Leaving the `with` block
    waits for the last one, also when the round after it failed.
    """

    def __init__(self, checkpoints: Checkpoints, config: str, durable: Header | None, told: Callable[[Header], None]) -> None:
        self.durable = durable
        self._checkpoints, self._config, self._told = checkpoints, config, told
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
        # A finished run replaces the checkpoint of its last round, and has the same parent.
        parent = "" if before is None else before.parent if before.round == round else before.state

        def write() -> Header:
            header = Header(round, self._config, digest(server), parent, dict(versions), dict(norms or {}), finished)
            self._checkpoints.save(server, header, pinned)
            return header

        self._pending = self._thread.submit(write)

    def settle(self) -> Header | None:
        """Wait until the last checkpoint is on disk; its header."""
        if self._pending is not None:
            pending, self._pending = self._pending, None
            self.durable = pending.result()
            self._told(self.durable)
        return self.durable


def with_branches(server: Tree, fields: dict[str, Any]) -> Tree:
    """An empty model (a method that shares nothing) leaves no tensor behind; give its branch back."""
    return server if "model" in server else {**server, "model": {}}
