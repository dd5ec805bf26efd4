"""Text that came from elsewhere: shown without harm, and read without following it too deep."""

from __future__ import annotations

import tomllib
import unicodedata
from collections.abc import Sequence
from typing import Any

FORMULA = ("=", "+", "-", "@")
"""what a spreadsheet takes for the start of a formula"""


def printable(text: str) -> str:
    """The text with every character that a terminal would obey, or that hides or turns others around, written
    as an escape."""
    return text if text.isprintable() else "".join(map(_shown, text))


def _shown(letter: str) -> str:
    if letter in "\n\t" or unicodedata.category(letter) not in ("Cc", "Cf", "Cs", "Co", "Zl", "Zp"):
        return letter
    return letter.encode("unicode_escape", "surrogatepass").decode()


def strange(name: str) -> str | None:
    """What is wrong with a name that people will read, if anything."""
    if printable(name) != name or "\n" in name or "\t" in name:
        return f"'{printable(name)}' holds a control or invisible character"
    return None


def cell(text: str) -> str:
    """A text as one cell of a table for spreadsheets, which run what looks like a formula."""
    text = printable(text)
    return f"'{text}" if text.lstrip().startswith(FORMULA) else text


def percent(value: float | None) -> str:
    """0.1234 → 12.3 %; a dash for what does not exist."""
    return "–" if value is None else f"{100 * value:.1f} %"


def parse_toml(text: str) -> dict[str, Any]:
    """The table in a TOML text; brackets nested beyond reason are as wrong as any other mistake."""
    try:
        return tomllib.loads(text)
    except RecursionError:
        raise tomllib.TOMLDecodeError("brackets or keys are nested too deep") from None


def listed(names: Sequence[str]) -> str:
    """a, b and c"""
    return names[0] if len(names) == 1 else f"{', '.join(names[:-1])} and {names[-1]}"
