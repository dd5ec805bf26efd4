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
from contextlib import ExitStack, contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import click
import typer

from equipoise.cli import flower, new
from equipoise.errors import (
    INTERRUPTED,
    TERMINATED,
    ConfigError,
    DataError,
    EquipoiseError,
    RunsFailed,
    StorageError,
)
from equipoise.names import unknown
from equipoise.text import printable

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
flower.mount(app)
new.mount(app)

File = Annotated[Path, typer.Argument(metavar="FILE.toml", help="The config of the run.")]
Overrides = Annotated[
    list[str] | None,
    typer.Argument(metavar="[section.key=value]…", help="Values that replace those of the file."),
]
Model = Annotated[
    Path, typer.Argument(metavar="DIR", help="A run folder, or a file that `equipoise export` wrote.")
]
Site = Annotated[
    str | None,
    typer.Option(metavar="NAME", help="The own predictor of this site, instead of the global one."),
]
Trust = Annotated[
    bool,
    typer.Option(
        "--trust", help="Run the method's file or module that the run folder names, and note it as trusted."
    ),
]
Json = Annotated[bool, typer.Option("--json", help="Print JSON and nothing else.")]
Quiet = Annotated[bool, typer.Option("--quiet", "-q", help="No progress; only the result.")]
Live = Annotated[
    bool, typer.Option("--live", help="A page that follows the run, from its start; open it in a browser.")
]


# The verbs --------------------------------------------------------------------------------------------------


