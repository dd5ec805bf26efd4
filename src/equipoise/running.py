"""A run from config to result: the hall where the rooms meet."""

from __future__ import annotations

import gc
import hashlib
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass, replace
from functools import cache, partial
from html import escape
from pathlib import Path
from typing import Any

import tomli_w
import torch

from equipoise.blueprint import Blueprint, Built, frozen_tensors
from equipoise.config import Config, added_since, departures, digest_in, read, read_folder, resolve
from equipoise.engine import Engine, Host, Pool, Serial, frames, probe
from equipoise.engine.members import Members
from equipoise.engine.ray import Ray
from equipoise.engine.serve import pipes, serve
from equipoise.errors import ConfigError, StorageError
from equipoise.evaluate import ENDING, Evaluation, converged
from equipoise.exchange import Bounds, ExchangeOptions, Ledger, seal
from equipoise.keeping import FIRST, write_atomic
from equipoise.listing import Listing
from equipoise.locate import Parts
from equipoise.memory import free_memory, keep_memory
from equipoise.nets import ONNX, encoder_sha256
from equipoise.partition import Census, Facts
from equipoise.predict import Origin, assemble, class_maps
from equipoise.run_folder import (
    BLUEPRINT,
    CENSUS,
    CHECKPOINTS,
    CODE,
    CONFIG,
    FEATURES,
    FROZEN,
    JOURNAL,
    LEDGER,
    PRIVATE,
    RESULT,
    RunFolder,
)
from equipoise.seeds import generator
from equipoise.server import Checkpoints, Federation, Journal, Spending, check_same, drawn, sample
from equipoise.server.spending import UNIT
from equipoise.setup import Material, draw, material, order, place_of
from equipoise.site import Store
from equipoise.task import answer
from equipoise.text import percent
from equipoise.trackers import Tracker, Tracking, describe, make
from equipoise.tree import Tree, digest
from equipoise.trust import note, recorded

Watch = Callable[[str, dict[str, Any]], None]
"""told of events: ("data", …), ("note", …), ("round", …), ("answer", …), ("rejected", …)"""


HEADLINES = {
    "balanced_accuracy": "balanced accuracy",
    "macro_auc": "macro AUC",
    "tail": "recall, tail classes",
}
"""the figures that a result shows of itself, by their names in the metrics"""


@dataclass(frozen=True)
class Result:
    """What a run came to."""

    folder: Path
    server: Tree
    state_hash: str
    rounds: list[int]
    """the rounds that are reported; a method's ending counts as one after the last"""
    ending_of: list[int]
    """the rounds whose endings those are; none where the method has no ending"""
    metrics: dict[str, Any]
    history: list[dict[str, Any]]
    classes: tuple[str, ...]
    converged: bool | None = None
    """whether validation had settled, see `evaluate.converged`; None where that is not known"""
    stopped_early: dict[str, Any] | None = None
    """`round` after which training ended early and the `reason`; None where it did not"""
    privacy: dict[str, Any] | None = None
    """with differential privacy: ε of every site, δ, whom it protects and what it does not cover"""

    def __repr__(self) -> str:
        return "\n".join([f"Result({str(self.folder)!r})", *self._lines()])

    def _repr_html_(self) -> str:
        lines = "".join(f"<p>{escape(line)}</p>" for line in (str(self.folder), *self._lines()[:-1]))
        return lines + self._listing()._repr_html_()

    def _lines(self) -> list[str]:
        """The rounds and the headline figures in two lines."""
        trained = sum(ENDING not in row for row in self.history)
        reported = ", ".join(map(str, self.ending_of or self.rounds)) or "none"
        ending = ", with the method's ending" if self.ending_of else ""
        early = f"; stopped early: {self.stopped_early['reason']}" if self.stopped_early else ""
        state = {True: "; converged", False: "; not converged", None: ""}[self.converged]
        rows = self._listing().rows()
        figures = (f"{row['test set']} {row['generalisation']} / {row['specialisation']}" for row in rows)
        return [
            f"{trained} rounds, reported: {reported}{ending}{state}{early}",
            "global / own: " + (", ".join(figures) or "no round was evaluated"),
        ]

    def _listing(self) -> Listing:
        """The headline figures of both views and their mean."""
        test = self.metrics.get("test")
        views = ("generalisation", "specialisation", "average")
        cells = [
            (name, *(percent(test[view].get(key)) for view in views))
            for key, name in HEADLINES.items()
            if test is not None
        ]
        return Listing(("test set", *views), tuple(cells))

    def summary(self) -> dict[str, Any]:
        """What `run --json` prints."""
        return {
            "state_hash": self.state_hash,
            "selected_rounds": self.rounds,
            "ending_of": self.ending_of,
            "metrics": self.metrics,
            "classes": list(self.classes),
            "converged": self.converged,
            "stopped_early": self.stopped_early,
            **({} if self.privacy is None else {"privacy": self.privacy}),
            "folder": str(self.folder),
        }


