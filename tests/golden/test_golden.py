"""Losses and metrics of every preset on one tiny run, held against numbers on file (see `figures.py`).

Those of the methods themselves are compared by `methods/test_conformance.py`, which has such a run at hand.
"""

from __future__ import annotations

import json
import os
import tempfile

import pytest
from tests.golden.figures import FILE, RUNS, compare, measured, on_file

from equipoise.testing import Bench


@pytest.mark.sweep
@pytest.mark.parametrize("name", [name for name in RUNS if " " in name])
def test_numbers_of_a_preset_are_those_on_file(name: str) -> None:
    method, options = RUNS[name]
    compare(name, Bench(method, options))


def test_nothing_on_file_is_forgotten() -> None:
    assert set(on_file()) == set(RUNS)


def update() -> None:
    """Write the numbers of this machine."""
    numbers = {}
    with tempfile.TemporaryDirectory() as folder:
        os.environ["EQUIPOISE_TRUSTED"] = f"{folder}/trusted.jsonl"
        for name, (method, options) in RUNS.items():
            bench = Bench(method, options)
            with bench.own_cache():
                numbers[name] = measured(bench.ordinary)
    FILE.write_text(json.dumps(numbers, indent=1) + "\n")


if __name__ == "__main__":
    update()
