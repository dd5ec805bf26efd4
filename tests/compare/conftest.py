"""The smallest comparison there is: three sites, some forty images of 16 pixels, one round."""

from __future__ import annotations

import copy
from typing import Any

import pytest

TINY: dict[str, dict[str, Any]] = {
    "data": {"kind": "phantom", "scale": 0.004, "image_size": 16},
    "partition": {"kind": "iid", "sites": 3},
    "train": {"rounds": 1, "batch_size": 32},
    "engine": {"device": "cpu"},
}


@pytest.fixture
def table() -> dict[str, dict[str, Any]]:
    return copy.deepcopy(TINY)


@pytest.fixture(scope="module")
def table_of_tests() -> dict[str, dict[str, Any]]:
    return copy.deepcopy(TINY)