def run(
    config: Config | Mapping[str, Any] | str | Path,
    out: str | Path | None = None,
    *,
    watch: Watch | None = None,
    wrap: Callable[[Engine], Engine] | None = None,
    change: Callable[[Material], Material] | None = None,
) -> Result:
    """Train as the config says, into the folder `out` (a temporary one if none), from where it was left if it
    was begun.

    `config` is a path to a TOML file, a table, or a resolved config. `wrap` puts something around the engine
    (tests use it to lose or spoil answers), `change` is made to the data first.
    """
    if isinstance(config, str | Path):
        config = read(Path(config))
    elif not isinstance(config, Config):
        config = resolve(config)
    folder = RunFolder(out if out is not None else tempfile.mkdtemp(prefix="equipoise-"))
    folder.refuse_federation()
    claim(folder, config)
    watch = watch or (lambda event, facts: None)
    steps: dict[str, None] = {}

    def read_data(text: str, done: int, total: int) -> None:
        steps[text] = None
        watch("data", {"text": text, "done": done, "total": total})

    with one_thread():
        dataset = material(config, read_data)
        dataset = change(dataset) if change else dataset
        plan = prepare(config, dataset.facts, dataset)
        with (
            closing(Journal(folder / JOURNAL)) as journal,
            closing(make_engine(plan, dataset, folder)) as engine,
        ):
            if steps:
                journal.write("read data", steps=list(steps))
            return train(plan, wrap(engine) if wrap else engine, journal, folder, watch, dataset)


def resume(folder: str | Path, *, watch: Watch | None = None, trust: bool = False) -> Result:
    """Continue the run in a folder; `trust` lets it run a method's file or module that you have not run
    before."""
    RunFolder(folder).refuse_federation()
    return run(read_folder(Path(folder), trust), folder, watch=watch)


@dataclass(frozen=True)
class Plan:
    """A run that can begin: all that is known before the first question."""

    config: Config
    blueprint: Blueprint
    facts: Facts
    built: Built
    ledger: Ledger
    spending: Spending | None = None
    """what it costs in privacy, where training is private"""

    def first(self) -> Tree:
        """The server tree before the first round, from networks that nobody has trained yet."""
        return self.blueprint.first(self.built.net)


def prepare(config: Config, facts: Facts, dataset: Material | None = None) -> Plan:
    """Build the networks and try every question on two generated sites; `dataset` is the data, where it is at
    hand."""
    watchable(config, facts)
    blueprint, built = draw(config, facts, dataset)
    everyone = len(facts.census.sites)
    participants = drawn(config.train.participation, everyone)
    comparable(config, participants)
    evaluate = config.evaluate
    scored, per_site = evaluate.scored, evaluate.per_site
    ledger = probe(blueprint, built, everyone, participants, scored, place_of(config), per_site)
    ledger = replace(ledger, compared=config.exchange.compare is not None)
    return Plan(config, blueprint, facts, built, ledger, spending_of(config, facts, ledger))


