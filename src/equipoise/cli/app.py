"""The command: its verbs, and how it ends."""

from __future__ import annotations

import json
import os
import sys
import traceback
from collections.abc import Sequence
from functools import cache
from typing import Annotated

import click
import typer

from equipoise.cli import new
from equipoise.cli.arguments import SUGGEST
from equipoise.cli.failure import refusal, say
from equipoise.cli.verbs import coordinator, data, facts, model, recipes, rehearse, site, tables, train

app = typer.Typer(
    name="equipoise",
    no_args_is_help=True,
    suggest_commands=SUGGEST,
    pretty_exceptions_enable=False,
    rich_markup_mode="markdown",
    context_settings={"help_option_names": ["-h", "--help"]},
)
for topic in (train, tables, model, facts, data, recipes, new, rehearse, coordinator, site):
    topic.mount(app)


def _version(wanted: bool) -> None:
    if wanted:
        facts.version()
        raise typer.Exit


@app.callback()
def equipoise(
    version: Annotated[
        bool,
        typer.Option(
            "--version", is_eager=True, callback=_version, help="Show what `equipoise version` shows."
        ),
    ] = False,
) -> None:
    """Train medical image classifiers across hospitals when the classes that matter most are rare."""


@cache
def command() -> click.Command:
    """All verbs with their options, put together once."""
    return typer.main.get_command(app)


def main(args: Sequence[str] | None = None) -> None:
    """Run the command line and exit with its code."""
    words = list(sys.argv[1:] if args is None else args)
    # Arithmetic is in one thread anyway, and only a process without others can be copied (see engine.fork).
    os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
    try:
        code = command()(words, prog_name="equipoise", standalone_mode=False)
    except Exception as error:
        sentence, code = refusal(error)
        if os.environ.get("EQUIPOISE_DEBUG"):
            traceback.print_exc()
        if "--json" in words:
            print(json.dumps({"error": sentence, "exit_code": code}))
        say(sentence)
    sys.exit(code if isinstance(code, int) else 0)
