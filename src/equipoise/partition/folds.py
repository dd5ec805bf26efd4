"""Cross-validation: which fold each row of a site is tested in."""

from __future__ import annotations

import numpy as np

from equipoise.data.samples import Samples
from equipoise.partition.units import group_names, units


def folds(
    samples: Samples, rows: np.ndarray, count: int, rng: np.random.Generator, decided: dict[str, int]
) -> np.ndarray:
    """int64 [rows]: a fold for each of one site's rows: whole groups, and every class spread as evenly as
    groups allow.

    Largest groups first, each to the fold that lacks most of its class; of equal folds to the one with fewest
    rows of the site. Where that is equal too, chance decides: else the only images that small sites have of a
    rare class would meet in one fold. `decided` holds the groups an earlier site has placed (a patient seen
    at two hospitals), and learns this site's.
    """
    movable = units(samples, rows)
    group = group_names(samples, rows[movable.first])
    placed = np.array([decided.get(name, -1) if name else -1 for name in group], dtype=np.int64)
    held = np.bincount(placed[placed >= 0], weights=movable.size[placed >= 0], minlength=count)
    chance = rng.permutation(count)
    for stratum in np.unique(movable.stratum):
        members = rng.permutation(np.flatnonzero(movable.stratum == stratum))
        settled = members[placed[members] >= 0]
        of_class = np.bincount(placed[settled], weights=movable.size[settled], minlength=count)
        free = members[placed[members] < 0]
        for unit in free[np.argsort(-movable.size[free], kind="stable")]:
            fold = np.lexsort((chance, held, of_class))[0]
            placed[unit] = fold
            of_class[fold] += movable.size[unit]
            held[fold] += movable.size[unit]
    decided.update({name: int(fold) for name, fold in zip(group, placed, strict=True) if name})
    result: np.ndarray = placed[movable.of]
    return result
