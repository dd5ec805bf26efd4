"""The notebooks in examples/ run to their end, and are kept without what they put out."""

from __future__ import annotations

import os
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


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::ResourceWarning")
@pytest.mark.parametrize(
    "path",
    [
        pytest.param(path, marks=[] if path.stem == "own-net-and-data" else [pytest.mark.sweep], id=path.stem)
        for path in EXAMPLES
    ],
)
def test_it_runs_to_its_end(path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    source = str(Path(__file__).parents[1] / "src")
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([source, os.environ.get("PYTHONPATH", "")]))
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    monkeypatch.setenv("IPYTHONDIR", str(tmp_path / "ipython"))
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    book: Any = nbformat.read(path, 4)  # type: ignore[no-untyped-call]
    NotebookClient(book, timeout=900, kernel_name="python3").execute()
    data = [one.get("data", {}) for cell in book.cells for one in cell.get("outputs", ())]
    assert {kind for one in data for kind in one} >= set(SHOWN[path.stem])
    text = "".join(str(one.get("text/html", "")) for one in data)
    assert ("<svg" in text) == (path.stem == "table-to-figure")
