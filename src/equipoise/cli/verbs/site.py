"""Verbs of a hospital: set up a site, check it, take part."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Annotated, Any

import typer

from equipoise.cli.arguments import HealthPort, Json, Overrides, topic
from equipoise.cli.failure import need
from equipoise.cli.output import print_json
from equipoise.errors import SiteError

site_app = topic("A hospital's day: set up a site, check it, take part.")

Folder = Annotated[Path, typer.Argument(metavar="DIR", help="The site's folder (see `equipoise site init`).")]


def mount(app: typer.Typer) -> None:
    """Add the verbs to the command."""
    app.add_typer(site_app, name="site")


@site_app.command("init")
def site_init(
    folder: Folder,
    name: Annotated[str, typer.Option(help="This site's name, as agreed with the coordinator.")],
    superlink: Annotated[str, typer.Option(help="host:port of the coordinator.")],
    method: Annotated[list[str] | None, typer.Option(help="A method to approve. [default: none]")] = None,
    json: Json = False,
) -> None:
    """Make a site's folder: site.toml to fill in, a policy that allows little, and a key pair of its own.

    Example: `equipoise site init hospital --name north --superlink fl.example.org:8000 --method fca`
    """
    need()
    from equipoise.deploy.setting import new_site

    made = new_site(folder, name, superlink, method or [])
    if json:
        print_json({"made": [str(path) for path in made]})
    else:
        print("\n".join(map(str, made)))
        toml, key = folder / "site.toml", folder / "keys" / "site.pub"
        print(f"next: describe your data in {toml}, send {key} to the coordinator,")
        print(f"put their ca.crt into {folder / 'keys'}, then `equipoise site check {folder}`")


@site_app.command("check")
def site_check(
    folder: Folder,
    file: Annotated[
        Path | None, typer.Argument(metavar="[FILE.toml]", help="A run: what would leave, and is it allowed?")
    ] = None,
    overrides: Overrides = None,
    json: Json = False,
) -> None:
    """Try all that can go wrong before taking part: data, keys, policy; with a run's config (and the values
    that `equipoise submit` is given), what would leave this site. Ends with code 7 where the site would
    refuse, and names the fix."""
    need()
    from equipoise.cli.show import methods as show
    from equipoise.cli.trial import totals
    from equipoise.deploy.setting import check_site

    checked = check_site(folder, file, overrides or ())
    leaving: dict[str, Any] = {}
    if checked.ledger is not None:
        leaving = {"leaves": checked.joining + checked.ledger.rows(), "questions": totals(checked.ledger)}
    if json:
        facts = {"checked": checked.facts, "warnings": checked.warnings, **leaving}
        print_json(facts | {"refused": checked.refused})
    else:
        for what, text in checked.facts.items():
            print(f"✓ {what:<8} {text}")
        for text in checked.warnings:
            print(f"! {text}")
        if leaving:
            show.ledger(leaving)
        for sentence in checked.refused:
            print(f"✗ {sentence}")
    if checked.refused:
        raise typer.Exit(SiteError.exit_code)


@site_app.command("join")
def site_join(
    folder: Folder,
    patience: Annotated[
        float, typer.Option(min=0, help="Seconds to go on trying where the coordinator does not let us in.")
    ] = 150.0,
    health_port: HealthPort = None,
) -> None:
    """Take part: dial the coordinator and answer what the policy allows, until Ctrl-C. Says when it is online
    and when it no longer is."""
    need()
    from equipoise.deploy.join import join
    from equipoise.deploy.site import read_site

    def say(text: str) -> None:
        print(f"{time.strftime('%H:%M:%S')}  {text}", flush=True)

    say(f"dialling {read_site(folder).superlink}; {folder / 'journal.jsonl'} says what is asked; Ctrl-C ends")
    join(folder, patience, say, health_port)
