"""Verbs that train, and what they leave behind: run, resume, demo, report, verify."""

from __future__ import annotations

import re
from contextlib import ExitStack
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from equipoise.cli.arguments import File, Json, Live, Overrides, Quiet, Trust
from equipoise.cli.failure import resumable
from equipoise.cli.output import note, print_json
from equipoise.errors import StorageError

if TYPE_CHECKING:
    from equipoise.config import Config
    from equipoise.running import Result


def mount(app: typer.Typer) -> None:
    """Add the verbs to the command."""
    for verb in (demo, run, resume, report, verify):
        app.command()(verb)


def demo(
    out: Annotated[
        Path | None, typer.Option(help="Folder for the five runs and the page. [default: runs/demo]")
    ] = None,
    workers: Annotated[
        int | None, typer.Option(min=1, help="Worker processes. [default: one per core]")
    ] = None,
    json: Json = False,
    quiet: Quiet = False,
) -> None:
    """Train five methods on generated images and compare them: offline, in about a minute.

    Training alone, FedAvg, FedAvg with balanced softmax, FCA and Equipoise, with the same budget each, at
    six hospitals that are simulated on this machine.
    """
    from equipoise.cli.demo import choose_folder, compare
    from equipoise.cli.show import runs as show

    folder = choose_folder(out)
    with resumable(f"equipoise demo --out {folder}"):
        facts = compare(folder, workers, quiet or json)
    if json:
        print_json(facts)
    else:
        show.comparison(facts)


def run(
    file: File,
    overrides: Overrides = None,
    out: Annotated[
        Path | None, typer.Option(help="The run folder. [default: `runs/<file>-<method>-<seed>`]")
    ] = None,
    live: Live = False,
    json: Json = False,
    quiet: Quiet = False,
) -> None:
    """Train as a config file says; a run that was begun in the same folder continues where it stopped.

    Example: `equipoise run fedavg.toml train.rounds=50 method.name=fca --out runs/fca`
    """
    from equipoise.config import read

    config = read(file, overrides or ())
    _train(config, out or _default_folder(file, config), live, json, quiet)


def resume(
    folder: Annotated[Path, typer.Argument(metavar="DIR", help="A run folder.")],
    trust: Trust = False,
    live: Live = False,
    json: Json = False,
    quiet: Quiet = False,
) -> None:
    """Continue a run that was interrupted, to the same result bit for bit; a finished run is shown
    again."""
    from equipoise.config import read_folder
    from equipoise.run_folder import RunFolder

    RunFolder(folder).refuse_federation()
    _train(read_folder(folder, trust), folder, live, json, quiet)


def report(
    folder: Annotated[
        Path, typer.Argument(metavar="DIR", help="A run folder, finished or not, or that of a comparison.")
    ],
    live: Annotated[
        bool, typer.Option("--live", help="Follow a run that goes on, until it is finished or Ctrl-C.")
    ] = False,
    show: Annotated[bool, typer.Option("--open", help="Open the page in the browser.")] = False,
    json: Json = False,
) -> None:
    """Write the page of a run or a comparison: one file, without requests to any network.

    Example: `equipoise report runs/fca --live --open`
    """
    from equipoise.cli.live import follow, write_page

    page = write_page(folder)
    if show:
        import webbrowser

        webbrowser.open(page.resolve().as_uri())
    if live:
        note(f"{page} follows the run; Ctrl-C ends", json)
        with resumable(f"equipoise report {folder} --live"):
            follow(folder)
    print_json({"report": str(page)}) if json else print(page)


def verify(
    folder: Annotated[
        Path, typer.Argument(metavar="DIR", help="A run folder, a site's folder, or the image cache.")
    ],
    other: Annotated[
        Path | None,
        typer.Option(
            "--with", metavar="JOURNAL", help="The journal of the other side of a federation, or its folder."
        ),
    ] = None,
    json: Json = False,
) -> None:
    """Check the digest of every file in a folder and the journal's chain, and whether they fit together;
    change nothing.

    Example: `equipoise verify runs/fca --with north/journal.jsonl`
    """
    from equipoise.cli.show import runs as show
    from equipoise.verify import verify as work

    findings = work(folder, other)
    print_json({"ok": not findings.problems, **asdict(findings)}) if json else show.verified(findings)
    if findings.problems:
        raise typer.Exit(StorageError.exit_code)


def _train(config: Config, folder: Path, live: bool, json: bool, quiet: bool) -> None:
    from equipoise.cli.live import following
    from equipoise.cli.progress import watching
    from equipoise.cli.show import runs as show
    from equipoise.report import write_report
    from equipoise.running import run

    with resumable(f"equipoise resume {folder}"), watching(quiet or json) as watch, ExitStack() as stack:
        if live:
            note(f"{folder / 'report.html'} follows the run", quiet or json)
            watch = stack.enter_context(following(watch, folder))
        result: Result = run(config, folder, watch=watch)
        page = write_report(folder)
    if json:
        print_json(result.summary() | {"report": str(page)})
    else:
        show.result(result, page)


def _default_folder(file: Path, config: Config) -> Path:
    method = re.sub(r"[^\w-]+", "-", config.method_name)
    return Path("runs") / f"{file.stem}-{method}-{config.train.seed}"
