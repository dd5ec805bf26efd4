"""`equipoise new-method`: a method to write over, its test, and a config that runs it."""

from __future__ import annotations

import importlib.util
import json as jsons
import keyword
import re
import shlex
from pathlib import Path
from typing import Annotated

import typer

from equipoise.cli.arguments import Json
from equipoise.cli.output import print_json
from equipoise.errors import ConfigError, StorageError
from equipoise.names import unknown

TASKS = ("single", "multi")


def mount(app: typer.Typer) -> None:
    """Add the verb to the command."""
    app.command()(new_method)


def new_method(
    name: Annotated[
        str, typer.Argument(metavar="NAME", help="Lower-case letters, digits and _: the name of the file.")
    ],
    task: Annotated[
        str | None, typer.Option(help="single or multi: labels per image. [default: the method takes both]")
    ] = None,
    folder: Annotated[Path, typer.Option(metavar="DIR", help="Where the files go.")] = Path("."),
    json: Json = False,
) -> None:
    """Begin a method of your own: a small complete one to write over, its test, and a config that runs it.

    Example: `equipoise new-method feddecorr --folder ideas`
    """
    _check(name)
    if task is not None and task not in TASKS:
        raise ConfigError("--task: " + unknown("task", task, TASKS))
    method, test, config = (folder / file for file in (f"{name}.py", f"test_{name}.py", f"{name}.toml"))
    cls = "".join(part.capitalize() for part in name.split("_"))
    values = {
        "name": name,
        "cls": cls,
        "task": task,
        "source": method.as_posix(),
        "config": shlex.quote(str(config)),
        "method": jsons.dumps(f"{method.as_posix()}:{cls}", ensure_ascii=False),
    }
    _write({method: "method.py.j2", test: "test.py.j2", config: "config.toml.j2"}, values)
    steps = [f"equipoise run {shlex.quote(str(config))}", f"python -m pytest {shlex.quote(str(test))}"]
    if json:
        print_json({"made": [str(method), str(test), str(config)], "next": steps})
        return
    print(f"made {method}, {test} and {config}")
    print(f"next: `{steps[0]}` trains it, `{steps[1]}` holds it to the rules;")
    print(f"then write your loss into {method.name} and its value, computed by hand, into {test.name}")


def _check(name: str) -> None:
    """Refuse a name that cannot be a file of Python beside others."""
    from equipoise.methods import METHODS

    if not re.fullmatch(r"[a-z][a-z0-9]*(_[a-z0-9]+)*", name) or keyword.iskeyword(name):
        raise ConfigError(
            f"'{name}' cannot name a method: take lower-case letters, digits and single _, such as 'fed_tail'"
        )
    if name in METHODS:
        raise ConfigError(
            f"there is a method '{name}' already: take another name (`equipoise methods {name}` shows it)"
        )
    if importlib.util.find_spec(name) is not None:
        raise ConfigError(f"'{name}' is a Python package that a file {name}.py would hide: take another name")


def _write(files: dict[Path, str], values: dict[str, str | None]) -> None:
    """Fill the templates; all files or none."""
    from jinja2 import Environment, PackageLoader, StrictUndefined

    for path in files:
        if path.exists():
            raise ConfigError(f"{path} exists and stays as it is: take another name or another --folder")
    templates = Environment(
        loader=PackageLoader("equipoise.cli"),
        undefined=StrictUndefined,
        keep_trailing_newline=True,
        autoescape=False,
    )
    for path, template in files.items():
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(templates.get_template(template).render(values), encoding="utf-8")
        except OSError as error:
            raise StorageError(
                f"{path} cannot be written ({error.strerror}): use another --folder"
            ) from error
