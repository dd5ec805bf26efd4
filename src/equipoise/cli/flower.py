"""The verbs of real hospitals: a coordinator's day, a site's day, and the rehearsal of both on one
machine."""

from __future__ import annotations

import json as jsons
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any

import typer

from equipoise.errors import ConfigError

keys_app = typer.Typer(help="Keys of a federation: make them, hand them out.", no_args_is_help=True)
site_app = typer.Typer(help="A hospital's day: set up a site, check it, take part.", no_args_is_help=True)
server_app = typer.Typer(help="A coordinator's day: the server the sites dial.", no_args_is_help=True)

File = Annotated[Path, typer.Argument(metavar="FILE.toml", help="The config of the run.")]
Overrides = Annotated[
    list[str] | None,
    typer.Argument(metavar="[section.key=value]…", help="Values that replace those of the file."),
]
Coordinator = Annotated[
    Path, typer.Argument(metavar="DIR", help="The coordinator's folder (see `equipoise keys new`).")
]
SiteFolder = Annotated[
    Path, typer.Argument(metavar="DIR", help="The site's folder (see `equipoise site init`).")
]
Json = Annotated[bool, typer.Option("--json", help="Print JSON and nothing else.")]


def mount(app: typer.Typer) -> None:
    """Hang the verbs into the command."""
    for name, group in {"keys": keys_app, "site": site_app, "server": server_app}.items():
        app.add_typer(group, name=name)
    for verb in (rehearse, submit, status, stop):
        app.command()(verb)


# The coordinator --------------------------------------------------------------------------------------------


@keys_app.command("new")
def keys_new(
    folder: Coordinator,
    host: Annotated[
        list[str] | None, typer.Option(help="A name or address sites reach the coordinator at.")
    ] = None,
    site: Annotated[list[str] | None, typer.Option(help="A site to make a key pair for.")] = None,
    json: Json = False,
) -> None:
    """Make the federation's certificate authority, the server's certificate and a key pair per site; keep
    what is there.

    Example: `equipoise keys new federation --host fl.example.org --site north --site south`
    """
    _need()
    from equipoise.deploy.keys import new_keys

    made = [str(path) for path in new_keys(folder, host or [], site or [])]
    if json:
        _print({"made": made})
    else:
        print("\n".join(made) or "everything was there already")


@keys_app.command("renew")
def keys_renew(
    folder: Coordinator,
    host: Annotated[
        list[str] | None,
        typer.Option(help="A name or address sites reach the coordinator at. [default: as before]"),
    ] = None,
    json: Json = False,
) -> None:
    """Sign the server's certificate anew, and the authority's if it would expire before; keys stay as they
    are.

    Example: `equipoise keys renew federation`
    """
    _need()
    from equipoise.deploy.keys import renew

    made = renew(folder, host or [])
    if json:
        _print({"made": [str(path) for path in made]})
        return
    print("\n".join(map(str, made)))
    print("start the server again for it to count")
    if made[0].name == "ca.crt":
        print(f"send {made[0]} to every site, to be put into its keys/ before the old one expires")


@server_app.command("start")
def server_start(
    folder: Coordinator,
    host: Annotated[str, typer.Option(help="Address to listen on; 0.0.0.0 for all.")] = "127.0.0.1",
    port: Annotated[int, typer.Option(min=1, max=65535)] = 8000,
    body_mb: Annotated[float, typer.Option(min=6, help="Megabytes one request may have.")] = 16.0,
    header_seconds: Annotated[
        float, typer.Option(min=0.1, help="Time for a TLS handshake, and again for a request's headers.")
    ] = 10.0,
    stall_seconds: Annotated[
        float, typer.Option(min=0.1, help="A body that comes slower than 1 kB/s for so long is given up.")
    ] = 20.0,
    connections: Annotated[int, typer.Option(min=8, help="Open connections from everywhere.")] = 512,
    per_address: Annotated[
        int, typer.Option(min=8, help="Open connections from one address: more where many sites share one.")
    ] = 64,
) -> None:
    """Start the server the sites dial, and keep it running until Ctrl-C. Always TLS; only listed sites are
    let in."""
    _need()
    import signal

    from equipoise.deploy import link, processes
    from equipoise.deploy.limits import Limits

    limits = Limits(
        body_mb=body_mb,
        header_seconds=header_seconds,
        stall_seconds=stall_seconds,
        connections=connections,
        per_address=per_address,
    )
    process = link.start(folder, host, port, limits)
    print(
        f"listening on {host}:{port}; `equipoise submit FILE.toml --to {folder}` hands in a run", flush=True
    )
    before = signal.signal(signal.SIGTERM, _interrupt)
    try:
        code = process.wait()
        raise ConfigError(f"the server ended by itself (exit {code}): {folder / 'server.log'} says why")
    except KeyboardInterrupt:
        print("stopped; runs that were going on are gone on with when they are submitted again")
    finally:
        signal.signal(signal.SIGTERM, before)
        processes.stop(process)


