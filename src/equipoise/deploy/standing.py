"""How a federation stands: which sites are online, and for every run how far it is, who is in and why it
ended."""

from __future__ import annotations

import tomllib
from pathlib import Path
from typing import Any

from equipoise.deploy.control import nodes_and_runs
from equipoise.deploy.keys import listed, read_public
from equipoise.errors import EquipoiseError
from equipoise.keeping import read_json, write_json
from equipoise.run_folder import CONFIG, JOURNAL, METRICS, ROSTER, RunFolder, private_folder

RUNS = "runs"
FIX = "submit the run again"


def enter(folder: Path, number: int, out: Path) -> None:
    """Note at the coordinator where the folder of a run is."""
    private_folder(folder / RUNS)
    write_json(folder / RUNS / f"{number}.json", {"run": number, "folder": str(out.resolve())})


def place(folder: Path, number: int) -> Path | None:
    """The folder of a run; None where nobody noted it, as for a run of an earlier version."""
    try:
        return Path(read_json(folder / RUNS / f"{number}.json", FIX)["folder"])
    except (OSError, KeyError, TypeError, EquipoiseError):
        return None


def standing(folder: Path) -> dict[str, Any]:
    """Who is there and what runs."""
    names = {read_public(path): site for site, path in listed(folder).items()}
    nodes, runs = nodes_and_runs(folder)
    here = {names[node.public_key]: node for node in nodes if node.public_key in names}
    return {
        "sites": {
            site: {
                "status": here[site].status if site in here else "not let in",
                "since": _since(here.get(site)),
            }
            for site in names.values()
        },
        "runs": [
            _run(folder, number, run)
            for number, run in sorted(runs.items(), key=lambda item: item[1].pending_at)
        ],
    }


def _since(node: Any) -> str:
    if node is None:
        return ""
    result: str = node.last_activated_at if node.status == "online" else node.last_deactivated_at
    return result


def _run(folder: Path, number: int, run: Any) -> dict[str, Any]:
    """One run: what Flower says of it, and what its folder does."""
    out = place(folder, number)
    ended = run.status.status == "finished"
    facts = {
        "run": number,
        "name": out.name if out else "",
        "folder": str(out) if out else "",
        "status": run.status.status,
        "outcome": run.status.sub_status,
        "since": run.finished_at if ended else run.running_at or run.pending_at,
        "round": None,
        "rounds": None,
        "sites": [],
        "why": "",
    }
    if out is not None:
        try:
            facts |= story(RunFolder(out))
        except (EquipoiseError, OSError, LookupError, TypeError, ValueError) as error:
            facts["why"] = f"its folder cannot be read: {error}"
    if not ended or run.status.sub_status == "completed":
        facts["why"] = ""
    elif not facts["why"]:
        facts["why"] = run.status.details or run.status.sub_status
    return facts


def story(out: RunFolder) -> dict[str, Any]:
    """What the folder of a run says: the last finished round, the sites that are in, why it stopped last."""
    if not out.has(CONFIG):
        return {"why": "its folder is gone"}
    rounds = int(tomllib.loads(out.text(CONFIG))["train"]["rounds"])
    done = max((row["round"] for row in out.rows(METRICS)), default=0)
    why, joined = "", list[str]()
    for line in out.rows(JOURNAL):
        if line["event"] == "joined":
            joined.append(line["site"])
        elif line["event"] in ("started", "resumed"):
            why = ""
        elif line["event"] == "stopped":
            why, joined = line["reason"], []
    sites = sorted(out.read(ROSTER)["sites"] if out.has(ROSTER) else joined)
    return {"round": min(done, rounds), "rounds": rounds, "sites": sites, "why": why}
