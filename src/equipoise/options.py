"""The base of every section of the config: frozen, and strict about unknown keys."""

from __future__ import annotations

import ast
import inspect
from collections.abc import Iterator
from functools import cache, lru_cache
from pathlib import Path
from types import NoneType
from typing import Any, get_args

from pydantic import (
    BaseModel,
    ConfigDict,
    SerializationInfo,
    SerializerFunctionWrapHandler,
    model_serializer,
    model_validator,
)

NONE = "none"
"""what stands for None in a file: TOML has no word for it"""


class Options(BaseModel):
    """A frozen set of documented options; an unknown key is an error that names the nearest valid one."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    @model_validator(mode="before")
    @classmethod
    def _told(cls, given: Any) -> Any:
        """With "none" as None for options that are something unless told otherwise."""
        if not isinstance(given, dict):
            return given
        return given | {key: None for key in offable(cls) if given.get(key) == NONE}

    @model_serializer(mode="wrap")
    def _written(self, handler: SerializerFunctionWrapHandler, info: SerializationInfo) -> dict[str, Any]:
        """In files with "none" for None where leaving it out would bring the default back."""
        found: dict[str, Any] = handler(self)
        if info.mode != "json":
            return found
        return found | {name: NONE for name in offable(type(self)) if getattr(self, name) is None}


@cache
def offable(options: type[BaseModel]) -> frozenset[str]:
    """The options of which None is a value and not the default."""
    return frozenset(
        name
        for name, field in options.model_fields.items()
        if NoneType in get_args(field.annotation) and field.default is not None and not field.is_required()
    )


def described(options: type[BaseModel]) -> dict[str, str]:
    """What the text under each option says, or nothing: read from the source, of base classes too, when
    somebody asks (pydantic would read it at every import, which takes half a second)."""
    texts: dict[str, str] = {}
    for owner in reversed(options.__mro__):
        if issubclass(owner, BaseModel) and owner is not BaseModel:
            texts |= _texts_of(owner)
    return {name: texts.get(name) or field.description or "" for name, field in options.model_fields.items()}


def _texts_of(owner: type) -> dict[str, str]:
    try:
        source = Path(inspect.getfile(owner)).read_text()
    except (OSError, TypeError):  # made while running, or its file is gone
        return {}
    return _texts(source).get(owner.__qualname__, {})


@lru_cache(1000)
def _texts(source: str) -> dict[str, dict[str, str]]:
    """Texts that stand right under an annotated name, by class and name; the same file is parsed once."""
    return {
        name: {
            line.target.id: _text(below)
            for line, below in zip(found.body, [*found.body[1:], ast.Pass()], strict=True)
            if isinstance(line, ast.AnnAssign) and isinstance(line.target, ast.Name)
        }
        for name, found in _classes(ast.parse(source))
    }


def _text(line: ast.stmt) -> str:
    said = line.value if isinstance(line, ast.Expr) else None
    return (
        inspect.cleandoc(said.value) if isinstance(said, ast.Constant) and isinstance(said.value, str) else ""
    )


def _classes(inside: ast.AST, place: str = "") -> Iterator[tuple[str, ast.ClassDef]]:
    """All classes by qualified name."""
    for node in ast.iter_child_nodes(inside):
        if isinstance(node, ast.ClassDef):
            yield place + node.name, node
            yield from _classes(node, f"{place}{node.name}.")
        elif isinstance(node, ast.FunctionDef):
            yield from _classes(node, f"{place}{node.name}.<locals>.")
        elif isinstance(node, ast.stmt):
            yield from _classes(node, place)
