"""Readers of what trackers wrote, apart from the code that wrote it."""

from __future__ import annotations

import json
import struct
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from equipoise.config import Config
from equipoise.running import Result, run

BLOCK, HEADER = 32768, 7


def interrupted(config: Config, folder: Path, round: int) -> None:
    """A run that is stopped after it has told of a round and before that round is committed."""

    def stop(event: str, facts: dict[str, Any]) -> None:
        if event == "round" and facts["round"] == round:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        run(config, folder, watch=stop)


def twice(config: Config, folder: Path) -> tuple[Result, list[dict[str, Any]]]:
    """A run of three rounds that is interrupted in its second and resumed; its result and its rows."""
    interrupted(config, folder, 2)
    done = run(config, folder)
    rows = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    assert [row["round"] for row in rows] == [1, 2, 3]
    return done, rows


def wandb_records(path: Path) -> Iterator[Any]:
    """The records of a .wandb file: protobuf messages in the format of LevelDB's log."""
    import wandb
    from wandb.proto.wandb_internal_pb2 import Record

    wandb.teardown()  # waits until its process has written all
    data, at, parts = path.read_bytes(), HEADER, b""
    assert data.startswith(b":W&B")
    while at + HEADER <= len(data):
        left = BLOCK - at % BLOCK
        if left < HEADER:
            at += left
            continue
        size, kind = struct.unpack_from("<HB", data, at + 4)
        parts += data[at + HEADER : at + HEADER + size]
        at += HEADER + size
        if kind in (1, 4):  # a whole record, or its last part
            yield Record.FromString(parts)
            parts = b""


def wandb_rows(path: Path) -> list[tuple[int, dict[str, float]]]:
    """Step and numbers of every row of an offline run."""
    found = []
    for record in wandb_records(path):
        if record.WhichOneof("record_type") == "history":
            items = {
                item.key or "/".join(item.nested_key): json.loads(item.value_json)
                for item in record.history.item
            }
            numbers = {key: value for key, value in items.items() if not key.startswith("_")}
            found.append((record.history.step.num, numbers))
    return found
