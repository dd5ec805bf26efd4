"""Verbs that end in a table: compare, reproduce."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any

import typer

from equipoise.cli.arguments import File, Json, Overrides, Quiet
from equipoise.cli.failure import resumable
from equipoise.cli.output import print_json
from equipoise.errors import ConfigError, RunsFailed
from equipoise.names import unknown

Jobs = Annotated[int | None, typer.Option(min=1, help="Runs at a time. [default: one per core]")]
On = Annotated[str | None, typer.Option(help="ray: runs on the nodes of the cluster at engine.address.")]


def mount(app: typer.Typer) -> None:
    """Add the verbs to the command."""
    for verb in (compare, reproduce):
        app.command()(verb)


def compare(
    file: File,
    overrides: Overrides = None,
    methods: Annotated[
        str, typer.Option(help="NAME or NAME:preset, with commas between; 'all': every one that fits.")
    ] = "",
    seeds: Annotated[str, typer.Option(help="0..4 or 0,3,7.")] = "0..4",
    folds: Annotated[
        int | None, typer.Option(min=2, help="Cross-validation instead of the file's test set.")
    ] = None,
    grid: Annotated[
        list[str] | None, typer.Option(help="section.key=value,value: an arm for every value. Repeatable.")
    ] = None,
    arm: Annotated[
        list[str] | None, typer.Option(help="'LABEL: section.key=value …': one more arm. Repeatable.")
    ] = None,
    reference: Annotated[
        str | None, typer.Option(help="The arm the others are tested against. [default: the first]")
    ] = None,
    out: Annotated[
        Path | None, typer.Option(help="Folder for runs and tables. [default: `runs/<file>-compare`]")
    ] = None,
    jobs: Jobs = None,
    on: On = None,
    json: Json = False,
    quiet: Quiet = False,
) -> None:
    """Compare methods over seeds or folds: one table with mean ± std and p-values; finished runs are not
    repeated.

    Example: `equipoise compare ham.toml --methods fedavg,fca,fediic:dala --seeds 0..4 --out runs/ham`
    """
    from equipoise.cli.progress import racing
    from equipoise.cli.show import tables as show
    from equipoise.compare import arm_from, make_plan, numbers
    from equipoise.compare import compare as work
    from equipoise.config import load, override, setting

    folder = out or Path("runs") / f"{file.stem}-compare"
    with resumable(f"equipoise compare {file} … --out {folder}"), racing(quiet or json) as watch:
        plan = make_plan(
            override(load(file), overrides or ()),
            [name for name in methods.split(",") if name.strip()],
            seeds=numbers(seeds),
            folds=folds,
            grid=grid or (),
            arms=[arm_from(text) for text in arm or ()],
            reference=reference,
            by_hand=[setting(text)[0] for text in overrides or ()],
            progress=lambda text, done, total: watch("data", {"text": text, "done": done, "total": total}),
        )
        facts = work(plan, folder, jobs, watch, on)
    print_json(facts) if json else show.compared(facts, folder)
    _some_failed(facts["failures"], len(plan.jobs), json)


def reproduce(
    table: Annotated[
        str | None,
        typer.Argument(
            metavar="[TABLE]", help="A table, or with --list a paper, of `equipoise reproduce --list`."
        ),
    ] = None,
    overrides: Overrides = None,
    data: Annotated[
        Path | None,
        typer.Option(metavar="ROOT", help="The download, a folder of downloads, or a .toml with [data]."),
    ] = None,
    scale: Annotated[
        str, typer.Option(help="full, or small: images, rounds and network for a laptop.")
    ] = "full",
    seeds: Annotated[
        str | None, typer.Option(help="0..4 or 0,3,7. [default: the paper's; small: the first]")
    ] = None,
    rows: Annotated[str, typer.Option(help="Labels of rows, with commas between. [default: all]")] = "",
    from_scratch: Annotated[
        bool, typer.Option("--from-scratch", help="Random weights, not pretrained ones.")
    ] = False,
    list_: Annotated[
        bool,
        typer.Option(
            "--list", help="The papers, or one, or a table of it: data, estimated cost on this machine."
        ),
    ] = False,
    out: Annotated[
        Path | None, typer.Option(help="Folder for runs and tables. [default: `runs/<table>[-small]`]")
    ] = None,
    jobs: Jobs = None,
    on: On = None,
    json: Json = False,
    quiet: Quiet = False,
) -> None:
    """Run a table of one of the five papers and set our numbers beside the published ones.

    Example: `equipoise reproduce fca-table4 --data downloads --scale small --seeds 0..2`
    """
    from equipoise.cli.progress import racing
    from equipoise.cli.show import tables as show
    from equipoise.compare import numbers
    from equipoise.reproduce import SCALES, find, prepare
    from equipoise.reproduce import reproduce as work

    if list_ or table is None:
        _list(table, json)
        return
    paper = find(table)
    if scale not in SCALES:
        raise ConfigError("--scale: " + unknown("scale", scale, SCALES))
    folder = out or Path("runs") / (table if scale == "full" else f"{table}-{scale}")
    with resumable(f"equipoise reproduce {table} … --out {folder}"), racing(quiet or json) as watch:
        task = prepare(
            paper,
            data,
            scale=scale,
            seeds=numbers(seeds) if seeds is not None else None,
            rows=[label.strip() for label in rows.split(",") if label.strip()],
            overrides=overrides or (),
            from_scratch=from_scratch,
            progress=lambda text, done, total: watch("data", {"text": text, "done": done, "total": total}),
        )
        facts = work(task, folder, jobs, watch, on)
    print_json(facts) if json else show.reproduced(facts, folder)
    _some_failed(facts["failures"], len(task.plan.jobs), json)


def _list(name: str | None, json: bool) -> None:
    """All papers, the tables of one, or one table."""
    from equipoise.cli.show import tables as show
    from equipoise.reproduce import listing, names

    of_paper = [one for one in names() if one.startswith(f"{name}-")]
    facts = listing(of_paper or ([name] if name else ()))
    if json:
        print_json(facts)
    elif name is None:
        show.papers(facts)
    elif of_paper:
        show.paper(facts)
    else:
        show.paper_table(facts[0])


def _some_failed(failures: Sequence[dict[str, Any]], runs: int, json: bool) -> None:
    """End with the code of failed runs if there are any; what JSON has already said is not said again."""
    if failures and json:
        raise typer.Exit(RunsFailed.exit_code)
    if failures:
        first = f"{failures[0]['run']}: {failures[0]['error']}"
        raise RunsFailed(f"{len(failures)} of {runs} runs failed ({first}); run the command again to retry")
