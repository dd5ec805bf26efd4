"""The verbs, and how a failure becomes one sentence and an exit code."""

from __future__ import annotations

import errno
import json
import os
import re
import signal
import sys
import traceback
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import click
import typer

from equipoise.errors import INTERRUPTED, TERMINATED, EquipoiseError, StorageError

if TYPE_CHECKING:
    from types import FrameType

    from equipoise.config import Config
    from equipoise.running import Result

app = typer.Typer(
    name="equipoise",
    help="Train medical image classifiers across hospitals when the classes that matter most are rare.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode="markdown",
    context_settings={"help_option_names": ["-h", "--help"]},
)
data_app = typer.Typer(help="Look at data before training on it.", no_args_is_help=True)
app.add_typer(data_app, name="data")

File = Annotated[Path, typer.Argument(metavar="FILE.toml", help="The config of the run.")]
Overrides = Annotated[
    list[str] | None, typer.Argument(metavar="[section.key=value]…", help="Values that replace those of the file.")
]
Json = Annotated[bool, typer.Option("--json", help="Print JSON and nothing else.")]
Quiet = Annotated[bool, typer.Option("--quiet", "-q", help="No progress; only the result.")]


# The verbs -------------------------------------------------------------------------------------------------------------


@app.command()
def demo(
    out: Annotated[Path | None, typer.Option(help="Folder for the four runs and the page. [default: runs/demo]")] = None,
    workers: Annotated[int | None, typer.Option(min=1, help="Worker processes. [default: one per core]")] = None,
    json: Json = False,
    quiet: Quiet = False,
) -> None:
    """Train four methods on made-up images and compare them: offline, in about a minute.

    Training alone, FedAvg, FedAvg with balanced softmax, and FCA, with the same budget each, at six made-up hospitals.
    """
    from equipoise.cli import show
    from equipoise.cli.demo import choose_folder, compare

    folder = choose_folder(out)
    with _resumable(f"equipoise demo --out {folder}"):
        rows, page = compare(folder, workers, quiet or json)
    if json:
        _print_json({"rows": rows, "report": str(page)})
    else:
        show.comparison(rows, page)


@app.command()
def run(
    file: File,
    overrides: Overrides = None,
    out: Annotated[Path | None, typer.Option(help="The run folder. [default: runs/<file>-<method>-<seed>]")] = None,
    json: Json = False,
    quiet: Quiet = False,
) -> None:
    """Train as a config file says; a run that was begun in the same folder goes on where it stopped.

    Example: `equipoise run fedavg.toml train.rounds=50 method.name=fca --out runs/fca`
    """
    from equipoise.config import read

    config = read(file, overrides or ())
    _train(config, out or _default_folder(file, config), json, quiet)


@app.command()
def resume(
    folder: Annotated[Path, typer.Argument(metavar="DIR", help="A run folder.")], json: Json = False, quiet: Quiet = False
) -> None:
    """Go on with a run that was interrupted, to the same result bit for bit; a finished run is shown again."""
    from equipoise.config import read

    path = folder / "config.toml"
    if not path.is_file():
        raise StorageError(f"{folder} is not a run folder: it has no config.toml")
    _train(read(path), folder, json, quiet)


@app.command()
def check(file: File, overrides: Overrides = None, json: Json = False) -> None:
    """Try everything that can go wrong before training (config, data, sites, network, method, exchange); train nothing."""
    from equipoise.cli import show
    from equipoise.cli.trial import trial
    from equipoise.config import read

    found = trial(read(file, overrides or ()))
    if json:
        _print_json({"ok": True, "checked": found.checked})
    else:
        show.checked(found.checked)


@app.command()
def methods(
    name: Annotated[str | None, typer.Argument(metavar="[NAME]", help="One method, with its fields and presets.")] = None,
    json: Json = False,
) -> None:
    """List the methods: paper, tasks, what leaves a site, defaults. With a name: its fields and presets."""
    from equipoise.cli import show
    from equipoise.cli.catalogue import describe, describe_all

    if name is None:
        everything = describe_all()
        _print_json(everything) if json else show.methods(everything)
    else:
        one = describe(name)
        _print_json(one) if json else show.method(one)


@app.command()
def ledger(file: File, overrides: Overrides = None, json: Json = False) -> None:
    """Show exactly what would leave a site: every leaf, its size, and who can read it."""
    from equipoise.cli import show
    from equipoise.cli.trial import totals, trial
    from equipoise.config import read

    found = trial(read(file, overrides or ())).ledger
    facts = {"leaves": found.rows(), "questions": totals(found)}
    _print_json(facts) if json else show.ledger(facts)