def submit(
    file: File,
    overrides: Overrides = None,
    to: Annotated[Path, typer.Option(help="The coordinator's folder.")] = Path("federation"),
    out: Annotated[
        Path | None, typer.Option(help="The run folder; one that was begun is gone on with.")
    ] = None,
    json: Json = False,
) -> None:
    """Hand a run to the server and wait for its end. Handed in again with the same --out, it goes on where it
    stopped.

    Example: `equipoise submit fca.toml --to federation --out runs/fca`
    """
    _need()
    from equipoise.config import read
    from equipoise.deploy import link
    from equipoise.report import write_report

    config = read(file, overrides or ())
    folder = out or Path("runs") / f"{file.stem}-federated-{config.train.seed}"
    number = link.submit(to, config, folder)
    found = link.wait(to, folder, number, _follow(folder, config.train.rounds, json))
    page = write_report(folder)
    if json:
        _print(found | {"report": str(page)})
    else:
        print(f"state   {found['state_hash']}\nreport  {page}")


def status(folder: Coordinator, json: Json = False) -> None:
    """Show which sites are online and which runs there are."""
    _need()
    from equipoise.deploy import link

    facts = link.standing(folder)
    if json:
        _print(facts)
        return
    for name, site in facts["sites"].items():
        print(f"site  {name:<20} {site['status']:<12} {site['since']}")
    for run in facts["runs"]:
        print(f"run   {run['run']:<20} {run['outcome'] or run['status']:<12} {run['since']}")


def stop(
    folder: Coordinator,
    run: Annotated[int | None, typer.Argument(help="The run's number. [default: all that go on]")] = None,
    json: Json = False,
) -> None:
    """Stop runs between two questions; handed in again, they go on from their last finished round."""
    _need()
    from equipoise.deploy import link

    stopped = link.stop(folder, run)
    if json:
        _print({"stopped": stopped})
    else:
        print("\n".join(f"stopped {number}" for number in stopped) or "no run was going on")


# A site -----------------------------------------------------------------------------------------------------


@site_app.command("init")
def site_init(
    folder: SiteFolder,
    name: Annotated[str, typer.Option(help="This site's name, as agreed with the coordinator.")],
    superlink: Annotated[str, typer.Option(help="host:port of the coordinator.")],
    method: Annotated[list[str] | None, typer.Option(help="A method to approve. [default: none]")] = None,
    json: Json = False,
) -> None:
    """Make a site's folder: site.toml to fill in, a policy that allows little, and a key pair of its own.

    Example: `equipoise site init hospital --name north --superlink fl.example.org:8000 --method fca`
    """
    _need()
    from equipoise.deploy.setting import new_site

    made = new_site(folder, name, superlink, method or [])
    if json:
        _print({"made": [str(path) for path in made]})
    else:
        print("\n".join(map(str, made)))
        print(
            f"next: describe your data in {folder / 'site.toml'}, send {folder / 'keys' / 'site.pub'} to "
            f"the coordinator,"
        )
        print(f"put their ca.crt into {folder / 'keys'}, then `equipoise site check {folder}`")


