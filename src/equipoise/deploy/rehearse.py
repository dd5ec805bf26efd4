"""A federation on one machine, with nothing left out: keys, TLS, Flower's processes, one process per site,
and the policy that a new site has. Then it is all gone."""

from __future__ import annotations

import os
import shutil
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from subprocess import Popen
from typing import Any

import tomli_w

from equipoise.config import Config
from equipoise.deploy import link, processes
from equipoise.deploy.card import COUNTS
from equipoise.deploy.coordinator import federated, plan
from equipoise.deploy.keys import listed, new_keys, read_public
from equipoise.deploy.limits import Limits
from equipoise.deploy.policy import MIN_SITES, Policy, Refused, marks_of
from equipoise.deploy.roster import write_roster
from equipoise.deploy.site import Joined, Watched
from equipoise.engine import Serial
from equipoise.exchange import Engine, Question
from equipoise.partition import without_small_cells
from equipoise.running import prepare, run
from equipoise.server import drawn
from equipoise.setup import Material, material
from equipoise.site.measure import LEAST

CLI = (sys.executable, "-m", "equipoise.cli")


@dataclass
class Stage:
    """A coordinator and its sites on loopback; `sites` are running processes by name."""

    folder: Path
    port: int
    server: Popen[bytes] | None = None
    sites: dict[str, Popen[bytes]] = field(default_factory=dict)

    @property
    def coordinator(self) -> Path:
        return self.folder / "coordinator"

    def site(self, name: str) -> Path:
        return self.folder / "sites" / name

    def open(self) -> None:
        """Start the coordinator's SuperLink."""
        limits = Limits()
        all_here = limits.model_copy(update={"per_address": limits.connections})
        self.server = link.start(self.coordinator, "127.0.0.1", self.port, all_here)

    def join(self, name: str, *options: str) -> None:
        """Start a site."""
        folder = self.site(name)
        command = [*CLI, "site", "join", str(folder), *options]
        self.sites[name] = processes.start(command, folder / "flower", folder / "join.log")

    def join_all(self) -> None:
        """Start every site."""
        for name in sorted(path.name for path in (self.folder / "sites").iterdir()):
            self.join(name)

    def perform(
        self, config: Config, out: Path, look: Callable[[], None] = lambda: None, pause: float = 0.5
    ) -> dict[str, Any]:
        """Hand in a run and wait for its end; what it came to."""
        keys = {site: read_public(path) for site, path in listed(self.coordinator).items()}
        plan(config, out, keys, {"kind": config.data.kind, "name": config.data.name})
        return link.wait(self.coordinator, out, link.submit(self.coordinator, config, out), look, pause)

    def close(self) -> None:
        """End every process that was started here, and all that those have started."""
        processes.stop(*self.sites.values(), *([self.server] if self.server else []))

    def kill(self, process: Popen[bytes]) -> None:
        """What a power cut does to one machine: the process and all it has started are gone at once."""
        processes.stop(process, patience=0.0)


@contextmanager
def stage(config: Config, folder: Path, policy: dict[str, Any] | None = None) -> Iterator[Stage]:
    """Keys and folders for every site of a config's data; whatever is started on the stage ends with it."""
    names = sorted(holding.name for holding in material(config).holdings)
    made = Stage(folder, processes.free_port())
    new_keys(made.coordinator, ["127.0.0.1"], names)
    write_roster(made.coordinator)
    table, rules = config.table(), rules_for(config) | (policy or {})
    nets = (config.net, *config.method.frozen().values())
    for name in names:
        home = made.site(name)
        home.mkdir(parents=True, mode=0o700)
        shutil.copytree(made.coordinator / "hand-out" / name, home / "keys")
        own = {
            "name": name,
            "superlink": f"127.0.0.1:{made.port}",
            "device": config.engine.device,
            "data": table["data"] | _absolute(table["data"], config.base),
            "partition": table["partition"],
            "weights": {
                net.weights: os.path.abspath(config.base / net.weights) for net in nets if net.weights
            },
        }
        (home / "site.toml").write_text(tomli_w.dumps(own))
        (home / "policy.toml").write_text(tomli_w.dumps(rules))
    try:
        yield made
    finally:
        made.close()


