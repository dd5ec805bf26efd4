"""One run does each expensive thing once: its data is read, its config resolved and its network built."""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from types import CodeType, FrameType
from typing import Any

import pytest

from equipoise.cli import main
from equipoise.config import resolve
from equipoise.data.phantom import PhantomData
from equipoise.nets import build

CONFIG = """
[data]
kind = "phantom"
scale = 0.004
image_size = 16

[method]
name = "{method}"

[train]
rounds = 1
batch_size = 16

[engine]
kind = "{engine}"
device = "cpu"
"""


def counted(work: Callable[[], object], **functions: Callable[..., Any]) -> Counter[str]:
    """How often each function begins while something is done in this thread."""
    names: dict[CodeType, str] = {function.__code__: name for name, function in functions.items()}
    calls: Counter[str] = Counter()

    def note(frame: FrameType, event: str, _: object) -> None:
        if event == "call" and frame.f_code in names:
            calls[names[frame.f_code]] += 1

    before = sys.getprofile()
    sys.setprofile(note)
    try:
        work()
    finally:
        sys.setprofile(before)
    return calls


@pytest.mark.parametrize("engine", ["serial", "pool"])
@pytest.mark.parametrize("method", ["fedavg", "fca", "fediic"])
def test_one_run_does_it_once(method: str, engine: str, tmp_path: Path) -> None:
    """The report that follows the run included. (Workers are processes of their own, and do it once each.)"""
    file = tmp_path / "run.toml"
    file.write_text(CONFIG.format(method=method, engine=engine))

    def work() -> None:
        with pytest.raises(SystemExit) as end:
            main(["run", str(file), "--out", str(tmp_path / "run"), "--quiet"])
        assert not end.value.code

    calls = counted(work, data=PhantomData.load, config=resolve, net=build)
    assert calls == {"data": 1, "config": 1, "net": 1}


def test_what_follows_a_run_reads_no_data(tmp_path: Path) -> None:
    file = tmp_path / "run.toml"
    file.write_text(CONFIG.format(method="fedavg", engine="serial"))
    with pytest.raises(SystemExit):
        main(["run", str(file), "--out", str(tmp_path / "run"), "--quiet"])
    (tmp_path / "run" / "report.html").unlink()

    def work() -> None:
        with pytest.raises(SystemExit) as end:
            main(["report", str(tmp_path / "run")])
        assert not end.value.code

    assert counted(work, data=PhantomData.load, net=build) == {}
    assert (tmp_path / "run" / "report.html").is_file()
