"""Arguments and options that several verbs have."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import click
import typer

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
HealthPort = Annotated[
    int | None,
    typer.Option(
        min=1, max=65535, help="Answer /health and /metrics (Prometheus) at this port of 127.0.0.1."
    ),
]
Coordinator = Annotated[
    Path, typer.Argument(metavar="DIR", help="The coordinator's folder (see `equipoise keys new`).")
]

SUGGEST = not hasattr(click, "NoSuchCommand")
"""whether typer must name the nearest verb; click 8.4 does it by itself"""


def topic(about: str) -> typer.Typer:
    """A group of verbs, such as `equipoise data …`."""
    return typer.Typer(help=about, no_args_is_help=True, suggest_commands=SUGGEST)
