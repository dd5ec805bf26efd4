"""What the command says of itself: help, version, completion, and files of one topic each."""

from __future__ import annotations

from pathlib import Path

import pytest

import equipoise.cli

LONGEST = 250
"""lines of a file of the command line"""


@pytest.mark.parametrize(
    "path", sorted(Path(equipoise.cli.__file__).parent.rglob("*.py")), ids=lambda path: path.name
)
def test_a_file_of_the_command_line_is_short(path: Path) -> None:
    assert len(path.read_text().splitlines()) <= LONGEST
