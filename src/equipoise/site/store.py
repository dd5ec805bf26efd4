"""A site's private store: versions of its own tree, in its own folder, never on the wire.

The coordinator names the version to read and the version to write ("12.0" = round 12, question 0), so a
repeated round reads what it read the first time. Versions of the last two rounds are kept, and any the
coordinator pins. Every file has a digest of its tensors, its site and its version, which is checked when it
is read.
"""

from __future__ import annotations

import json
import os
import socket
import struct
from collections.abc import Collection, Iterator, Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import load_file
from torch import Tensor

from equipoise.errors import StorageError
from equipoise.keeping import DIGEST, append_line, put, sha256
from equipoise.tree import DTYPE_NAMES, flat_digest


class Store:
    """One folder per site under `root`; `durable` waits for the disk at every write; `shared` expects that
    another machine may write the same version at the same time, with the same bytes."""

    def __init__(self, root: Path, durable: bool = False, shared: bool = False) -> None:
        self.root, self.durable = root, durable
        self._writer = f".{socket.gethostname()}.{os.getpid()}" if shared else ""

    def _path(self, site: str, version: str) -> Path:
        return self.root / site / f"{version}.safetensors"

    def read(self, site: str, version: str) -> dict[str, Tensor]:
        """The flat tree of one version."""
        path = self._path(site, version)
        try:
            with safe_open(path, "pt") as file:
                claimed = (file.metadata() or {}).get(DIGEST)
            tensors = load_file(path)
            if claimed != _digest(site, version, tensors):
                raise ValueError("it does not have the digest it claims")
        except (OSError, SafetensorError, ValueError, LookupError, RuntimeError) as error:
            raise StorageError(
                f"private state '{version}' of site '{site}' cannot be read from {path}, or was changed: "
                "restore the folder, or start the run anew"
            ) from error
        return tensors

    def note(self, site: str, facts: Mapping[str, Any]) -> None:
        """One line in the site's own log."""
        path = self.root / site / "notes.jsonl"
        try:
            path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
            append_line(path, facts, sync=self.durable)
        except OSError as error:
            raise StorageError(
                f"{path} cannot be written: {error.strerror}; free disk space, then continue the run"
            ) from error

    def write(self, site: str, version: str, tensors: dict[str, Tensor], keep: Collection[str] = ()) -> None:
        """Write one version and drop those more than one round old that are not in `keep`."""
        path = self._path(site, version)
        try:
            path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
            data = _pieces(tensors, {DIGEST: _digest(site, version, tensors)})
            put(path, data, sync=self.durable, writer=self._writer)
        except OSError as error:
            raise StorageError(
                f"private state of site '{site}' cannot be written to {path}: free disk space, then "
                f"continue the run"
            ) from error
        oldest = int(version.split(".")[0]) - 1
        for old in path.parent.glob("*.safetensors*"):
            stem, _, rest = old.name.partition(".safetensors")
            if int(stem.split(".")[0]) < oldest and (rest or stem not in keep):
                old.unlink(missing_ok=True)


def _pieces(tensors: Mapping[str, Tensor], metadata: Mapping[str, str]) -> Iterator[bytes | memoryview]:
    """A safetensors file, a tensor at a time: as a whole, a model would be in memory three times."""
    table: dict[str, Any] = {"__metadata__": metadata}
    order = sorted(tensors, key=lambda name: (-tensors[name].element_size(), name))
    place = 0
    for name in order:
        x = tensors[name]
        offsets = [place, place + x.nbytes]
        table[name] = {"dtype": DTYPE_NAMES[x.dtype], "shape": list(x.shape), "data_offsets": offsets}
        place += x.nbytes
    head = json.dumps(table, separators=(",", ":")).encode()
    head += b" " * (-len(head) % 8)
    yield struct.pack("<Q", len(head))
    yield head
    for name in order:
        if tensors[name].numel():
            yield tensors[name].detach().cpu().contiguous().view(-1).view(torch.uint8).numpy().data


def _digest(site: str, version: str, tensors: Mapping[str, Tensor]) -> str:
    """The digest of one version of one site: under another name the same tensors have another."""
    return sha256(f"{site} {version} {flat_digest(tensors)}".encode())
