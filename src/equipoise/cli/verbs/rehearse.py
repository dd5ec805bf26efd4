"""The verb that plays coordinator and sites on one machine: rehearse."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from equipoise.cli.arguments import File, Json, Overrides
from equipoise.cli.failure import need
from equipoise.cli.output import print_json


def mount(app: typer.Typer) -> None:
    """Add the verb to the command."""
    app.command()(rehearse)


def rehearse(
    file: File,
    overrides: Overrides = None,
    out: Annotated[
        Path | None, typer.Option(help="The run folder. [default: `runs/<file>-rehearsal-<seed>`]")
    ] = None,
    json: Json = False,
) -> None:
    """Run a config as a federation of real processes on this machine (keys, TLS, Flower), and compare with
    the simulation."""
    need()
    from equipoise.cli.follow import follow
    from equipoise.config import read
    from equipoise.deploy.rehearse import rehearse as perform
    from equipoise.report import write_report

    config = read(file, overrides or ())
    folder = out or Path("runs") / f"{file.stem}-rehearsal-{config.train.seed}"
    result = perform(config, folder, follow(folder, config.train.rounds, json))
    page = write_report(folder)
    if json:
        print_json(result | {"report": str(page)})
    else:
        words = {True: "the same bits", False: "NOT THE SAME", None: "noise of their own, nothing to compare"}
        print(f"state       {result['state_hash']}\nsimulation  {result['simulation_hash'] or 'none'}")
        print(f"{result['sites']} sites in {result['seconds']} s: {words[result['same']]}")
        if result["each"]:
            print(f"policy      each site must add to `each`: {', '.join(result['each'])}")
        print(f"report      {page}")
    if result["same"] is False:
        raise typer.Exit(1)
