"""Checkpoints: whole at any moment, whatever step fails; damage is told in one sentence."""

from __future__ import annotations

import errno
import os
import threading
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from equipoise.errors import StorageError
from equipoise.exchange import pack, unpack
from equipoise.keeping import write_atomic, write_json
from equipoise.server import Checkpoints, Header
from equipoise.server.checkpoint import HEAD, Commits
from equipoise.tree import Tree, digest, flatten


def tree(n: int) -> Tree:
    return {"model": {"w": torch.full((3,), float(n))}, "momentum": torch.tensor(n)}


def header(n: int, **facts: Any) -> Header:
    return replace(Header(n, "config", digest(tree(n)), f"parent-{n}", {"a": f"{n}.0"}), **facts)


def save(checkpoints: Checkpoints, n: int, **facts: Any) -> None:
    checkpoints.save(tree(n), header(n), **facts)


@pytest.fixture
def checkpoints(tmp_path: Path) -> Checkpoints:
    return Checkpoints(tmp_path / "checkpoints")


def test_the_newest_comes_back(checkpoints: Checkpoints) -> None:
    assert checkpoints.newest() is None
    for n in range(4):
        save(checkpoints, n)
    found = checkpoints.newest()
    assert found is not None
    assert digest(found[0]) == digest(tree(3))
    assert found[1] == header(3)
    assert [path.name for path in sorted(checkpoints.folder.glob("round-*"))] == [
        "round-000002.safetensors",
        "round-000003.safetensors",
    ]


def test_pinned_rounds_stay(checkpoints: Checkpoints) -> None:
    for n in range(5):
        save(checkpoints, n, pinned=frozenset({1}))
    assert sorted(int(path.stem[-6:]) for path in checkpoints.folder.glob("round-*")) == [1, 3, 4]
    assert digest(checkpoints.load(1)[0]) == digest(tree(1))


def test_a_method_that_shares_nothing_gets_its_empty_model_back(checkpoints: Checkpoints) -> None:
    checkpoints.save({"model": {}}, Header(0, "c", digest({"model": {}}), ""))
    found = checkpoints.newest()
    assert found is not None
    assert found[0] == {"model": {}}


class Crash(Exception):
    """The process is gone."""


@pytest.mark.parametrize("kind", [Crash, OSError])
@pytest.mark.parametrize("step", range(8))
def test_a_crash_at_any_step_leaves_a_whole_checkpoint(
    step: int, kind: type[Exception], checkpoints: Checkpoints, monkeypatch: pytest.MonkeyPatch
) -> None:
    save(checkpoints, 0)
    save(checkpoints, 1)
    done = 0

    def fails(real: Any) -> Any:
        def call(*args: Any, **kwargs: Any) -> Any:
            nonlocal done
            done += 1
            if done == step + 1:
                raise kind(errno.ENOSPC, "No space left on device")
            return real(*args, **kwargs)

        return call

    # The steps of one save, in order: the oldest round's file is taken over, (open, fsync, replace) of the
    # checkpoint, of the head.
    with monkeypatch.context() as patch:
        patch.setattr("builtins.open", fails(open))
        patch.setattr(os, "fsync", fails(os.fsync))
        patch.setattr(os, "replace", fails(os.replace))
        patch.setattr(Path, "unlink", fails(Path.unlink))
        if step < 7:
            with pytest.raises((Crash, StorageError)):
                save(checkpoints, 2)
        else:
            save(checkpoints, 2)  # there are only seven
    found = checkpoints.newest()
    assert found is not None
    assert found[1].round == (1 if step < 7 else 2)
    assert digest(found[0]) == digest(tree(found[1].round))
    save(checkpoints, 2)
    again = checkpoints.newest()
    assert again is not None
    assert again[1] == header(2)


def test_half_a_write_leaves_the_old_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_atomic(tmp_path / "x", b"old")

    def full(fd: int) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(
        StorageError,
        match=r"x cannot be written: No space left on device; free disk space, then continue the run",
    ):
        write_atomic(tmp_path / "x", b"new and longer")
    assert (tmp_path / "x").read_bytes() == b"old"


@pytest.mark.parametrize(
    "text",
    [b"", b"{", b"[]", b"{}", b'{"round": null}', b'{"round": "two"}', b'{"round": 1e999}', b"\xff\xfe\x00"],
)
def test_a_damaged_head_is_told(text: bytes, checkpoints: Checkpoints) -> None:
    save(checkpoints, 0)
    (checkpoints.folder / HEAD).write_bytes(text)
    with pytest.raises(
        StorageError, match=r"HEAD\.json is damaged or was changed.*: delete it; the run then continues"
    ):
        checkpoints.newest()


def test_without_a_head_the_latest_round_is_taken(checkpoints: Checkpoints) -> None:
    for n in (0, 1):
        save(checkpoints, n)
    (checkpoints.folder / HEAD).unlink()
    found = checkpoints.newest()
    assert found is not None
    assert found[1] == header(1)


