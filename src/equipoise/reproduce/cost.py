"""What a table would cost on this machine: the small network timed for a moment, times what the others cost
beside it. An estimate."""

from __future__ import annotations

import platform
import time
from collections.abc import Sequence
from contextlib import suppress
from functools import cache
from pathlib import Path
from typing import Any

import torch

from equipoise.compare import numbers
from equipoise.compare.plan import variant
from equipoise.config import resolve
from equipoise.errors import StorageError
from equipoise.keeping import read_json, write_json
from equipoise.nets import Net, NetOptions, build
from equipoise.reproduce.plan import shrunk
from equipoise.reproduce.recipe import Paper, find, names, notes_of
from equipoise.setup import cache_folder

EFFORT = {
    "small-cnn": 1.0,
    "resnet18": 8.3,
    "resnet50": 22.0,
    "densenet121": 16.0,
    "efficientnet-b0": 5.6,
    "efficientnet-b0-torchvision": 5.6,
    "efficientnet-lite0": 4.4,
    "mobilenet-v2": 3.6,
}
"""Time per pixel of a training image beside that of the small network; measured at 224 pixels, on one core,
one thread"""

STEPS, BATCH, SIZE = 40, 32, 32
"""of the moment the small network is timed for"""
PACES = "pace.json"
"""in the cache folder: machine → seconds per pixel"""


def pace(net: str, size: int) -> float:
    """Seconds per training image of a network, on one thread of this machine or on its GPU."""
    return EFFORT[net] * size**2 * yardstick()


@cache
def yardstick() -> float:
    """Seconds per pixel for the small network, forward and backward: its fastest step, in the processor's own
    time, so that other work on the machine does not count; the fastest that was ever measured here."""
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    net = NetOptions(name="small-cnn")
    model = build(net, classes=8, channels=3, image_size=SIZE, seed=0, base=Path.cwd()).to(device)
    x = torch.zeros(BATCH, 3, SIZE, SIZE, device=device)
    before = torch.get_num_threads()
    torch.set_num_threads(1)  # as a run has it
    try:
        pace = min(_step(model, x) for _ in range(STEPS)) / (BATCH * SIZE**2)
    finally:
        torch.set_num_threads(before)
    return _remembered(f"{device.type} {platform.node()} torch {torch.__version__}", pace)


def _remembered(machine: str, pace: float) -> float:
    """The smallest measurement of this machine so far, so that the same table has the same estimate."""
    path = cache_folder() / PACES
    try:
        paces = read_json(path, "delete it")
    except (FileNotFoundError, StorageError):
        paces = {}
    best = min(pace, paces.get(machine, pace))
    if best != paces.get(machine):
        with suppress(OSError):  # a machine whose cache cannot be written measures anew
            path.parent.mkdir(parents=True, exist_ok=True)
            write_json(path, paces | {machine: best})
    return float(best)


def _step(model: Net, x: torch.Tensor) -> float:
    clock = time.perf_counter if x.is_cuda else time.process_time
    start = clock()
    model(x).sum().backward()
    if x.is_cuda:
        torch.cuda.synchronize()
    return clock() - start


def estimate(paper: Paper, small: bool) -> float:
    """Seconds of computing for all rows, seeds and folds: every view of every image once through the network,
    no evaluation."""
    recipe, base = paper.recipe, Path.cwd()
    table = shrunk(paper.table, recipe) if small else paper.table
    runs = 1 if small else len(numbers(recipe.seeds)) * (recipe.folds or 1)
    total = 0.0
    for arm in paper.arms:
        config = resolve(_anywhere(variant(table, arm)), base)
        views = len(config.train.views or config.method.views)
        images = (
            recipe.images * config.train.participation * config.train.epochs * config.train.rounds * views
        )
        total += runs * images * pace(config.net.name, config.data.image_size)
    return total


def listing(wanted: Sequence[str] = ()) -> list[dict[str, Any]]:
    """Every table with its rows, the data and weights it needs, and the estimated cost at both scales."""
    tables = []
    for paper in map(find, wanted or names()):
        recipe = paper.recipe
        tables.append(
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
                    label: {"reported": dict(row.reported)}
                    | ({"p_value": row.p_value} if row.p_value else {})
                    | ({"cannot": row.cannot} if row.cannot else {})
                    for label, row in recipe.rows.items()
                },
                "notes": notes_of(paper, recipe.rows),
                "estimated_seconds": {
                    "full": estimate(paper, small=False),
                    "small": estimate(paper, small=True),
                },
            }
        )
    return tables


def _anywhere(table: dict[str, Any]) -> dict[str, Any]:
    """The table with a path wherever its data needs one, so that it can be resolved without data."""
    data = table["data"]
    parts = [{"path": "", **part} for part in data["parts"]] if data["kind"] == "joined" else []
    return {**table, "data": {**data, "parts": parts} if parts else {"path": "", **data}}
