"""Did you mean …: the nearest valid name for a mistyped one, told before anything else."""

from __future__ import annotations

import difflib
from collections.abc import Iterable
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pydantic import ValidationError
    from pydantic_core import ErrorDetails


def nearest(name: str, valid: Iterable[str]) -> str | None:
    """The valid name most like `name`, or None when nothing is alike."""
    names = {one.lower(): one for one in valid}
    close = difflib.get_close_matches(name.lower(), names, n=5, cutoff=0.5)
    return names[min(close, key=lambda one: edits(name.lower(), one))] if close else None


def edits(a: str, b: str) -> int:
    """Letters to add, drop, change or swap with their neighbour to get from one word to the other."""
    before: list[int] = []
    row = list(range(len(b) + 1))
    for i, x in enumerate(a, 1):
        oldest, before, row = before, row, [i]
        for j, y in enumerate(b, 1):
            cost = min(before[j] + 1, row[j - 1] + 1, before[j - 1] + (x != y))
            if i > 1 and j > 1 and x == b[j - 2] and y == a[i - 2]:
                cost = min(cost, oldest[j - 2] + 1)
            row.append(cost)
    return row[-1]


def unknown(what: str, name: str, valid: Iterable[str]) -> str:
    """One sentence for an unknown name: what it was, the nearest valid one, and all there are."""
    names = sorted(valid)
    guess = nearest(name, names)
    hint = f"did you mean '{guess}'? " if guess else ""
    return f"unknown {what} '{name}': {hint}valid: {', '.join(names)}"


def first_mistake(error: ValidationError) -> ErrorDetails:
    """The mistake to tell: a key that does not exist, which may be why another one is missing."""
    found = error.errors(include_url=False)
    return min(found, key=lambda one: one["type"] != "extra_forbidden")
