"""From a recipe to runs: where the data lies, at which scale, which rows, and the user's own changes last."""

from __future__ import annotations

import copy
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from equipoise.compare import Arm, Plan, make_plan, numbers
from equipoise.compare.plan import Changes, variant
from equipoise.config import Config, load, merged, resolve, setting
from equipoise.data import Progress
from equipoise.errors import ConfigError
from equipoise.methods import find as find_method
from equipoise.names import unknown
from equipoise.reproduce.recipe import Paper, Recipe, flat, notes_of

SCALES = ("full", "small")

SMALL_SIZE, SMALL_BATCH, SMALL_VALIDATION = 32, 32, 0.1
SMALL_EPOCHS, SMALL_EVALUATIONS = 200, 25
"""the budget of a run: local epochs over all its rounds; how often it is evaluated"""
SMALL_START, SMALL_PATIENCE = 0.2, 0.35
"""when a run ends before its budget does, as shares of it: rounds after a warm-up that are not looked at, and
evaluations without an improvement on validation images. tests/reproduce/test_stopping.py replays both on the
recorded runs: less would end runs that still improve"""
SMALL_TRAIN = {
    "optimizer": "adam", "lr": 2e-3, "momentum": 0.0, "nesterov": False,
    "schedule": "constant", "milestones": [],
}  # fmt: skip
"""what a small network that starts at random learns with; the papers' rates are for large pretrained ones"""
IN_ROUNDS = ("warmup", "ramp")
"""methods' options that count rounds"""
KEPT = ("image_size", "channels", "split")
"""what other data takes over from the recipe where it does not say it itself"""


@dataclass(frozen=True)
class Task:
    """A table ready to run."""

    paper: Paper
    scale: str
    plan: Plan
    remarks: tuple[str, ...]
    """how it differs from the paper, in sentences"""


def prepare(
    paper: Paper,
    data: Path | None,
    *,
    scale: str = "full",
    seeds: Sequence[int] | None = None,
    rows: Sequence[str] = (),
    overrides: Sequence[str] = (),
    from_scratch: bool = False,
    base: Path | None = None,
    progress: Progress | None = None,
) -> Task:
    """Every run of the table, checked, with the data read once.

    `data` is the folder of the download (or one that holds it under its kind's name), or a TOML file with a
    [data] section. Without `seeds` the paper's are taken; at small scale only the first, and no folds.
    """
    base = base or Path.cwd()
    recipe, small = paper.recipe, scale == "small"
    table = placed(paper, data, base)
    arms = chosen(paper, rows)
    remarks = notes_of(paper, [arm.label for arm in arms])
    if data is not None and data.suffix == ".toml":
        remarks.append(f"The data is that of {data.name}, not of the paper's own files.")
    if small:
        table = shrunk(table, recipe)
        arms = small_arms(paper, arms, table, base)
    changes = tuple(map(setting, overrides))
    arms = [Arm(arm.label, (*arm.changes, *fitting(changes, arm, table, base))) for arm in arms]
    if small:
        arms = [stopping(arm, table, base) for arm in arms]
    configs = [resolve(variant(table, arm), base) for arm in arms]
    lacking = missing_weights(recipe, configs)
    if lacking and not small and not from_scratch:
        path, what = next(iter(lacking.items()))
        sha = path.replace("weights", "sha256")
        raise ConfigError(
            f"{paper.name} starts from {what}: give {path}=FILE {sha}=HASH, or --from-scratch to start at "
            f"random"
        )
    if small:
        remarks.append(small_remark(configs))
    if lacking:
        remarks.append(f"Random weights in place of {' and of '.join(lacking.values())}.")
    if overrides:
        remarks.append(f"Changed by hand: {', '.join(overrides)}.")
    plan = make_plan(
        table,
        arms=arms,
        seeds=seeds or (numbers(recipe.seeds)[:1] if small else numbers(recipe.seeds)),
        folds=None if small else recipe.folds,
        base=base,
        progress=progress,
    )
    return Task(paper, scale, plan, tuple(remarks))


def chosen(paper: Paper, rows: Sequence[str]) -> list[Arm]:
    """The arms of the rows asked for, in the table's order; all without any."""
    arms = {arm.label.lower(): arm for arm in paper.arms}
    for label in rows:
        known = paper.recipe.rows.items()
        blocked = next((row.cannot for name, row in known if name.lower() == label.lower()), "")
        if blocked:
            raise ConfigError(f"--rows: '{label}' cannot be run: {blocked}")
        if label.lower() not in arms:
            raise ConfigError("--rows: " + unknown("row", label, [arm.label for arm in arms.values()]))
    wanted = {label.lower() for label in rows} or set(arms)
    return [arm for name, arm in arms.items() if name in wanted]


# The data ---------------------------------------------------------------------------------------------------


def placed(paper: Paper, data: Path | None, base: Path) -> dict[str, Any]:
    """The recipe's table with the data where the user has it."""
    table = copy.deepcopy(dict(paper.table))
    if data is None:
        home = f"a folder that holds {'it' if len(paper.sets) == 1 else ', '.join(paper.sets)}"
        raise ConfigError(
            f"{paper.name} needs {' and '.join(paper.sets)}: give --data ROOT, {home}, or a .toml with [data]"
        )
    if data.suffix == ".toml":
        config = load(base / data.expanduser())
        if "data" not in config:
            raise ConfigError(f"--data: {data} has no section [data]")
        own = {key: value for key, value in table["data"].items() if key in KEPT}
        return merged({**table, "data": own}, config)
    root = base / data.expanduser()
    if table["data"]["kind"] == "joined":
        for part in table["data"]["parts"]:
            part["path"] = str(root / part["kind"])
    else:
        below = root / table["data"]["kind"]
        table["data"]["path"] = str(below if below.exists() else root)
    return table


