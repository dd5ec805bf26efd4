"""Settings under which a few rounds take every path of a method, quickly: for all tests that run every
method, and which of them `make test` leaves to `make test-all`."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import pytest

LIGHT: dict[str, dict[str, Any]] = {
    "fediic": {"spread_steps": 50},
    "fedmas": {"target": "small-cnn"},
    "fedmlp": {"warmup": 1},
    "fedirm": {"warmup": 1},
    "cbafed": {"warmup": 1, "every": 1},
    "fednoro": {"warmup": 1},
    "creff": {"features": 10, "match_steps": 50, "head_epochs": 100, "draws": 2},
    "prr-imb": {"warmup": 1},
}
"""The heavy parts of a method are made light where its arithmetic stays the same; the numbers in
`golden/methods.json` are of these."""

LEARNING: dict[str, dict[str, Any]] = LIGHT | {
    "cbafed": {"warmup": 0, "every": 1},
    "fedavgm": {"beta": 0.3},
    "fedadagrad": {"lr": 0.03},
    "moon": {"size": 16},
    "isfl": {"sigma": 0.5},
}
"""Under these a few rounds are enough to learn 64 images by heart; the published ones need more."""

LIGHTEST: dict[str, dict[str, Any]] = LIGHT | {
    "fediic": {"spread_steps": 20},
    "creff": {"features": 10, "match_steps": 10, "head_epochs": 10, "draws": 2},
    "moon": {"size": 16},
}
"""Where nothing has to be learnt."""

ALIKE = (
    *("fedavg-pl", "fedprox", "fedrs", "fedlc", "fedfocal", "ldam-fl", "bsm-fl", "fedlsr", "fedfixmatch"),
    *("fedadam", "fedyogi", "fedadagrad"),
)
"""What they ask and send is what fedavg and fedavgm do (tests/flower/test_methods.py looks): they differ in
the loss, or in the server's step. Rules about processes, files and messages are tried with others."""


def one_of_a_kind(methods: Iterable[str], *, but: Iterable[str] = ()) -> list[Any]:
    """All methods as parameters; those that are like another (and any that are named) only in the sweep."""
    left = {*ALIKE, *but}
    return [pytest.param(name, marks=[pytest.mark.sweep] if name in left else []) for name in methods]