def spending_of(config: Config, facts: Facts, ledger: Ledger) -> Spending | None:
    """What a run costs in privacy, where training is private; a δ too large for some site is refused."""
    if config.privacy is None:
        return None
    spending = Spending(
        privacy=config.privacy,
        ledger=ledger,
        images={site: held["train"].images for site, held in facts.census.sites.items()},
        batch_size=config.train.batch_size,
        rounds=config.train.rounds,
        endings=config.evaluate.endings,
        participation=config.train.participation,
        seed=config.train.seed,
    )
    spending.check()
    return spending


def privacy_of(plan: Plan, history: Sequence[Mapping[str, Any]]) -> dict[str, Any] | None:
    """What a run's result says of its differential privacy."""
    if plan.spending is None or not history:
        return None
    facts = {"epsilon": history[-1]["epsilon"], "delta": plan.spending.privacy.delta}
    return facts | {"unit": UNIT, "not_covered": plan.spending.not_covered}


def comparable(config: Config, participants: int) -> None:
    """Refuse to compare sites where they are too few to outvote the bad ones, and to mask where there is one
    place only."""
    compare = config.exchange.compare
    if config.method.standard == "pooled":
        text = f"method '{config.method_name}' trains in one place, so there is "
        if config.exchange.secure:
            raise ConfigError(text + "no sum to mask: leave exchange.secure out")
        if compare is not None:
            raise ConfigError(text + "nobody to compare: leave exchange.reduce out")
    if compare is not None and participants < compare.needed(participants):
        raise ConfigError(
            f'exchange.reduce = "{compare.rule}" with hostile = {compare.hostile:g} needs '
            f"{compare.needed(participants)} of {participants} sites in a round: lower exchange.hostile, or "
            f"let more sites take part"
        )


def watchable(config: Config, facts: Facts) -> None:
    """Refuse to end early by validation images that nobody has."""
    if config.train.stop and not facts.census.having("validation"):
        raise ConfigError(
            "train.stop watches the validation images, and no site has any: set data.split.validation above "
            "0, or leave train.stop out"
        )