def rules_for(config: Config) -> dict[str, Any]:
    """What a site must write into its policy for a config; all else stays as it is at a new site."""
    marks = marks_of(config)
    return {
        "min_sites": federated(config).exchange.min_sites,
        "reduce": [config.exchange.reduce],
        "methods": {name: mark for name, mark in marks.items() if name == config.method_name},
        "parts": {name: mark for name, mark in marks.items() if name != config.method_name},
    }


def _absolute(data: dict[str, Any], base: Path) -> dict[str, str]:
    """Paths of the data as they are found from another folder."""
    paths = {key: data[key] for key in ("path", "images", "train", "test") if isinstance(data.get(key), str)}
    return {key: os.path.abspath(base / text) for key, text in paths.items() if (base / text).exists()}


def allowed(config: Config) -> list[str]:
    """The leaves of a run that the coordinator reads site by site: what each site's policy must name."""
    dataset = material(config)
    ledger = prepare(config, dataset.facts, dataset).ledger
    return sorted(
        {COUNTS, *(f"{row['question']}.{row['leaf']}" for row in ledger.rows() if row["kind"] == "each")}
    )


class Releasing:
    """Simulated sites that tell what a policy lets them tell; it stands around their engine."""

    def __init__(self, engine: Serial, config: Config, dataset: Material, policy: Policy) -> None:
        self._engine, self._policy = engine, policy
        self._sites: dict[str, Joined] = {}
        host = engine.host
        host.least, host.begin = max(LEAST, policy.small_cell), self._begin
        for held in dataset.holdings:
            site = host.sites[held.name]
            site.splits = splits = Watched(site.splits)
            own = Material(dataset.samples, (held,))
            self._sites[held.name] = Joined(Path(), config, own, host, splits, held, policy.small_cell)

    def _begin(self) -> None:
        for site in self._sites.values():
            site.splits.read.clear()

    def ask(self, question: Question, sites: Sequence[str]) -> Iterator[tuple[str, bytes]]:
        for site, answer in self._engine.ask(question, sites):
            try:
                yield site, self._sites[site].release(self._policy, question.name, answer)[0]
            except Refused:
                continue

    def close(self) -> None:
        self._engine.close()


def simulate(config: Config, folder: Path, policy: Policy) -> str:
    """The state that a simulation comes to whose sites all have this policy.

    It masks nothing: no sum changes by it.
    """
    config = replace(config, exchange=config.exchange.model_copy(update={"secure": False}))
    made = list[Material]()

    def without_small(dataset: Material) -> Material:
        samples, least = dataset.samples, policy.small_cell
        holdings = tuple(without_small_cells(samples, held, least) for held in dataset.holdings)
        made.append(Material(samples, holdings))
        return made[0]

    def released(engine: Engine) -> Engine:
        assert isinstance(engine, Serial)
        return Releasing(engine, config, made[0], policy)

    return run(config, folder, wrap=released, change=without_small).state_hash


def rehearse(config: Config, out: Path, look: Callable[[], None] = lambda: None) -> dict[str, Any]:
    """Run a config as a federation of real processes into `out`, and as a simulation; what both came to.

    With differential privacy each site draws noise that nobody can repeat, so there is nothing to compare.

    Where the config does not say `exchange.min_sites` and draws fewer than three sites for a round, those are
    enough here.
    """
    if "min_sites" not in config.exchange.model_fields_set:
        least = min(MIN_SITES, drawn(config.train.participation, len(material(config).holdings)))
        config = replace(config, exchange=config.exchange.model_copy(update={"min_sites": least}))
    config = federated(config)
    config = config.with_engine(patience=max(120.0, config.engine.patience), kind="serial")
    with tempfile.TemporaryDirectory(prefix="equipoise-rehearsal-") as place:
        begin = time.perf_counter()
        each = {"each": allowed(config)}
        with stage(config, Path(place), each) as made:
            made.open()
            made.join_all()
            result = made.perform(config, out, look)
        seconds = time.perf_counter() - begin
        expected = None
        if config.privacy is None:
            policy = Policy.model_validate(rules_for(config) | each)
            expected = simulate(config, Path(place) / "simulation", policy)
    return {
        **result,
        "simulation_hash": expected,
        "same": None if expected is None else result["state_hash"] == expected,
        "seconds": round(seconds, 1),
        "sites": len(made.sites),
        "each": [leaf for leaf in each["each"] if leaf not in Policy().each],
    }
