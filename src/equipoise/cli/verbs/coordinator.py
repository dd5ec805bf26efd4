"""Verbs of a coordinator: keys, the server the sites dial, runs handed to it."""

from __future__ import annotations

import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from equipoise.cli.arguments import Coordinator, File, HealthPort, Json, Overrides, topic
from equipoise.cli.failure import need, say
from equipoise.cli.output import note, print_json
from equipoise.errors import ConfigError, EquipoiseError

if TYPE_CHECKING:
    from equipoise.deploy.control import AllowList

LOOK = 1.0
"""seconds between two looks at the allow-list, and at whether the server still runs"""
keys_app = topic("Keys of a federation: make them, hand them out.")
server_app = topic("A coordinator's day: the server the sites dial.")


def mount(app: typer.Typer) -> None:
    """Add the verbs to the command."""
    app.add_typer(keys_app, name="keys")
    app.add_typer(server_app, name="server")
    for verb in (submit, status, stop):
        app.command()(verb)


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
    need()
    from equipoise.deploy.keys import new_keys
    from equipoise.deploy.roster import write_roster

    made = [str(path) for path in (*new_keys(folder, host or [], site or []), *write_roster(folder))]
    if json:
        print_json({"made": made})
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
    need()
    from equipoise.deploy.keys import renew

    made = renew(folder, host or [])
    if json:
        print_json({"made": [str(path) for path in made]})
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
    health_port: HealthPort = None,
) -> None:
    """Start the server the sites dial, and keep it running until Ctrl-C. Always TLS; only listed sites are
    let in. A `.pub` file that is put into keys/sites, or deleted there, counts at once."""
    need()
    import signal

    from equipoise.deploy import link, processes
    from equipoise.deploy.control import AllowList
    from equipoise.deploy.health import of_coordinator, serving
    from equipoise.deploy.limits import Limits

    limits = Limits(
        body_mb=body_mb,
        header_seconds=header_seconds,
        stall_seconds=stall_seconds,
        connections=connections,
        per_address=per_address,
    )
    listed = AllowList(folder)
    process = link.start(folder, host, port, limits)
    submit = f"equipoise submit FILE.toml --to {folder}"
    print(f"listening on {host}:{port}; `{submit}` hands in a run", flush=True)
    before = signal.signal(signal.SIGTERM, _interrupt)
    try:
        with serving(health_port, lambda: of_coordinator(folder)):
            while (code := process.poll()) is None:
                time.sleep(LOOK)
                _look(listed)
        raise ConfigError(f"the server ended by itself (exit {code}): {folder / 'server.log'} says why")
    except KeyboardInterrupt:
        print("stopped; runs that were not finished continue when they are submitted again")
    finally:
        signal.signal(signal.SIGTERM, before)
        processes.stop(process)


def _look(listed: AllowList) -> None:
    """Make a change of the allow-list count, and say so."""
    try:
        for sentence in listed.look():
            print(f"{time.strftime('%H:%M:%S')}  {sentence}", flush=True)
    except EquipoiseError as error:
        say(str(error))


def submit(
    file: File,
    overrides: Overrides = None,
    to: Annotated[Path, typer.Option(help="The coordinator's folder.")] = Path("federation"),
    out: Annotated[
        Path | None, typer.Option(help="The run folder; a run that was begun there continues.")
    ] = None,
    json: Json = False,
) -> None:
    """Hand a run to the server and wait for its end. Handed in again with the same --out, it continues
    where it stopped.

    Example: `equipoise submit fca.toml --to federation --out runs/fca`
    """
    need()
    from equipoise.cli.follow import follow
    from equipoise.config import read
    from equipoise.deploy import link
    from equipoise.deploy.coordinator import unused
    from equipoise.deploy.standing import standing
    from equipoise.report import gaps, read_run, write_report

    config = read(file, overrides or ())
    folder = out or Path("runs") / f"{file.stem}-federated-{config.train.seed}"
    look = follow(folder, config.train.rounds, json)
    for text in [] if json else unused(config):
        print(f"note: {text}")
    number = link.submit(to, config, folder)
    there = standing(to)["sites"]
    online = ", ".join(site for site, one in there.items() if one["status"] == "online") or "nobody"
    absent = ", ".join(site for site, one in there.items() if one["status"] != "online") or "nobody"
    note(f"handed in as run {number}, folder {folder}; online: {online}; not online: {absent}", json)
    result = link.wait(to, folder, number, look)
    page = write_report(folder)
    if json:
        print_json(result | {"report": str(page)})
    else:
        for text in gaps(read_run(folder)):
            print(text)
        print(f"state   {result['state_hash']}\nreport  {page}")


def status(folder: Coordinator, json: Json = False) -> None:
    """Show which sites are online, and of every run its name, folder and round, who is in and why it
    ended."""
    need()
    from equipoise.deploy.standing import standing

    facts = standing(folder)
    if json:
        print_json(facts)
        return
    for name, site in facts["sites"].items():
        print(f"site  {name:<20} {site['status']:<12} {site['since']}")
    for run in facts["runs"]:
        print(f"run   {run['name'] or '?':<20} {run['outcome'] or run['status']:<12} {run['since']}")
        if run["rounds"]:
            sites = ", ".join(run["sites"]) or "nobody yet"
            print(f"      round {run['round']} of {run['rounds']}; in it: {sites}")
        print(f"      number {run['run']}{', folder ' + run['folder'] if run['folder'] else ''}")
        if run["why"]:
            print(f"      ended: {run['why']}")


def stop(
    folder: Coordinator,
    run: Annotated[int | None, typer.Argument(help="The run's number. [default: all that go on]")] = None,
    json: Json = False,
) -> None:
    """Stop runs between two questions; handed in again, they continue from their last finished round. A run's
    journal says so, and the `equipoise submit` that waits for it ends with code 10."""
    need()
    from equipoise.deploy import link

    stopped = link.stop(folder, run)
    if json:
        print_json({"stopped": stopped})
    else:
        print("\n".join(f"stopped {number}" for number in stopped) or "no run was going on")


def _interrupt(number: int, frame: object) -> None:
    raise KeyboardInterrupt