def test_a_head_that_names_nothing_is_told(checkpoints: Checkpoints) -> None:
    save(checkpoints, 0)
    write_json(checkpoints.folder / HEAD, {"round": 7, "state": ""})
    with pytest.raises(StorageError, match=r"is missing or damaged: restore it, or start the run anew"):
        checkpoints.newest()


def test_a_damaged_checkpoint_is_told(checkpoints: Checkpoints) -> None:
    save(checkpoints, 3)
    path = checkpoints.path(3)
    whole = path.read_bytes()
    for damaged in (
        b"",
        whole[:20],
        whole[:-1],
        b"\0" * len(whole),
        pack({"round": 3}, {}),
        pack({"other": 1}, flatten(tree(3))),
    ):
        path.write_bytes(damaged)
        with pytest.raises(StorageError, match=r"round-000003\.safetensors is missing or damaged"):
            checkpoints.newest()
    path.write_bytes(whole)
    assert checkpoints.newest() is not None


def test_changed_tensors_are_found_by_the_digest(checkpoints: Checkpoints) -> None:
    save(checkpoints, 3)
    path = checkpoints.path(3)
    data = bytearray(path.read_bytes())
    data[-1] ^= 1
    path.write_bytes(data)
    with pytest.raises(StorageError, match="its tensors do not have the digest they claim"):
        checkpoints.newest()
    fields, flat = unpack(bytes(data))
    path.write_bytes(pack(fields, {**flat, "extra": torch.ones(1)}))
    with pytest.raises(StorageError, match="its tensors do not have the digest they claim"):
        checkpoints.newest()


@pytest.mark.parametrize(
    "changes", [{"round": 4}, {"config": "other"}, {"versions": {"a": "2.0"}}, {"finished": True}]
)
def test_a_changed_header_is_found_by_its_digest(changes: dict[str, Any], checkpoints: Checkpoints) -> None:
    save(checkpoints, 3)
    path = checkpoints.path(3)
    fields, flat = unpack(path.read_bytes())
    path.write_bytes(pack(fields | changes, flat))
    with pytest.raises(StorageError, match="its header does not have the digest it claims"):
        checkpoints.newest()


def test_a_checkpoint_under_another_name_is_told(checkpoints: Checkpoints) -> None:
    for n in (2, 3):
        save(checkpoints, n)
    checkpoints.path(3).write_bytes(checkpoints.path(2).read_bytes())
    with pytest.raises(StorageError, match=r"round-000003\.safetensors is that of round 2"):
        checkpoints.newest()
    save(checkpoints, 3)
    checkpoints.save(tree(4), replace(header(3), state=digest(tree(4))))
    write_json(checkpoints.folder / HEAD, {"round": 3, "state": digest(tree(3))})
    with pytest.raises(StorageError, match=r"is not the checkpoint that .*HEAD\.json names"):
        checkpoints.newest()


# Behind the next round --------------------------------------------------------------------------------------


def test_a_commit_is_written_behind_the_round_that_follows(
    checkpoints: Checkpoints, monkeypatch: pytest.MonkeyPatch
) -> None:
    may_write, told, save = threading.Event(), list[Header](), checkpoints.save

    def slow(*given: Any) -> None:
        assert may_write.wait(10)
        save(*given)

    monkeypatch.setattr(checkpoints, "save", slow)
    with Commits(checkpoints, "config", None, told.append) as commits:
        commits.save(tree(0), 0, {})
        assert commits.durable is None  # the caller is not held up, and knows that nothing is on disk yet
        assert checkpoints.newest() is None
        may_write.set()
        commits.save(tree(1), 1, {"a": "0.0"})  # waits for the one before
        assert commits.durable is not None
        assert commits.durable.round == 0
    assert [header.round for header in told] == [0, 1]
    assert (told[0].parent, told[1].parent) == ("", told[0].state)
    found = checkpoints.newest()
    assert found is not None
    assert found[1] == told[1] == Header(1, "config", digest(tree(1)), told[0].state, {"a": "0.0"})


def commit(checkpoints: Checkpoints, rounds: int, then: Exception | None = None) -> None:
    with Commits(checkpoints, "config", None, lambda header: None) as commits:
        for n in range(rounds):
            commits.save(tree(n), n, {})
        if then is not None:
            raise then


def test_the_last_commit_is_waited_for_when_the_next_round_fails(checkpoints: Checkpoints) -> None:
    with pytest.raises(Crash):
        commit(checkpoints, 1, then=Crash())
    assert checkpoints.newest() is not None


@pytest.mark.parametrize("rounds", [1, 2])
def test_a_commit_that_fails_is_told_at_the_next_or_on_leaving(
    rounds: int, checkpoints: Checkpoints, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*given: Any) -> None:
        raise StorageError("the disk is full")

    monkeypatch.setattr(checkpoints, "save", full)
    with pytest.raises(StorageError, match="the disk is full"):
        commit(checkpoints, rounds)
    with pytest.raises(Crash):  # the first trouble is the one to tell
        commit(checkpoints, 1, then=Crash())
    assert checkpoints.newest() is None
