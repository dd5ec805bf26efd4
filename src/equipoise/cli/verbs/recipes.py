"""Verbs of the configs that come along: list them, copy one."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Annotated

import typer

from equipoise.cli.arguments import Json
from equipoise.cli.output import print_json
from equipoise.errors import ConfigError, StorageError
from equipoise.names import unknown

PACKAGE = Path(__file__).resolve().parents[2]
PLACES = (PACKAGE / "recipes", PACKAGE.parents[1] / "recipes")
"""where the recipes are: within an installed package, and in a checkout"""

recipes_app = typer.Typer(help="Configs that come with Equipoise: list them, copy one.")


def mount(app: typer.Typer) -> None:
    """Add the verbs to the command."""
    app.add_typer(recipes_app, name="recipes")


def recipes() -> dict[str, Path]:
    """The files by name, those in a folder as folder/name."""
    home = next((place for place in PLACES if place.is_dir()), None)
    if home is None:
        raise StorageError("the recipes are missing from this installation: install Equipoise again")
    return {path.relative_to(home).with_suffix("").as_posix(): path for path in sorted(home.rglob("*.toml"))}


def about(path: Path) -> str:
    """The comment a file begins with, up to the end of its first sentence or line."""
    line = path.read_text().splitlines()[0].removeprefix("#").strip()
    return line.partition(". ")[0].rstrip(".:")


@recipes_app.callback(invoke_without_command=True)
def everything(context: typer.Context) -> None:
    """Configs that come with Equipoise: list them, copy one."""
    if context.invoked_subcommand is None:
        listing()


@recipes_app.command("list")
def listing(json: Json = False) -> None:
    """Show the names of the configs and what each is about."""
    texts = {name: about(path) for name, path in recipes().items()}
    if json:
        print_json(texts)
        return
    width = max(map(len, texts))
    for name, text in texts.items():
        print(f"{name:<{width}}  {text}")


@recipes_app.command("copy")
def copy(
    name: Annotated[str, typer.Argument(help="One of `equipoise recipes list`.")],
    folder: Annotated[Path, typer.Argument(metavar="[DIR]", help="Where to.")] = Path("."),
    json: Json = False,
) -> None:
    """Copy a config, to be edited and run. A file that is there is not replaced.

    Example: `equipoise recipes copy phantom`
    """
    files = recipes()
    if name not in files:
        raise ConfigError(unknown("recipe", name, files))
    target = folder / files[name].name
    if target.exists():
        raise ConfigError(f"{target} is there already: name another folder")
    try:
        folder.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(files[name], target)
    except OSError as error:
        raise StorageError(f"{target} cannot be written: {error.strerror}; name another folder") from error
    if json:
        print_json({"made": str(target)})
    else:
        print(target)
        if "\npath = " in target.read_text():
            print("next: set `path` in it to where your images are")
        print(f"then `equipoise check {target}`")
