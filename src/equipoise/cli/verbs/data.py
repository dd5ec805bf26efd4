"""Verbs that look at data before training on it: data list, data check, data inspect."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from equipoise.cli.arguments import File, Json, Overrides, topic
from equipoise.cli.output import print_json
from equipoise.errors import ConfigError, DataError
from equipoise.names import unknown

data_app = topic("Look at data before training on it.")


def mount(app: typer.Typer) -> None:
    """Add the verbs to the command."""
    app.add_typer(data_app, name="data")


@data_app.command("list")
def list_sets(json: Json = False) -> None:
    """List the published data sets that can be read by name: classes, images, sites, licence. `--json`:
    layout and source too."""
    from equipoise.cli.catalogue import describe_sets
    from equipoise.cli.show import data as show

    facts = describe_sets()
    print_json(facts) if json else show.sets(facts)


@data_app.command("check")
def check_set(
    name: Annotated[str, typer.Argument(metavar="NAME", help="A data set of `equipoise data list`.")],
    root: Annotated[
        Path, typer.Argument(metavar="ROOT", help="The folder or zip file of its official download.")
    ],
    options: Annotated[
        list[str] | None,
        typer.Argument(metavar="[key=value]…", help="Keys of the [data] section, such as task=multi."),
    ] = None,
    json: Json = False,
) -> None:
    """Compare an official download with what was published: files, labels, counts, one image of every class.

    Example: `equipoise data check rsna-ich downloads/rsna task=multi`
    """
    from equipoise.cli.show import data as show
    from equipoise.config import override, resolve
    from equipoise.data.sets import SETS, SetData, check

    table = override({"data": {"kind": name, "path": str(root)}}, [f"data.{text}" for text in options or ()])
    if name.endswith(".toml"):
        raise ConfigError(f"data check is for published data sets: use `equipoise check {name}` for your own")
    chosen = resolve(table).data if name in SETS else None
    if not isinstance(chosen, SetData):
        raise ConfigError(unknown("data set", name, SETS))
    facts = check(chosen, Path.cwd())
    print_json(facts) if json else show.checked_set(facts)
    if not facts["ok"]:
        raise typer.Exit(DataError.exit_code)


@data_app.command("inspect")
def inspect(
    file: File,
    overrides: Overrides = None,
    contact_sheet: Annotated[
        Path | None,
        typer.Option(metavar="FILE.png", help="Write a picture of 25 images as the network sees them."),
    ] = None,
    json: Json = False,
) -> None:
    """Count the images of every class at every site, in each split; show the range of their pixels, and what
    may be wrong with them.

    Example: `equipoise data inspect mine.toml --contact-sheet sheet.png`
    """
    from equipoise.cli.show import data as show
    from equipoise.cli.trial import doubts
    from equipoise.config import read
    from equipoise.data.pixels import survey, write_contact_sheet
    from equipoise.setup import cache_folder, material

    config = read(file, overrides or ())
    dataset = material(config)
    seen = survey(dataset.samples)
    if contact_sheet is not None:
        write_contact_sheet(dataset.samples, contact_sheet)
    facts = dataset.facts.table() | {
        "pixels": seen.facts(),
        "cache": str(cache_folder()),
        "skipped": list(dataset.samples.skipped),
        "warnings": doubts(config, dataset, seen),
        "contact_sheet": None if contact_sheet is None else str(contact_sheet),
    }
    print_json(facts) if json else show.census(facts)
