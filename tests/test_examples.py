"""The notebooks in examples/ run to their end, and are kept without what they put out."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import nbformat
import pytest
from nbclient import NotebookClient

EXAMPLES = sorted((Path(__file__).parents[1] / "examples").glob("*.ipynb"))
SHOWN = {
    "own-net-and-data": ("text/html", "text/plain"),
    "new-method": ("text/html",),
    "table-to-figure": ("text/html",),
}


def test_there_are_three() -> None:
    assert {path.stem for path in EXAMPLES} == set(SHOWN)


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.stem)
def test_it_holds_no_output(path: Path) -> None:
    book: Any = nbformat.read(path, 4)  # type: ignore[no-untyped-call]
    nbformat.validate(book)
    assert not any(cell.get("outputs") or cell.get("execution_count") for cell in book.cells)


SMALLER = {
    r'"rounds": \d+': '"rounds": 1',
    r'"epochs": \d+': '"epochs": 1',
    r'"scale": [\d.]+': '"scale": 0.004',
    r'"image_size": \d+': '"image_size": 16',
    r'"data": (?=\{"kind": "phantom")': '"partition": {"kind": "iid", "sites": 3}, "data": ',
    r"seeds=\(0, 1\)": "seeds=(0,)",
    r"count=\d+": "count=90",
}
"""What is cut down where a notebook is only to run."""
KERNEL = """
import os, threading
os.environ.pop("JPY_PARENT_PID", None)  # of the process that stands for this one
guard = threading.Timer(900, os._exit, (1,))
guard.daemon = True
guard.start()
from ipykernel.kernelapp import launch_new_instance
launch_new_instance()
"""


@pytest.fixture
def forked_kernel(forked: Callable[..., list[str]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """The name of a kernel that has imported the package already."""
    folder = tmp_path / "jupyter" / "kernels" / "forked"
    folder.mkdir(parents=True)
    command = forked(KERNEL, "-f", "{connection_file}")
    kernel = {"argv": command, "display_name": "forked", "language": "python"}
    (folder / "kernel.json").write_text(json.dumps(kernel))
    monkeypatch.setenv("JUPYTER_PATH", str(tmp_path / "jupyter"))
    return folder.name


def check_run(book: Any, kernel: str, path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    source = str(Path(__file__).parents[1] / "src")
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([source, os.environ.get("PYTHONPATH", "")]))
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    monkeypatch.setenv("IPYTHONDIR", str(tmp_path / "ipython"))
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    NotebookClient(book, timeout=900, kernel_name=kernel).execute()
    data = [one.get("data", {}) for cell in book.cells for one in cell.get("outputs", ())]
    assert {kind for one in data for kind in one} >= set(SHOWN[path.stem])
    text = "".join(str(one.get("text/html", "")) for one in data)
    assert ("<svg" in text) == (path.stem == "table-to-figure")


@pytest.mark.sweep
@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::ResourceWarning")
@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.stem)
def test_it_runs_to_its_end(path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    book: Any = nbformat.read(path, 4)  # type: ignore[no-untyped-call]
    check_run(book, "python3", path, tmp_path, monkeypatch)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::ResourceWarning")
@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.stem)
def test_with_less_to_train_it_runs_to_its_end(
    path: Path, forked_kernel: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    book: Any = nbformat.read(path, 4)  # type: ignore[no-untyped-call]
    before = [cell.source for cell in book.cells]
    for cell in book.cells:
        for pattern, value in SMALLER.items():
            cell.source = re.sub(pattern, value, cell.source)
    assert [cell.source for cell in book.cells] != before
    check_run(book, forked_kernel, path, tmp_path, monkeypatch)
