"""What a table would cost on this machine: a few steps of its network, timed, times the images it trains on. An estimate."""

from __future__ import annotations

import time
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import Any

import torch

from equipoise.compare import numbers
from equipoise.compare.plan import variant
from equipoise.config import resolve
from equipoise.nets import NetOptions, build
from equipoise.reproduce.plan import shrunk
from equipoise.reproduce.recipe import Paper, find, names

STEPS, CLASSES = 2, 8
PIXELS, LARGEST = 4 * 224 * 224, 32
"""of a timed batch: few large images, so that the list comes soon, and as many small ones as a run has"""


@cache
def pace(net: str, size: int, channels: int) -> float:
    """Seconds per training image: forward and backward of a batch, on one thread of this machine or on its GPU."""
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    model = build(NetOptions(name=net), classes=CLASSES, channels=channels, image_size=size, seed=0, base=Path.cwd()).to(device)
    x = torch.zeros(min(LARGEST, max(2, PIXELS // size**2)), channels, size, size, device=device)
    before = torch.get_num_threads()
    torch.set_num_threads(1)  # as a run has it
    try:
        model(x).sum().backward()
        start = time.perf_counter()
        for _ in range(STEPS):
            model(x).sum().backward()
        if device.type == "cuda":
            torch.cuda.synchronize()
        return (time.perf_counter() - start) / (STEPS * len(x))
    finally:
        torch.set_num_threads(before)


def estimate(paper: Paper, small: bool) -> float:
    """Seconds of computing for all rows, seeds and folds: every view of every image once through the network, no evaluation."""
    recipe, base = paper.recipe, Path.cwd()
    table = shrunk(paper.table, recipe) if small else paper.table
    runs = 1 if small else len(numbers(recipe.seeds)) * (recipe.folds or 1)
    total = 0.0
    for arm in paper.arms:
        config = resolve(_anywhere(variant(table, arm)), base)
        views = len(config.train.views or config.method.views)
        steps = recipe.images * config.train.participation * config.train.epochs * config.train.rounds * views
        total += runs * steps * pace(config.net.name, config.data.image_size, config.data.channels)
    return total


def listing(wanted: Sequence[str] = ()) -> list[dict[str, Any]]:
    """Every table with its rows, the data and weights it needs, and the estimated cost at both scales."""
    found = []
    for paper in map(find, wanted or names()):
        recipe = paper.recipe
        found.append(
            {
                "table": paper.name,
                "title": recipe.title,
                "source": recipe.source,
                "data": list(paper.sets),
                "weights": dict(recipe.weights),
                "seeds": list(numbers(recipe.seeds)),
                "folds": recipe.folds,
                "columns": list(recipe.columns),
                "rows": {
                    label: {"reported": dict(row.reported), **({"cannot": row.cannot} if row.cannot else {})}
                    for label, row in recipe.rows.items()
                },
                "notes": list(recipe.notes),
                "estimated_seconds": {"full": estimate(paper, small=False), "small": estimate(paper, small=True)},
            }
        )
    return found


def _anywhere(table: dict[str, Any]) -> dict[str, Any]:
    """The table with a path wherever its data needs one, so that it can be resolved without data."""
    data = table["data"]
    parts = [{"path": "", **part} for part in data["parts"]] if data["kind"] == "joined" else []
    return {**table, "data": {**data, "parts": parts} if parts else {"path": "", **data}}
