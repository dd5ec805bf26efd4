"""Sites that are too many for a row each: in groups of like size, and by quantiles."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence, Sized
from itertools import pairwise
from typing import Any

import numpy as np

MANY = 50
"""sites, or other rows of one table, that are shown one by one, at most"""
GROUPS = 10
QUANTILES = {
    "lowest": 0.0,
    "10th percentile": 0.1,
    "25th percentile": 0.25,
    "median": 0.5,
    "75th percentile": 0.75,
    "90th percentile": 0.9,
    "highest": 1.0,
}
TOGETHER = "Sites are taken together in groups of as many, from the largest to the smallest."


def crowded(rows: Sized) -> bool:
    """Whether there are too many for a row each."""
    return len(rows) > MANY


def groups(order: Sequence[str]) -> dict[str, Sequence[str]]:
    """Sites in order cut into equal groups, by name: sites 1–100, sites 101–200, …"""
    edges = np.linspace(0, len(order), GROUPS + 1).round().astype(int).tolist()
    return {f"sites {start + 1:,}–{end:,}": order[start:end] for start, end in pairwise(edges)}


def held_by_groups(data: dict[str, Any]) -> dict[str, Any]:
    """Who holds what (see `Facts.table`), with groups of sites in place of sites where these are many."""
    sites = data["sites"]
    if not crowded(sites):
        return data
    order = sorted(sites, key=lambda site: -sites[site]["train"]["images"])

    def sums(members: Sequence[str], split: str) -> dict[str, Any]:
        held = [sites[site][split] for site in members]
        counts = np.array([one["counts"] for one in held]).sum(0)
        return {"images": sum(one["images"] for one in held), "counts": counts.tolist()}

    merged = {
        name: {split: sums(members, split) for split in data["splits"]}
        for name, members in groups(order).items()
    }
    return {**data, "sites": merged}


def quantiles(values: Iterable[float | None]) -> dict[str, float | None]:
    """By name: the quantiles of those that are known."""
    known = [value for value in values if value is not None]
    return {name: float(np.quantile(known, share)) if known else None for name, share in QUANTILES.items()}


def quantile_rows(metrics: Mapping[str, Mapping[str, Any]], keys: Sequence[str]) -> dict[str, dict[str, Any]]:
    """By name of a quantile: what `keys` come to, each column by itself."""
    columns = {key: quantiles(one.get(key) for one in metrics.values()) for key in keys}
    return {name: {key: columns[key][name] for key in keys} for name in QUANTILES}