@data_app.command("inspect")
def inspect(file: File, overrides: Overrides = None, json: Json = False) -> None:
    """Count the images of every class at every site, in each split."""
    from equipoise.cli import show
    from equipoise.config import read
    from equipoise.report import census
    from equipoise.setup import cache_folder, material

    stuff = material(read(file, overrides or ()))
    facts = census(stuff) | {"cache": str(cache_folder()), "skipped": list(stuff.samples.skipped)}
    _print_json(facts) if json else show.census(facts)


@app.command()
def version(json: Json = False) -> None:
    """Show the versions of Equipoise, Python and PyTorch."""
    from importlib.metadata import version as version_of
    from platform import python_version

    from equipoise import __version__

    facts = {"equipoise": __version__, "python": python_version(), "torch": version_of("torch")}
    if json:
        _print_json(facts)
    else:
        print(" · ".join(f"{name} {number}" for name, number in facts.items()))


# What they share -------------------------------------------------------------------------------------------------------


def _train(config: Config, folder: Path, json: bool, quiet: bool) -> None:
    from equipoise.cli import show
    from equipoise.cli.progress import watching
    from equipoise.report import write_report
    from equipoise.running import run

    with _resumable(f"equipoise resume {folder}"), watching(quiet or json) as watch:
        result: Result = run(config, folder, watch=watch)
        page = write_report(folder)
    if json:
        _print_json(result.summary() | {"report": str(page)})
    else:
        show.result(result, page)


def _default_folder(file: Path, config: Config) -> Path:
    method = re.sub(r"[^\w-]+", "-", config.method_name)
    return Path("runs") / f"{file.stem}-{method}-{config.train.seed}"


def _print_json(facts: Any) -> None:
    print(json.dumps(facts, indent=1, default=str))


class Stopped(Exception):
    """The user (or the system) asked us to end; what was done is kept."""

    def __init__(self, command: str, exit_code: int) -> None:
        super().__init__(f"interrupted; `{command}` goes on")
        self.exit_code = exit_code


class Terminated(KeyboardInterrupt):
    """SIGTERM, treated like Ctrl-C: the run ends between two writes and can be resumed."""


@contextmanager
def _resumable(command: str) -> Iterator[None]:
    """Turn an interruption into a sentence that names the command that goes on."""

    def terminate(number: int, frame: FrameType | None) -> None:
        raise Terminated

    before = signal.signal(signal.SIGTERM, terminate)
    try:
        yield
    except KeyboardInterrupt as stop:
        raise Stopped(command, TERMINATED if isinstance(stop, Terminated) else INTERRUPTED) from None
    finally:
        signal.signal(signal.SIGTERM, before)


def main(args: Sequence[str] | None = None) -> None:
    """Run the command line and exit with its code."""
    given = list(sys.argv[1:] if args is None else args)
    try:
        code = app(given, prog_name="equipoise", standalone_mode=False)
    except Exception as error:
        sentence, code = _refusal(error)
        if os.environ.get("EQUIPOISE_DEBUG"):
            traceback.print_exc()
        if "--json" in given:
            print(json.dumps({"error": sentence, "exit_code": code}))
        _say(sentence)
    sys.exit(code if isinstance(code, int) else 0)


def _refusal(error: Exception) -> tuple[str, int]:
    """The sentence and the exit code of a failure."""
    if isinstance(error, EquipoiseError | Stopped):
        return str(error), error.exit_code
    if isinstance(error, click.ClickException):
        return error.format_message(), error.exit_code
    if isinstance(error, OSError) and error.errno in (errno.ENOSPC, errno.EDQUOT):
        return (
            f"the disk is full ({error.filename or 'while writing'}): free some space, then run again",
            StorageError.exit_code,
        )
    text = f"{type(error).__name__}: {error}".splitlines()[0].rstrip(": ")
    return f"unexpected {text} (a bug: set EQUIPOISE_DEBUG=1 to see the traceback)", 1


def _say(sentence: str) -> None:
    """One red sentence on standard error."""
    red, plain = ("\033[31m", "\033[0m") if sys.stderr.isatty() and "NO_COLOR" not in os.environ else ("", "")
    print(f"{red}{sentence}{plain}", file=sys.stderr)