def train(
    plan: Plan,
    engine: Engine,
    journal: Journal,
    folder: RunFolder,
    watch: Watch,
    dataset: Material | None = None,
    joining: Sequence[Mapping[str, Any]] = (),
) -> Result:
    """The run in a folder, from its newest checkpoint on if there is one.

    `dataset` is the data, where it is at hand; `joining` are the rows of the ledger before any question.
    """
    config, blueprint, census = plan.config, plan.blueprint, plan.facts.census
    checkpoints = Checkpoints(folder / CHECKPOINTS)
    newest = checkpoints.newest()
    begun = newest[1] if newest else None
    if begun:
        check_same(begun, folder, blueprint.config, blueprint.data, journal)
    for text in departures(config):
        watch("note", {"text": text})
    if plan.spending is not None:
        watch("note", {"text": plan.spending.sentence()})

    def at(site: str) -> dict[str, str]:
        node = getattr(engine, "nodes", {}).get(site)
        return {} if node is None else {"node": node}

    def tell(row: dict[str, Any]) -> None:
        tracking.row(row)
        watch("round", row)

    evaluation = Evaluation(
        blueprint,
        config.evaluate,
        folder,
        census.sites,
        dataset.samples if dataset else None,
        dataset.holdings if dataset else (),
        tell,
    )
    committed = -1 if begun is None else sys.maxsize if begun.finished else begun.round
    evaluation.resume(committed, begun.metrics if begun else FIRST)
    folder.write(BLUEPRINT, blueprint.model_dump(mode="json"))
    if blueprint.frozen:
        frozen = frozen_tensors(plan.built.net)
        write_atomic(folder / FROZEN, seal({}, frozen))
        if blueprint.net.name == ONNX:
            note(encoder_sha256(frozen), ONNX)
    folder.write(CENSUS, census.model_dump(mode="json"))
    folder.write(LEDGER, {"leaves": [*joining, *plan.ledger.rows()]})
    watch("begin", {"sites": census.sizes, "classes": blueprint.classes, "rounds": config.train.rounds})
    tracking = make_tracking(plan, folder, evaluation.history)
    event = "resumed" if begun else "started"
    journal.write(event, config=blueprint.config, data=blueprint.data, code=code_hash())
    federation = Federation(
        method=blueprint.method,
        engine=engine,
        ledger=plan.ledger,
        limits=config.exchange,
        journal=journal,
        checkpoints=checkpoints,
        sites=tuple(census.sites),
        rounds=config.train.rounds,
        seed=config.train.seed,
        participation=config.train.participation,
        config_hash=blueprint.config,
        observer=evaluation,
        tested=tested(config, census),
        bounds=Bounds(
            blueprint.method.limits(len(blueprint.classes), config.train.epochs),
            census.images(pooled=blueprint.method.standard == "pooled"),
        ),
        objection=evaluation.objection,
        on_rejected=lambda reason: watch("rejected", {"reason": reason}),
        progress=lambda question, site: watch("answer", {"question": question, "site": site} | at(site)),
        data=blueprint.data,
        stopped=evaluation.stopped,
        spending=plan.spending.facts if plan.spending else lambda rounds, endings: {},
    )
    try:
        with settled():
            server = federation.run(plan.first)
    except BaseException:
        tracking.end(None)
        raise
    rounds, metrics = evaluation.selected() if config.train.rounds or evaluation.history else ([], {})
    ending_of = [row[ENDING] for row in evaluation.history if row["round"] in rounds and ENDING in row]
    state = digest(server)
    result = Result(
        folder.path,
        server,
        state,
        rounds,
        ending_of,
        metrics,
        evaluation.history,
        blueprint.classes,
        converged(evaluation.history),
        early_end(evaluation, config.train.rounds),
        privacy_of(plan, evaluation.history),
    )
    if result.stopped_early:
        watch("note", {"text": "stopped early after round {round}: {reason}".format(**result.stopped_early)})
    if dataset is not None and not folder.has(FEATURES):
        measure_features(folder, plan, dataset, checkpoints, rounds)
    marks = {"metrics_hash": evaluation.mark(), "journal_hash": journal.head}
    folder.write(RESULT, result.summary() | marks)
    tracking.end(result.summary())
    return result


def tested(config: Config, census: Census) -> tuple[str, ...]:
    """The sites at which rounds are evaluated, the same in every round; none: at all of them.

    Only sites that have images to be judged by are drawn.
    """
    count = config.evaluate.sites
    judged = census.having("validation", "test")
    if count is None or count >= len(judged):
        return ()
    return sample(judged, count, generator(config.train.seed, "tested sites"))


def early_end(evaluation: Evaluation, rounds: int) -> dict[str, Any] | None:
    """After which round training ended and why, where that was before the last of its rounds."""
    end = evaluation.stopped()
    return None if end is None or end[0] == rounds else {"round": end[0], "reason": end[1]}


def measure_features(
    folder: RunFolder, plan: Plan, dataset: Material, checkpoints: Checkpoints, rounds: Sequence[int]
) -> None:
    """Write down where the classes lie in the features of the reported round's global predictor, if there is
    one."""
    checkpoint = checkpoints.load(rounds[-1]) if rounds else checkpoints.newest()
    if checkpoint is None:
        return
    server, header = checkpoint
    origin = Origin(round=header.round, rule=plan.config.evaluate.select, state=header.state)
    net = plan.built.net
    model = assemble(plan.blueprint, server, origin, net=net, frozen=frozen_tensors(net))
    maps = class_maps(model, dataset.samples, dataset.holdings)
    if maps is not None:
        folder.write(FEATURES, {"round": header.round, **maps})


@cache
def code_hash() -> str:
    """sha256 over the files of this package: which code trained a model."""
    sha = hashlib.sha256()
    root = Path(__file__).parent
    for path in sorted(root.rglob("*.py")):
        sha.update(f"{path.relative_to(root).as_posix()}\0".encode() + path.read_bytes() + b"\0")
    return sha.hexdigest()


