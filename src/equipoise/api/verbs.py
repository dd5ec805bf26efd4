"""The verbs: each takes a config as a path, a table or a resolved `Config`, and shows progress where somebody
can see it."""

from __future__ import annotations

import inspect as introspection
import json
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from equipoise import running
from equipoise.api.comparison import Comparison
from equipoise.api.progress import showing
from equipoise.compare import Arm, arm_from, make_plan
from equipoise.compare import compare as run_all
from equipoise.config import Config, load, resolve
from equipoise.data import Progress
from equipoise.errors import ConfigError, RunsFailed
from equipoise.exchange import Ledger
from equipoise.listing import Listing, to_frame
from equipoise.methods import METHODS
from equipoise.names import unknown
from equipoise.reproduce import SCALES, find, prepare
from equipoise.reproduce import reproduce as run_table
from equipoise.running import Result, Watch, one_thread
from equipoise.setup import cache_folder, material

Given = Config | Mapping[str, Any] | str | Path
"""a config: the path of a TOML file, a table, or a resolved one"""
Stop = int | Mapping[str, Any]
"""when to end early: rounds of patience, or a table as `train.stop` has it"""


def run(
    config: Given,
    out: str | Path | None = None,
    *,
    early_stopping: Stop | None = None,
    watch: Watch | None = None,
    progress: bool | None = None,
) -> Result:
    """Train as a config says, into the folder `out` (a temporary one if none), from where it was left if it
    was begun.

    `early_stopping` is `train.stop`: 5, or `{"patience": 5, "least": 0.005}`. `watch(event, facts)` is told
    of "data", "begin", "answer", "round", "note" and "rejected". `progress` shows one line of text: by
    default on a terminal and in a notebook.
    """
    with showing(progress, watch) as tell:
        return running.run(_config(config, early_stopping), out, watch=tell)


def resume(
    folder: str | Path, *, watch: Watch | None = None, progress: bool | None = None, trust: bool = False
) -> Result:
    """Continue the run in a folder; `trust` lets it run a method's file or module that you have not run
    before."""
    with showing(progress, watch) as tell:
        return running.resume(folder, watch=tell, trust=trust)


def compare(
    config: Given,
    methods: Sequence[str] = (),
    *,
    seeds: Sequence[int] = range(5),
    folds: int | None = None,
    grid: Mapping[str, Sequence[Any]] | Sequence[str] = (),
    arms: Mapping[str, Mapping[str, Any]] | Sequence[str] = (),
    reference: str | None = None,
    out: str | Path | None = None,
    jobs: int | None = None,
    on: str | None = None,
    early_stopping: Stop | None = None,
    watch: Watch | None = None,
    progress: bool | None = None,
) -> Comparison:
    """Compare methods over seeds or folds, `jobs` runs at a time, into the folder `out` (a temporary one if
    none); finished runs are not repeated. With `on="ray"` the runs go to the nodes of a Ray cluster.

    `methods` are NAME, NAME:preset or FILE.py:Class, or "all". `grid` has the values of dotted keys, as in
    `{"train.lr": [0.001, 0.01]}`, and `arms` further rows, as in `{"small steps": {"train.lr": 1e-4}}`.
    """
    folder = _folder(out)
    with showing(progress, watch) as tell:
        plan = make_plan(
            _table(config, early_stopping),
            [methods] if isinstance(methods, str) else list(methods),
            seeds=tuple(seeds),
            folds=folds,
            grid=_texts(grid),
            arms=_arms(arms),
            reference=reference,
            progress=_reading(tell),
        )
        facts = run_all(plan, folder, jobs, tell, on)
    return _ended(folder, facts["failures"], len(plan.jobs))


def reproduce(
    name: str,
    data: str | Path | None = None,
    *,
    scale: str = "full",
    seeds: Sequence[int] | None = None,
    rows: Sequence[str] = (),
    changes: Sequence[str] = (),
    from_scratch: bool = False,
    out: str | Path | None = None,
    jobs: int | None = None,
    on: str | None = None,
    watch: Watch | None = None,
    progress: bool | None = None,
) -> Comparison:
    """Run a table of one of the papers and set our numbers beside the published ones; `changes` are texts
    `section.key=value`.

    The other options are those of `equipoise reproduce`. `.paper` of the result has both numbers.
    """
    paper = find(name)
    if scale not in SCALES:
        raise ConfigError("scale: " + unknown("scale", scale, SCALES))
    folder = _folder(out)
    with showing(progress, watch) as tell:
        task = prepare(
            paper,
            None if data is None else Path(data),
            scale=scale,
            seeds=None if seeds is None else tuple(seeds),
            rows=rows,
            overrides=changes,
            from_scratch=from_scratch,
            progress=_reading(tell),
        )
        facts = run_table(task, folder, jobs, tell, on)
    return _ended(folder, facts["failures"], len(task.plan.jobs))