@site_app.command("check")
def site_check(
    folder: SiteFolder,
    file: Annotated[
        Path | None, typer.Argument(metavar="[FILE.toml]", help="A run: what would leave, and is it allowed?")
    ] = None,
    json: Json = False,
) -> None:
    """Try all that can go wrong before taking part: data, keys, policy; with a run's config, what would leave
    this site."""
    _need()
    from equipoise.cli import show
    from equipoise.cli.trial import totals
    from equipoise.deploy.setting import check_site

    found = check_site(folder, file)
    leaving: dict[str, Any] = {}
    if found.ledger is not None:
        leaving = {"leaves": found.joining + found.ledger.rows(), "questions": totals(found.ledger)}
    if json:
        _print({"checked": found.facts, **leaving, "refused": found.refused})
        return
    for what, text in found.facts.items():
        print(f"✓ {what:<8} {text}")
    if leaving:
        show.ledger(leaving)
    for sentence in found.refused:
        print(f"✗ {sentence}")


@site_app.command("join")
def site_join(
    folder: SiteFolder,
    patience: Annotated[
        float, typer.Option(min=0, help="Seconds to go on trying where the coordinator does not let us in.")
    ] = 150.0,
) -> None:
    """Take part: dial the coordinator and answer what the policy allows, until Ctrl-C."""
    _need()
    from equipoise.deploy.join import join
    from equipoise.deploy.site import read_site

    print(
        f"dialling {read_site(folder).superlink}; {folder / 'journal.jsonl'} says what is asked; Ctrl-C ends",
        flush=True,
    )
    join(folder, patience)


# Both -------------------------------------------------------------------------------------------------------


def rehearse(
    file: File,
    overrides: Overrides = None,
    out: Annotated[
        Path | None, typer.Option(help="The run folder. [default: runs/<file>-rehearsal-<seed>]")
    ] = None,
    json: Json = False,
) -> None:
    """Run a config as a federation of real processes on this machine (keys, TLS, Flower), and compare with
    the simulation."""
    _need()
    from equipoise.config import read
    from equipoise.deploy.rehearse import rehearse as perform
    from equipoise.report import write_report

    config = read(file, overrides or ())
    folder = out or Path("runs") / f"{file.stem}-rehearsal-{config.train.seed}"
    found = perform(config, folder, _follow(folder, config.train.rounds, json))
    page = write_report(folder)
    if json:
        _print(found | {"report": str(page)})
    else:
        print(f"state       {found['state_hash']}\nsimulation  {found['simulation_hash']}")
        print(
            f"{found['sites']} sites in {found['seconds']} s: "
            f"{'the same bits' if found['same'] else 'NOT THE SAME'}"
        )
        print(f"report      {page}")
    if not found["same"]:
        raise typer.Exit(1)


def _need() -> None:
    from equipoise.engine.flower import need_flower

    need_flower()


def _print(facts: Any) -> None:
    print(jsons.dumps(facts, indent=1, default=str))


def _interrupt(number: int, frame: object) -> None:
    raise KeyboardInterrupt


def _follow(folder: Path, rounds: int, quiet: bool) -> Callable[[], None]:
    """A line for every round as it is finished, and for every site or answer that is left out."""
    from equipoise.cli.progress import line

    seen = {"metrics.jsonl": 0, "journal.jsonl": 0}

    def fresh(name: str) -> list[dict[str, Any]]:
        path = folder / name
        if not path.exists():
            return []
        rows = [text for text in path.read_text().splitlines(keepends=True) if text.endswith("\n")]
        before, seen[name] = seen[name], len(rows)
        return [jsons.loads(text) for text in rows[before:]]

    def look() -> None:
        if quiet:
            return
        left_out = [entry for entry in fresh("journal.jsonl") if entry["event"] in ("left out", "rejected")]
        told = [
            f"round {entry['round'] + 1}: {entry['reason']}" if "round" in entry else entry["reason"]
            for entry in left_out
        ]
        for text in (*told, *(line(row, rounds) for row in fresh("metrics.jsonl"))):
            print(f"{time.strftime('%H:%M:%S')}  {text}", file=sys.stderr, flush=True)

    return look
