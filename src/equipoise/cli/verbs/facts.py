"""Verbs that train nothing and tell what is known: check, ledger, methods, version."""

from __future__ import annotations

from typing import Annotated

import typer

from equipoise.cli.arguments import File, Json, Overrides
from equipoise.cli.output import print_json


def mount(app: typer.Typer) -> None:
    """Add the verbs to the command."""
    for verb in (check, ledger, methods, version):
        app.command()(verb)


def check(file: File, overrides: Overrides = None, json: Json = False) -> None:
    """Try everything that can go wrong before training (config, data, sites, network, method, exchange);
    train nothing. What may be wrong with the data is a warning (!), with the rows and the fix."""
    from equipoise.cli.show import methods as show
    from equipoise.cli.trial import can_be_judged, doubts, trial
    from equipoise.config import read
    from equipoise.data.pixels import survey

    config = read(file, overrides or ())
    tried = trial(config)
    can_be_judged(config, tried.dataset)
    warnings = doubts(config, tried.dataset, survey(tried.dataset.samples))
    if json:
        print_json({"ok": True, "checked": tried.checked, "warnings": warnings})
    else:
        show.checked(tried.checked, warnings)


def ledger(file: File, overrides: Overrides = None, json: Json = False) -> None:
    """Show exactly what would leave a site: every leaf, its size, and who can read it."""
    from equipoise.cli.show import methods as show
    from equipoise.cli.trial import totals, trial
    from equipoise.config import read

    measured = trial(read(file, overrides or ())).ledger
    facts = {"leaves": measured.rows(), "questions": totals(measured)}
    print_json(facts) if json else show.ledger(facts)


def methods(
    name: Annotated[
        str | None, typer.Argument(metavar="[NAME]", help="One method, with its fields and presets.")
    ] = None,
    json: Json = False,
) -> None:
    """List the methods: paper, tasks, what leaves a site, defaults. With a name: its fields and presets."""
    from equipoise.cli.catalogue import describe, describe_all
    from equipoise.cli.show import methods as show

    if name is None:
        everything = describe_all()
        print_json(everything) if json else show.methods(everything)
    else:
        one = describe(name)
        print_json(one) if json else show.method(one)


def version(
    sbom: Annotated[
        bool, typer.Option("--sbom", help="Every installed package it runs on, as CycloneDX JSON.")
    ] = False,
    json: Json = False,
) -> None:
    """Show the versions of Equipoise, Python and PyTorch."""
    if sbom:
        from equipoise.cli.sbom import bill

        print_json(bill())
        return
    from importlib.metadata import version as version_of
    from platform import python_version

    from equipoise.version import __version__

    facts = {"equipoise": __version__, "python": python_version(), "torch": version_of("torch")}
    if json:
        print_json(facts)
    else:
        print(" · ".join(f"{name} {number}" for name, number in facts.items()))