@app.command()
def demo(
    out: Annotated[
        Path | None, typer.Option(help="Folder for the four runs and the page. [default: runs/demo]")
    ] = None,
    workers: Annotated[
        int | None, typer.Option(min=1, help="Worker processes. [default: one per core]")
    ] = None,
    json: Json = False,
    quiet: Quiet = False,
) -> None:
    """Train four methods on made-up images and compare them: offline, in about a minute.

    Training alone, FedAvg, FedAvg with balanced softmax, and FCA, with the same budget each, at six made-up
    hospitals.
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
    out: Annotated[
        Path | None, typer.Option(help="The run folder. [default: runs/<file>-<method>-<seed>]")
    ] = None,
    live: Live = False,
    json: Json = False,
    quiet: Quiet = False,
) -> None:
    """Train as a config file says; a run that was begun in the same folder goes on where it stopped.

    Example: `equipoise run fedavg.toml train.rounds=50 method.name=fca --out runs/fca`
    """
    from equipoise.config import read

    config = read(file, overrides or ())
    _train(config, out or _default_folder(file, config), live, json, quiet)


@app.command()
def resume(
    folder: Annotated[Path, typer.Argument(metavar="DIR", help="A run folder.")],
    trust: Trust = False,
    live: Live = False,
    json: Json = False,
    quiet: Quiet = False,
) -> None:
    """Go on with a run that was interrupted, to the same result bit for bit; a finished run is shown
    again."""
    from equipoise.config import read_folder

    _train(read_folder(folder, trust), folder, live, json, quiet)


@app.command()
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
    from equipoise.cli import show
    from equipoise.verify import verify as work

    found = work(folder, other)
    _print_json({"ok": not found.problems, **asdict(found)}) if json else show.verified(found)
    if found.problems:
        raise typer.Exit(StorageError.exit_code)


@app.command()
def report(
    folder: Annotated[
        Path, typer.Argument(metavar="DIR", help="A run folder, finished or not, or that of a comparison.")
    ],
    live: Annotated[
        bool, typer.Option("--live", help="Follow a run that goes on, until it is finished or Ctrl-C.")
    ] = False,
    show: Annotated[bool, typer.Option("--open", help="Open the page in the browser.")] = False,
    trust: Trust = False,
    json: Json = False,
) -> None:
    """Write the page of a run or a comparison: one file, without requests to any network.

    Example: `equipoise report runs/fca --live --open`
    """
    from equipoise.cli.live import follow, write_page

    page = write_page(folder, trust)
    if show:
        import webbrowser

        webbrowser.open(page.resolve().as_uri())
    if live:
        _note(f"{page} follows the run; Ctrl-C ends", json)
        with _resumable(f"equipoise report {folder} --live"):
            follow(folder)
    _print_json({"report": str(page)}) if json else print(page)


@app.command()
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
        Path | None, typer.Option(help="Folder for runs and tables. [default: runs/<file>-compare]")
    ] = None,
    jobs: Annotated[int | None, typer.Option(min=1, help="Runs at a time. [default: one per core]")] = None,
    json: Json = False,
    quiet: Quiet = False,
) -> None:
    """Compare methods over seeds or folds: one table with mean ± std and p-values; finished runs are not
    repeated.

    Example: `equipoise compare ham.toml --methods fedavg,fca,fediic:dala --seeds 0..4 --out runs/ham`
    """
    from equipoise.cli import show
    from equipoise.cli.progress import racing
    from equipoise.compare import arm_from, make_plan, numbers
    from equipoise.compare import compare as work
    from equipoise.config import load, override, setting

    folder = out or Path("runs") / f"{file.stem}-compare"
    with _resumable(f"equipoise compare {file} … --out {folder}"), racing(quiet or json) as watch:
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
        facts = work(plan, folder, jobs, watch)
    _print_json(facts) if json else show.compared(facts, folder)
    _some_failed(facts["failures"], len(plan.jobs), json)


@app.command()
def reproduce(
    table: Annotated[
        str | None, typer.Argument(metavar="[TABLE]", help="A table of `equipoise reproduce --list`.")
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
        bool, typer.Option("--list", help="Every table: rows, data, estimated cost on this machine.")
    ] = False,
    out: Annotated[
        Path | None, typer.Option(help="Folder for runs and tables. [default: runs/<table>[-small]]")
    ] = None,
    jobs: Annotated[int | None, typer.Option(min=1, help="Runs at a time. [default: one per core]")] = None,
    json: Json = False,
    quiet: Quiet = False,
) -> None:
    """Run a table of one of the five papers and set our numbers beside the published ones.

    Example: `equipoise reproduce fca-table4 --data downloads --scale small --seeds 0..2`
    """
    from equipoise.cli import show
    from equipoise.cli.progress import racing
    from equipoise.compare import numbers
    from equipoise.reproduce import SCALES, find, listing, prepare
    from equipoise.reproduce import reproduce as work

    if list_ or table is None:
        found = listing([table] if table else ())
        _print_json(found) if json else show.papers(found)
        return
    paper = find(table)
    if scale not in SCALES:
        raise ConfigError("--scale: " + unknown("scale", scale, SCALES))
    folder = out or Path("runs") / (table if scale == "full" else f"{table}-{scale}")
    with _resumable(f"equipoise reproduce {table} … --out {folder}"), racing(quiet or json) as watch:
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
        facts = work(task, folder, jobs, watch)
    _print_json(facts) if json else show.reproduced(facts, folder)
    _some_failed(facts["failures"], len(task.plan.jobs), json)


@app.command()
def check(file: File, overrides: Overrides = None, json: Json = False) -> None:
    """Try everything that can go wrong before training (config, data, sites, network, method, exchange);
    train nothing. What may be wrong with the data is a warning (!), with the rows and the fix."""
    from equipoise.cli import show
    from equipoise.cli.trial import can_be_judged, doubts, trial
    from equipoise.config import read
    from equipoise.data.pixels import survey

    config = read(file, overrides or ())
    found = trial(config)
    can_be_judged(config, found.stuff)
    warnings = doubts(config, found.stuff, survey(found.stuff.samples))
    if json:
        _print_json({"ok": True, "checked": found.checked, "warnings": warnings})
    else:
        show.checked(found.checked, warnings)


@app.command()
def methods(
    name: Annotated[
        str | None, typer.Argument(metavar="[NAME]", help="One method, with its fields and presets.")
    ] = None,
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


@app.command()
def predict(
    model: Model,
    images: Annotated[
        list[Path], typer.Argument(metavar="IMAGES…", help="Image files, folders, zip files; DICOM too.")
    ],
    site: Site = None,
    trust: Trust = False,
    out: Annotated[Path | None, typer.Option(help="A CSV file. [default: CSV on standard output]")] = None,
    json: Json = False,
) -> None:
    """Classify images with a trained model: CSV with the predicted class and a probability per class.

    Example: `equipoise predict runs/fca new-patients.zip --site north --out answers.csv`
    """
    from equipoise.cli.answers import answers, table, write
    from equipoise.use import load

    found = load(model, site, trust=trust)
    _note(found.title, json)
    rows = list(found.predict(images))
    bad = [row for row in rows if row.error is not None]
    if json:
        _print_json(answers(found, rows))
    elif out is None:
        print(table(found, rows), end="")
    else:
        write(out, table(found, rows))
        print(f"{len(rows) - len(bad):,} images classified, in {out}")
    for row in bad:
        _note(f"{row.file} cannot be read: {row.error}", json)
    if bad and json:
        raise typer.Exit(DataError.exit_code)
    if bad:
        raise DataError(
            f"{len(bad)} of {len(rows)} images cannot be read, the first is {bad[0].file}: {bad[0].error}"
        )


@app.command()
def evaluate(
    model: Model,
    data: Annotated[
        Path,
        typer.Option(metavar="FILE.toml", help="A file whose [data] section says where the new images are."),
    ],
    site: Site = None,
    trust: Trust = False,
    json: Json = False,
) -> None:
    """Test a trained model on new data, such as a hospital that took no part.

    Example: `equipoise evaluate runs/fca --data other-hospital.toml`
    """
    from equipoise.cli import show
    from equipoise.use import evaluate as work
    from equipoise.use import load

    found = work(load(model, site, trust=trust), data)
    _print_json(found) if json else show.evaluated(found)


@app.command()
def export(
    model: Model,
    to: Annotated[str, typer.Option(help="safetensors or onnx.")],
    out: Annotated[
        Path | None, typer.Option(help="The file. [default: model.<kind> in the run folder]")
    ] = None,
    site: Site = None,
    trust: Trust = False,
    json: Json = False,
) -> None:
    """Write a trained model to one file, with its pre-processing, and check that it answers as the model
    does.

    Example: `equipoise export runs/fca --to onnx --out fca.onnx`
    """
    from equipoise.use import export as work
    from equipoise.use import load

    found = load(model, site, trust=trust)
    folder = model.parent if model.is_file() else model
    path = out or folder / f"model{'' if found.origin.site is None else f'-{found.origin.site}'}.{to}"
    difference = work(found, path, to)
    if json:
        _print_json({"model": found.title, "file": str(path), "largest_difference": difference})
    else:
        print(f"{found.title}, in {path}; largest difference of a probability {difference:.1e}")


@data_app.command("list")
def list_sets(json: Json = False) -> None:
    """List the published data sets that can be read by name: classes, images, sites, licence. `--json`:
    layout and source too."""
    from equipoise.cli import show
    from equipoise.cli.catalogue import describe_sets

    facts = describe_sets()
    _print_json(facts) if json else show.sets(facts)


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
    from equipoise.cli import show
    from equipoise.config import override, resolve
    from equipoise.data.sets import SETS, SetData, check

    table = override({"data": {"kind": name, "path": str(root)}}, [f"data.{text}" for text in options or ()])
    if name.endswith(".toml"):
        raise ConfigError(f"data check is for published data sets: use `equipoise check {name}` for your own")
    given = resolve(table).data if name in SETS else None
    if not isinstance(given, SetData):
        raise ConfigError(unknown("data set", name, SETS))
    facts = check(given, Path.cwd())
    _print_json(facts) if json else show.checked_set(facts)
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
    from equipoise.cli import show
    from equipoise.cli.trial import doubts
    from equipoise.config import read
    from equipoise.data.pixels import survey, write_contact_sheet
    from equipoise.setup import cache_folder, material

    config = read(file, overrides or ())
    stuff = material(config)
    seen = survey(stuff.samples)
    if contact_sheet is not None:
        write_contact_sheet(stuff.samples, contact_sheet)
    facts = stuff.facts.table() | {
        "pixels": seen.facts(),
        "cache": str(cache_folder()),
        "skipped": list(stuff.samples.skipped),
        "warnings": doubts(config, stuff, seen),
        "contact_sheet": None if contact_sheet is None else str(contact_sheet),
    }
    _print_json(facts) if json else show.census(facts)


@app.command()
def version(
    sbom: Annotated[
        bool, typer.Option("--sbom", help="Every installed package it runs on, as CycloneDX JSON.")
    ] = False,
    json: Json = False,
) -> None:
    """Show the versions of Equipoise, Python and PyTorch."""
    if sbom:
        from equipoise.cli.sbom import bill

        _print_json(bill())
        return
    from importlib.metadata import version as version_of
    from platform import python_version

    from equipoise.version import __version__

    facts = {"equipoise": __version__, "python": python_version(), "torch": version_of("torch")}
    if json:
        _print_json(facts)
    else:
        print(" · ".join(f"{name} {number}" for name, number in facts.items()))


# What they share --------------------------------------------------------------------------------------------


def _train(config: Config, folder: Path, live: bool, json: bool, quiet: bool) -> None:
    from equipoise.cli import show
    from equipoise.cli.live import following
    from equipoise.cli.progress import watching
    from equipoise.report import write_report
    from equipoise.running import run

    with _resumable(f"equipoise resume {folder}"), watching(quiet or json) as watch, ExitStack() as stack:
        if live:
            _note(f"{folder / 'report.html'} follows the run", quiet or json)
            watch = stack.enter_context(following(watch, folder))
        result: Result = run(config, folder, watch=watch)
        page = write_report(folder)
    if json:
        _print_json(result.summary() | {"report": str(page)})
    else:
        show.result(result, page)


def _some_failed(failures: Sequence[dict[str, Any]], runs: int, json: bool) -> None:
    """End with the code of failed runs if there are any; what JSON has already said is not said again."""
    if failures and json:
        raise typer.Exit(RunsFailed.exit_code)
    if failures:
        first = f"{failures[0]['run']}: {failures[0]['error']}"
        raise RunsFailed(
            f"{len(failures)} of {runs} runs failed ({first}); the same command tries them again"
        )


def _default_folder(file: Path, config: Config) -> Path:
    method = re.sub(r"[^\w-]+", "-", config.method_name)
    return Path("runs") / f"{file.stem}-{method}-{config.train.seed}"


def _note(text: str, json: bool) -> None:
    """A line beside the output, on standard error."""
    if not json:
        print(text, file=sys.stderr)


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
    print(f"{red}{printable(sentence)}{plain}", file=sys.stderr)
