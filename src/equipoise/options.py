"""The base of every section of the config: frozen, and strict about unknown keys."""

from __future__ import annotations

import ast
import inspect
import textwrap

from pydantic import BaseModel, ConfigDict


class Options(BaseModel):
    """A frozen set of documented options; an unknown key is an error that names the nearest valid one."""

    model_config = ConfigDict(frozen=True, extra="forbid")


def described(options: type[BaseModel]) -> dict[str, str]:
    """What the text under each option says, or nothing: read from the source, of base classes too, when
    somebody asks (pydantic would read it at every import, which takes half a second)."""
    texts: dict[str, str] = {}
    for owner in reversed(options.__mro__):
        if issubclass(owner, BaseModel) and owner is not BaseModel:
            texts |= _texts(owner)
    return {name: texts.get(name) or field.description or "" for name, field in options.model_fields.items()}


def _texts(owner: type) -> dict[str, str]:
    """Texts that stand right under an annotated name in a class."""
    try:
        body = ast.parse(textwrap.dedent(inspect.getsource(owner))).body[0]
    except (OSError, TypeError):  # made while running, or its file is gone
        return {}
    assert isinstance(body, ast.ClassDef)
    texts = {}
    for line, below in zip(body.body, body.body[1:], strict=False):
        if isinstance(line, ast.AnnAssign) and isinstance(line.target, ast.Name):
            text = below.value if isinstance(below, ast.Expr) else None
            said = isinstance(text, ast.Constant) and isinstance(text.value, str)
            texts[line.target.id] = inspect.cleandoc(text.value) if said else ""
    return texts
