"""A small set of combinations in which every two values of two different options meet at least once."""

from __future__ import annotations

import itertools
import random
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

Cell = dict[str, Any]
Pair = tuple[tuple[str, int], tuple[str, int]]


def pairs_of(chosen: Mapping[str, int]) -> Iterator[Pair]:
    """Every two options of a combination with the numbers of their values."""
    return itertools.combinations(sorted(chosen.items()), 2)


def covering(options: Mapping[str, Sequence[Any]], seed: int = 0) -> list[Cell]:
    """Combinations that cover all pairs: each starts from a pair not met yet and takes the values that meet
    most others."""
    draw = random.Random(seed)
    sizes = {name: len(values) for name, values in options.items()}
    every = (
        ((one, i), (other, j))
        for one, other in itertools.combinations(sorted(sizes), 2)
        for i in range(sizes[one])
        for j in range(sizes[other])
    )
    left = set(every)
    cells: list[Cell] = []
    while left:
        chosen = dict(min(left))
        names = [name for name in sizes if name not in chosen]
        draw.shuffle(names)
        for name in names:
            values = list(range(sizes[name]))
            draw.shuffle(values)
            chosen[name] = max(
                values, key=lambda value, name=name: len(left.intersection(pairs_of({**chosen, name: value})))
            )
        left -= set(pairs_of(chosen))
        cells.append({name: options[name][value] for name, value in chosen.items()})
    return cells
