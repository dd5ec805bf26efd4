"""What a piece of one's own code wants to be called with, read from its signature."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Collection, Mapping
from typing import Any

from equipoise.errors import ConfigError
from equipoise.names import unknown

Parameter = inspect.Parameter


def parameters(code: Callable[..., Any]) -> Mapping[str, Parameter] | None:
    """The arguments of a function, a class, or an object that is called (of a module: its `forward`) by name;
    None where they cannot be known."""
    target = code if inspect.isclass(code) else getattr(code, "forward", code)
    try:
        return inspect.signature(target).parameters
    except (TypeError, ValueError):
        return None


def check_options(
    code: Callable[..., Any], options: Collection[str], filled: Collection[str], where: str, first: int = 0
) -> None:
    """Refuse options that the code does not take, and the lack of one that it needs.

    `filled` are the arguments that Equipoise fills in by name, `first` is how many it gives by position.
    """
    known = parameters(code)
    if known is None:
        return
    placed = [p for p in known.values() if p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD)][:first]
    if len(placed) < first and not _any(known, Parameter.VAR_POSITIONAL):
        raise ConfigError(f"{where} must take {first} arguments, and takes {len(placed)}")
    by_name = (Parameter.POSITIONAL_OR_KEYWORD, Parameter.KEYWORD_ONLY)
    free = {name: p for name, p in known.items() if p not in placed and p.kind in by_name}
    free = {name: p for name, p in free.items() if name not in filled}
    for key in options:
        if key not in free and not _any(known, Parameter.VAR_KEYWORD):
            raise ConfigError(unknown(f"option of {where}", key, free))
    for name, p in free.items():
        if p.default is p.empty and name not in options:
            raise ConfigError(f"{where} needs the option '{name}': set it in the config")


def _any(known: Mapping[str, Parameter], kind: object) -> bool:
    return any(p.kind is kind for p in known.values())