# The scale --------------------------------------------------------------------------------------------------


def shrunk(table: Mapping[str, Any], recipe: Recipe) -> dict[str, Any]:
    """The table for a laptop: a small network on small images, an optimiser that suits it, and rounds of as
    many local epochs as in the paper, at most `SMALL_EPOCHS` in all; `stopping` ends them early."""
    data, train, evaluate = (dict(table.get(name, {})) for name in ("data", "train", "evaluate"))
    data["image_size"] = min(data.get("image_size", SMALL_SIZE), SMALL_SIZE)
    data["split"] = validated(data.get("split", {}))
    train |= SMALL_TRAIN
    train.pop("stop", None)  # each row has its own
    rounds = max(1, SMALL_EPOCHS // train.get("epochs", 1))
    train["rounds"] = min(train.get("rounds", rounds), rounds)
    train["batch_size"] = min(train.get("batch_size", SMALL_BATCH), SMALL_BATCH)
    evaluate["every"] = max(1, train["rounds"] // SMALL_EVALUATIONS)
    result = {**table, "data": data, "train": train, "evaluate": evaluate, "net": {"name": "small-cnn"}}
    return merged(result, {name: keys for name, keys in recipe.small.items() if name != "method"})


def validated(split: Any) -> Any:
    """The split with validation images, which tell when a run has converged."""
    if isinstance(split, str) or split.get("validation", SMALL_VALIDATION) > 0:
        return split  # a column of the file: what it does not bring is cut by the default share
    return {**split, "validation": SMALL_VALIDATION}


def small_arms(paper: Paper, arms: Sequence[Arm], table: Mapping[str, Any], base: Path) -> list[Arm]:
    """The rows as a shrunk table needs them: what counts rounds is shortened with them."""
    recipe = paper.recipe
    ratio = table["train"]["rounds"] / paper.table["train"]["rounds"]

    def further(arm: Arm) -> Changes:
        method = resolve(variant(table, arm), base).method
        counts = {key: getattr(method, key, None) for key in IN_ROUNDS}
        whole = {key: count for key, count in counts.items() if isinstance(count, int)}
        rounds = {key: max(1, round(count * ratio)) for key, count in whole.items()}
        shared = fitting(flat({"method": recipe.small.get("method", {})}), arm, table, base)
        return (*flat({"method": rounds}), *shared, *flat(recipe.rows[arm.label].small))

    return [Arm(arm.label, (*arm.changes, *further(arm))) for arm in arms]


def stopping(arm: Arm, table: Mapping[str, Any], base: Path) -> Arm:
    """The row with an early end that suits its rounds and its warm-up; what it says of `train.stop` itself
    comes later, and wins."""
    rest = tuple(change for change in arm.changes if not change[0].startswith("train.stop"))
    config = resolve(variant(table, Arm(arm.label, rest)), base)
    warmup = getattr(config.method, "warmup", None) or 0
    rule = stop_rule(config.train.rounds, config.evaluate.every, warmup)
    return Arm(arm.label, (*((f"train.stop.{key}", value) for key, value in rule.items()), *arm.changes))


def stop_rule(rounds: int, every: int, warmup: int = 0) -> dict[str, int]:
    """`train.stop` of a run with so many rounds, evaluated every so many."""
    patience = math.ceil(SMALL_PATIENCE * math.ceil(rounds / every))
    return {"patience": max(1, patience), "after": warmup + round(SMALL_START * rounds)}


def small_remark(configs: Sequence[Config]) -> str:
    """The sentence that says what was shrunk, as the runs have it in the end."""

    def each(values: Iterable[object]) -> str:
        return " or ".join(dict.fromkeys(map(str, values)))

    stops = [one.train.stop for one in configs if one.train.stop is not None]
    return (
        f"Small scale: {each(one.net.name for one in configs)} on images of "
        f"{each(one.data.image_size for one in configs)} pixels, at most "
        f"{each(one.train.rounds for one in configs)} rounds (local epochs: "
        f"{each(one.train.epochs for one in configs)}), {each(one.train.optimizer for one in configs)} at "
        f"{each(one.train.lr for one in configs)}; a run ends early when balanced accuracy on "
        f"validation images has not improved for {each(one.patience for one in stops)} of its evaluations, "
        f"not counting its first {each(one.after for one in stops)} rounds. These numbers are no "
        "reproduction of the paper's: only the order of the rows can be compared, and that with care."
    )


# The user's changes and weights -----------------------------------------------------------------------------


def fitting(changes: Changes, arm: Arm, table: Mapping[str, Any], base: Path) -> Changes:
    """Those changes that a row can take: keys of [method] are for methods that have them."""
    method = find_method(arm.method or table.get("method", {}).get("name", "fedavg"), base)
    fields = {f"method.{name}" for name in method.model_fields}
    return tuple(one for one in changes if not one[0].startswith("method.") or one[0] in fields)


def missing_weights(recipe: Recipe, configs: Sequence[Config]) -> dict[str, str]:
    """The pretrained weights that some row wants and nobody gave: key → what the paper started from."""

    def empty(config: Config, path: str) -> bool:
        section, key = path.split(".")
        return getattr(getattr(config, section), key, "") is None

    needed = recipe.weights.items()
    return {path: what for path, what in needed if any(empty(config, path) for config in configs)}
