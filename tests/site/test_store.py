"""The private store: versions, two rounds of them, for no one else's eyes."""

from __future__ import annotations

import errno
import os
from pathlib import Path

import pytest
import torch

from equipoise.errors import StorageError
from equipoise.site import Store

X = {"net/head.own.weight": torch.arange(6.0).view(2, 3).t(), "mine/n": torch.tensor(3)}


def versions(root: Path, site: str = "a") -> list[str]:
    return sorted(path.stem for path in (root / site).glob("*.safetensors"))


@pytest.mark.parametrize("durable", [False, True])
def test_what_is_written_is_read(durable: bool, tmp_path: Path) -> None:
    store = Store(tmp_path / "sites", durable)
    store.write("a", "0.0", X)
    found = store.read("a", "0.0")
    assert found.keys() == X.keys()
    assert all(torch.equal(found[name], X[name]) for name in X)
    assert not list((tmp_path / "sites" / "a").glob("*.part"))


def test_the_last_two_rounds_stay_and_what_is_pinned(tmp_path: Path) -> None:
    store = Store(tmp_path)
    for version in ("0.0", "0.1", "1.0", "2.0"):
        store.write("a", version, X)
    assert versions(tmp_path) == ["1.0", "2.0"]
    store.write("a", "9.0", X, keep=("2.0",))
    assert versions(tmp_path) == ["2.0", "9.0"]
    store.write("a", "10.0", X)
    assert versions(tmp_path) == ["10.0", "9.0"]


def test_sites_do_not_touch_each_other(tmp_path: Path) -> None:
    store = Store(tmp_path)
    store.write("a", "0.0", X)
    store.write("b", "5.0", X)
    assert versions(tmp_path, "a") == ["0.0"]


def test_a_repeated_write_replaces(tmp_path: Path) -> None:
    store = Store(tmp_path)
    store.write("a", "1.0", X)
    store.write("a", "1.0", {"mine/n": torch.tensor(4)})
    assert store.read("a", "1.0")["mine/n"].item() == 4


def test_nobody_else_may_look(tmp_path: Path) -> None:
    Store(tmp_path / "sites").write("a", "0.0", X)
    assert (tmp_path / "sites" / "a").stat().st_mode & 0o777 == 0o700


def test_missing_or_damaged_state_is_told(tmp_path: Path) -> None:
    store = Store(tmp_path)
    with pytest.raises(
        StorageError, match=r"private state '3\.0' of site 'a' cannot be read from .*start the run anew"
    ):
        store.read("a", "3.0")
    store.write("a", "3.0", X)
    path = tmp_path / "a" / "3.0.safetensors"
    path.write_bytes(path.read_bytes()[:-3])
    with pytest.raises(StorageError, match="cannot be read"):
        store.read("a", "3.0")


def test_a_full_disk_is_told_and_the_old_version_stays(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = Store(tmp_path)
    store.write("a", "1.0", X)

    def full(*args: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(os, "replace", full)
        with pytest.raises(
            StorageError, match=r"site 'a' cannot be written .*: free disk space, then continue the run"
        ):
            store.write("a", "1.0", {"mine/n": torch.tensor(4)})
    assert store.read("a", "1.0")["mine/n"].item() == 3


def test_a_folder_that_cannot_be_made_is_told(tmp_path: Path) -> None:
    (tmp_path / "sites").touch()
    with pytest.raises(StorageError, match="cannot be written"):
        Store(tmp_path / "sites").write("a", "0.0", X)
