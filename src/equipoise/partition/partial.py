"""Partial labels: which classes each site of a multi-label task labels (FedMLP's setting)."""

from __future__ import annotations

import random

import numpy as np

from equipoise.errors import PartitionError
from equipoise.partition.kinds import PartitionOptions
from equipoise.seeds import derive

TRIES = 1000


def labelled(sites: int, classes: int, options: PartitionOptions, seed: int) -> np.ndarray | None:
    """bool [sites, classes]: what each site labels; None when nothing is missing.

    Each site misses a random set of `options.missing` classes, drawn anew until every class has a labeller.
    With all but one class missing, site i labels class i (modulo the classes).
    """
    if options.missing == 0:
        return None
    if options.missing >= classes:
        raise PartitionError(
            f"partition.missing is {options.missing}, but there are {classes} classes; leave at least one "
            f"labelled"
        )
    if sites * (classes - options.missing) < classes:
        raise PartitionError(
            f"partition.missing = {options.missing}: {sites} sites that label {classes - options.missing} of "
            f"{classes} classes each cannot cover all classes; use more sites or miss fewer"
        )
    if options.missing == classes - 1:
        result: np.ndarray | None = np.arange(classes) == (np.arange(sites) % classes)[:, None]
        return result
    missing_seed = options.missing_seed
    draw = random.Random(derive(seed, "missing labels") if missing_seed is None else missing_seed)
    for _ in range(TRIES):
        mask = np.zeros((sites, classes), dtype=bool)
        for row in mask:
            # The labelled classes are drawn, not the missing ones: so seed 1037 gives the published sets.
            row[draw.sample(range(classes), classes - options.missing)] = True
        if mask.any(axis=0).all():
            return mask
    raise PartitionError(
        f"partition.missing = {options.missing}: no draw of {TRIES} left every class labelled somewhere; "
        f"miss fewer classes"
    )