def methods() -> Listing:
    """Every method: its name, what it is in a sentence, where it is from, and for how many labels per
    image."""
    words = {"single": "one", "multi": "several"}
    cells = tuple(
        (
            name,
            introspection.cleandoc(cls.__doc__ or "").split("\n\n")[0].rstrip("."),
            cls.paper,
            " or ".join(words[task] for task in cls.tasks),
        )
        for name, cls in METHODS.items()
    )
    return Listing(("method", "in a sentence", "from", "labels per image"), cells)


@dataclass(frozen=True, repr=False)
class Inspection:
    """Who holds how many images of which class."""

    facts: dict[str, Any]
    """what `equipoise data inspect --json` prints"""

    def rows(self) -> list[dict[str, Any]]:
        """One row per site, split and class: how many images."""
        facts = self.facts
        return [
            {"site": site, "split": split, "class": name, "images": count}
            for site, held in facts["sites"].items()
            for split in facts["splits"]
            for name, count in zip(facts["classes"], held[split]["counts"], strict=True)
        ]

    def frame(self) -> Any:
        """`rows` as a pandas DataFrame."""
        return to_frame(self.rows())

    def listing(self) -> Listing:
        """Training images of every class by site, then all images of each split."""
        facts = self.facts
        cells = [
            (site, *held["train"]["counts"], *(held[split]["images"] for split in facts["splits"]))
            for site, held in facts["sites"].items()
        ]
        sums = tuple(sum(column) for column in list(zip(*cells, strict=True))[1:])
        ratio = facts["imbalance"]
        skew = "a class has no training image" if ratio is None else f"{ratio:.1f} : 1 between classes"
        size = f"{facts['height']}×{facts['width']}×{facts['channels']}"
        title = f"{facts['images']:,} images of {size}, {facts['task']}-label, {skew}"
        heads = ("site", *(f"{name} (train)" for name in facts["classes"]), *facts["splits"])
        skipped = f"{len(facts['skipped'])} bad rows skipped" if facts["skipped"] else ""
        return Listing(heads, (*cells, ("all", *sums)), title, skipped)

    def __repr__(self) -> str:
        return repr(self.listing())

    def _repr_html_(self) -> str:
        return self.listing()._repr_html_()


def inspect(config: Given, *, watch: Watch | None = None, progress: bool | None = None) -> Inspection:
    """Count the images of every class at every site, in each split."""
    with showing(progress, watch) as tell:
        dataset = material(_config(config), _reading(tell))
    more = {"cache": str(cache_folder()), "skipped": list(dataset.samples.skipped)}
    return Inspection(dataset.facts.table() | more)


def ledger(config: Given, *, watch: Watch | None = None, progress: bool | None = None) -> Ledger:
    """What would leave a site: every question is asked of two generated sites; nothing is trained."""
    resolved = _config(config)
    with showing(progress, watch) as tell, one_thread():
        dataset = material(resolved, _reading(tell))
        return running.prepare(resolved, dataset.facts, dataset).ledger


# What they share --------------------------------------------------------------------------------------------


def _table(config: Given, stop: Stop | None = None) -> dict[str, Any]:
    """A config as a table, with what ends its runs early."""
    if isinstance(config, Config):
        table = config.table()
    else:
        table = load(Path(config)) if isinstance(config, str | Path) else dict(config)
    if stop is None:
        return table
    options = {"patience": stop} if isinstance(stop, int) else dict(stop)
    return {**table, "train": {**table.get("train", {}), "stop": options}}


def _config(config: Given, stop: Stop | None = None) -> Config:
    return config if isinstance(config, Config) and stop is None else resolve(_table(config, stop))


def _texts(grid: Mapping[str, Sequence[Any]] | Sequence[str]) -> list[str]:
    """A grid as the command line has it: section.key=value,value."""
    if not isinstance(grid, Mapping):
        return [grid] if isinstance(grid, str) else list(grid)
    return [f"{key}={','.join(json.dumps(value) for value in values)}" for key, values in grid.items()]


def _arms(arms: Mapping[str, Mapping[str, Any]] | Sequence[str]) -> list[Arm]:
    """Further rows: label → dotted keys and values, or texts as the command line has them."""
    if isinstance(arms, Mapping):
        return [Arm(label, tuple(changes.items())) for label, changes in arms.items()]
    return [arm_from(text) for text in arms]


def _folder(out: str | Path | None) -> Path:
    return Path(out) if out is not None else Path(tempfile.mkdtemp(prefix="equipoise-"))


def _reading(tell: Watch) -> Progress:
    """Tells of data that are read."""
    return lambda text, done, total: tell("data", {"text": text, "done": done, "total": total})


def _ended(folder: Path, failures: Sequence[Mapping[str, Any]], runs: int) -> Comparison:
    """The comparison in a folder; an error if no run of it reached its end."""
    if failures and len(failures) == runs:
        first = failures[0]
        raise RunsFailed(
            f"all {runs} runs in {folder} failed ({first['run']}: {first['error']}); the same call tries "
            f"them again"
        )
    return Comparison(folder)
