"""Did you mean …: the nearest valid name for a mistyped one."""

from __future__ import annotations

import difflib
from collections.abc import Iterable


def nearest(word: str, valid: Iterable[str]) -> str | None:
    """The valid name most like `word`, or None when nothing is alike."""
    found = difflib.get_close_matches(word.lower(), list(valid), n=1, cutoff=0.5)
    return found[0] if found else None


def unknown(what: str, word: str, valid: Iterable[str]) -> str:
    """One sentence for an unknown name: what it was, the nearest valid one, and all there are."""
    names = sorted(valid)
    guess = nearest(word, names)
    hint = f"did you mean '{guess}'? " if guess else ""
    return f"unknown {what} '{word}': {hint}valid: {', '.join(names)}"
