"""Files of a federated run that were spoiled: one sentence with the file and the way out, before anything
runs."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from equipoise.config import Config
from equipoise.deploy import link
from equipoise.deploy.card import LONGEST
from equipoise.deploy.coordinator import coordinate, federated, plan, read_roster
from equipoise.errors import StorageError
from equipoise.keeping import write_json
from equipoise.run_folder import RunFolder

MakeConfig = Callable[..., Config]
SPOILED = {
    "empty": b"",
    "cut": b'{"north": {"cla',
    "not text": b"\x00\xff\xfe",
    "a list": b"[1, 2]",
    "a number": b"7",
    "nothing": b"null",
    "no site": b"{}",
    "another shape": b'{"north": 7}',
    "half a card": b'{"north": {"classes": ["a", "b"]}}',
    "nested": b"[" * 100_000,
}


@pytest.mark.parametrize("how", SPOILED)
@pytest.mark.parametrize("name", ["roster.json", "federation.json"])
def test_a_damaged_file_is_named(name: str, how: str, tiny: MakeConfig, tmp_path: Path) -> None:
    """At `submit`, and where the run itself reads it."""
    config = federated(tiny("fedavg"))
    plan(config, tmp_path / "run", {"north": b"key"})
    (tmp_path / "run" / name).write_bytes(SPOILED[how])
    with pytest.raises(StorageError, match=rf"{name} is (missing or )?damaged.*new folder"):
        plan(config, tmp_path / "run", {"north": b"key"})
    with pytest.raises(StorageError, match=name):
        coordinate(Nobody(), tmp_path / "run")


class Nobody:
    """A grid on which no site is to be found."""

    def get_nodes(self) -> list[Any]:
        raise AssertionError("nobody is to be asked")

    push_messages = pull_messages = get_nodes


def test_a_roster_that_is_whole_is_read(tmp_path: Path) -> None:
    splits = ("train", "validation", "test")
    card = {"classes": ["a", "b"], "task": "single", "shape": [8, 8, 3], "partial": False, "input": LONGEST}
    card |= {"images": dict.fromkeys(splits, 3), "counts": {split: [1, 2] for split in splits}}
    write_json(tmp_path / "roster.json", {"sites": {"north": card}})
    assert read_roster(RunFolder(tmp_path)) == {"north": card}


@pytest.mark.parametrize("how", SPOILED)
def test_a_damaged_server_file_says_how_to_start_one(how: str, tmp_path: Path) -> None:
    (tmp_path / "server.json").write_bytes(SPOILED[how])
    with (
        pytest.raises(StorageError, match=r"server\.json is damaged.*start the server again"),
        link.control(tmp_path),
    ):
        raise AssertionError


@pytest.mark.parametrize("how", ["empty", "cut", "not text", "a number", "nothing", "nested"])
def test_a_damaged_result_is_named(how: str, tmp_path: Path) -> None:
    (tmp_path / "result.json").write_bytes(SPOILED[how])
    with pytest.raises(StorageError, match=r"result\.json is damaged"):
        RunFolder(tmp_path).read("result.json")
