"""Folders of runs are for their owner alone, whatever the umask."""

from __future__ import annotations

import os
import stat
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from equipoise.config import Config
from equipoise.run_folder import RunFolder, private_folder
from equipoise.running import claim


@pytest.fixture(params=[0o000, 0o022, 0o777])
def _umask(request: pytest.FixtureRequest) -> Iterator[None]:
    before = os.umask(request.param)
    yield
    os.umask(before)


def mode(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


@pytest.mark.usefixtures("_umask")
def test_what_is_made_is_for_the_owner(tmp_path: Path) -> None:
    made = private_folder(tmp_path / "runs" / "first")
    assert mode(made) == mode(made.parent) == 0o700
    assert private_folder(made) == made


def test_what_is_there_keeps_its_rights(tmp_path: Path) -> None:
    shared = tmp_path / "shared"
    shared.mkdir()
    shared.chmod(0o750)
    private_folder(shared / "run")
    assert mode(shared) == 0o750 and mode(shared / "run") == 0o700


def test_a_run_folder_is_for_the_owner(tiny: Callable[..., Config], tmp_path: Path) -> None:
    before = os.umask(0)
    try:
        claim(RunFolder(tmp_path / "runs" / "run"), tiny("fedavg"))
    finally:
        os.umask(before)
    assert mode(tmp_path / "runs" / "run") == mode(tmp_path / "runs") == 0o700
