"""The coordinator's end of Flower's control: waiting for a run."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from equipoise.deploy import link
from equipoise.errors import RunStopped, SiteError
from equipoise.keeping import write_json


def server(monkeypatch: pytest.MonkeyPatch, said: list[str | None], outcome: str = "completed") -> None:
    """A server whose run is in these states, one after the other; None: it misses the call."""

    def runs(number: int) -> Any:
        status = said.pop(0)
        assert status is not None
        state = SimpleNamespace(status=status, sub_status=outcome, details="")
        return {number: SimpleNamespace(status=state)}

    @contextmanager
    def control(folder: Path) -> Iterator[Any]:
        if said[0] is None:
            if len(said) > 1:
                said.pop(0)
            raise SiteError("does not answer")
        yield SimpleNamespace(runs=runs)

    monkeypatch.setattr(link, "control", control)


def test_a_call_that_is_missed_is_made_again(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    write_json(tmp_path / "result.json", {"state_hash": "abc"})
    (tmp_path / "journal.jsonl").touch()
    states: list[str | None] = ["running", None, None, "running", "finished"]
    server(monkeypatch, states)
    seen: list[int] = []
    assert link.wait(tmp_path, tmp_path, 7, lambda: seen.append(1), pause=0.001) == {"state_hash": "abc"}
    assert not states and len(seen) == 7


def test_the_folder_is_looked_at_more_often_than_the_server_is_asked(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    (tmp_path / "journal.jsonl").touch()
    seen: list[int] = []

    def look() -> None:
        seen.append(1)
        if len(seen) == 9:  # the run has ended, and the server is asked at once
            write_json(tmp_path / "result.json", {"state_hash": "abc"})

    server(monkeypatch, ["running", "running", "finished"])
    link.wait(tmp_path, tmp_path, 7, look, pause=0.001)
    assert len(seen) == 10


def test_a_server_whose_process_is_gone_is_noticed_at_once(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    process = subprocess.Popen([sys.executable, "-c", ""])
    write_json(tmp_path / "server.json", {"address": "127.0.0.1:9", "process": process.pid})
    server(monkeypatch, ["running", None])
    process.wait()
    with pytest.raises(SiteError, match=r"has ended: start it .* submit again with the same --out"):
        link.wait(tmp_path, tmp_path, 7, lambda: None, pause=0.001)


def test_a_run_that_was_stopped_is_not_one_that_failed(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    server(monkeypatch, ["running", "finished"], "stopped")
    with pytest.raises(RunStopped, match=r"stopped by `equipoise stop`: submit it again with the same --out"):
        link.wait(tmp_path, tmp_path, 7, lambda: None, pause=0.001)


def test_a_server_that_is_gone_is_not_waited_for_for_ever(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(link, "MUTE", 0.05)
    server(monkeypatch, ["running", None])
    with pytest.raises(SiteError, match="does not answer"):
        link.wait(tmp_path, tmp_path, 7, lambda: None, pause=0.001)