def make_tracking(plan: Plan, folder: RunFolder, history: Sequence[Mapping[str, Any]]) -> Tracking:
    """The trackers of the config, told that the run begins; none for a run that has its result."""
    config, blueprint = plan.config, plan.blueprint
    tags = {"method": blueprint.method_name, "version": blueprint.version}
    tags |= {"code": code_hash(), "config": blueprint.config, "data": blueprint.data}
    run = describe(folder.path, config.table(), blueprint.classes, tags, history)
    return Tracking(_trackers(config, folder), run)


def _trackers(config: Config, folder: RunFolder) -> dict[str, Tracker]:
    return {} if folder.has(RESULT) else make(config.evaluate.trackers, Parts(config.base, config.allow))


def make_engine(plan: Plan, dataset: Material, folder: RunFolder) -> Engine:
    """The engine the config asks for."""
    config = plan.config
    place, private = place_of(config), folder / PRIVATE
    noise, members = plan.spending.noise if plan.spending else {}, None
    if config.exchange.secure:
        if config.engine.kind == "ray":
            raise ConfigError(
                "exchange.secure masks in one process, in a pool and across hospitals, not on Ray: set "
                'engine.kind = "serial" or "pool"'
            )
        members = Members(tuple(plan.facts.census.sites), config.train.seed, config.exchange)

    def host() -> Host:
        sites = dataset.sites(place.device, config.method.standard == "pooled")
        made = Host(plan.blueprint, sites, Store(private.absolute()), place, plan.built)
        made.noise, made.clip = noise, config.exchange.clip
        return made

    if config.engine.kind == "serial":
        keep_memory()
        return Serial(host(), members)
    if config.engine.kind == "ray" and config.engine.device == "auto" and not config.engine.gpus:
        config = config.with_engine(device="cpu")  # no share of a GPU, on whichever node a site runs
    setup, sizes = order(config, plan.blueprint, private.absolute(), noise), plan.facts.census.sizes
    if config.engine.kind == "ray":
        return Ray(answer, setup, config.engine, sizes)
    work = partial(serve_copy, host(), config.exchange) if place.device.type == "cpu" else None
    free_memory()  # what trying the questions took
    command = frames.command("equipoise.worker")
    return Pool(command, setup, config.engine.workers, sizes, members, work)


def serve_copy(host: Host, limits: ExchangeOptions) -> None:
    """What a worker does that is a copy of this process."""
    keep_memory()
    serve(host, limits, *pipes())


def claim(folder: RunFolder, config: Config) -> None:
    """Make the run folder, or check that the one there is of this very run; refuse trackers that cannot be
    had."""
    _trackers(config, folder)
    folder.make()
    if not (folder / CONFIG).exists():
        if config.codes:
            folder.write(CODE, {"code": config.marks})
        folder.write_text(CONFIG, tomli_w.dumps(config.table()))
        return
    if digest_in(folder) != config.digest:
        if added := added_since(folder, config):
            raise StorageError(
                f"{folder} was begun by a version of Equipoise that did not know '{added}', which may change "
                f"its result: finish it with that version, or choose another --out"
            )
        raise StorageError(
            f"{folder} holds a run with another config: choose another --out, or go on with {folder.again}"
        )
    changed = [name for name, mark in recorded(folder).items() if config.marks.get(name) != mark]
    if changed:
        raise StorageError(
            f"the code of '{changed[0]}' has changed since the run in {folder} began: restore it, choose "
            f"another --out, or delete {folder / CODE} to resume with the changed code"
        )


@contextmanager
def settled() -> Iterator[None]:
    """Spare the garbage collector what is there already: a run keeps it to its end, and with 100,000 sites it
    is millions of objects to look through again and again. To collect first would take longer than most short
    runs."""
    gc.freeze()
    try:
        yield
    finally:
        gc.unfreeze()


@contextmanager
def one_thread() -> Iterator[None]:
    """Arithmetic in one thread, so that sums have one order on any number of cores."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)
