"""What is compared: arms (the file with some keys changed) times seeds times folds, each an ordinary run."""

from __future__ import annotations

import copy
import itertools
import re
import shlex
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from equipoise.config import DEFINING, Config, put, recommended, resolve, setting, spelt
from equipoise.data import Progress
from equipoise.errors import ConfigError, MethodError
from equipoise.methods import METHODS, find
from equipoise.names import unknown
from equipoise.setup import material
from equipoise.text import parse_toml

ALL = "all"
Changes = tuple[tuple[str, Any], ...]
"""dotted keys and their values"""


@dataclass(frozen=True)
class Arm:
    """One row of the table: a name, and what it changes in the file."""

    label: str
    changes: Changes = ()
    family: str = ""
    """the label without the values of `point`; empty: the same"""
    point: Changes = ()
    """what a grid changes besides the method's own options: rows are compared at the same point"""

    @property
    def slug(self) -> str:
        """The name of its folder."""
        return re.sub(r"[^\w+.=-]+", "-", self.label).strip("-.")

    def with_change(self, path: str, value: Any) -> Arm:
        """The arm with one more key changed, which its label tells."""
        shown = (
            value if isinstance(value, str) else str(value).lower() if isinstance(value, bool) else f"{value}"
        )
        text = f" {path.removeprefix('method.')}={shown}"
        family, changes = self.family or self.label, (*self.changes, (path, value))
        if path.startswith("method."):
            return Arm(self.label + text, changes, family + text, self.point)
        return Arm(self.label + text, changes, family, (*self.point, (path, value)))

    @property
    def method(self) -> str | None:
        """The method the arm names, if it does."""
        return dict(self.changes).get("method.name")


@dataclass(frozen=True)
class Job:
    """One run of one arm."""

    arm: Arm
    seed: int
    fold: int | None
    config: Config

    @property
    def name(self) -> str:
        """The run's folder within the comparison's: arm/seed or arm/seed-fold."""
        return f"{self.arm.slug}/{self.seed}" + ("" if self.fold is None else f"-{self.fold}")


@dataclass(frozen=True)
class Plan:
    """A whole comparison."""

    arms: tuple[Arm, ...]
    seeds: tuple[int, ...]
    folds: int | None
    reference: Arm
    """what the rows of its point are compared with; those of another point, with its like there"""
    task: str
    jobs: tuple[Job, ...]
    left_out: tuple[str, ...] = ()
    """with 'all': methods that cannot be run on this file, and why"""
    remarks: tuple[str, ...] = ()
    """where a method and the file want different things: which of them a row has"""

    def reference_of(self, arm: Arm) -> Arm:
        """The reference at the arm's point of the grid."""
        family = self.reference.family or self.reference.label
        arms = (one for one in self.arms if (one.family or one.label) == family)
        return next(one for one in arms if one.point == arm.point)


def make_plan(
    table: Mapping[str, Any],
    methods: Sequence[str] = (),
    *,
    seeds: Sequence[int] = (0,),
    folds: int | None = None,
    grid: Sequence[str] = (),
    arms: Sequence[Arm] = (),
    reference: str | None = None,
    by_hand: Sequence[str] = (),
    base: Path | None = None,
    progress: Progress | None = None,
) -> Plan:
    """Every run, with its config checked and the data read once: what is wrong with a name, a key or the data
    is said here.

    `methods` are NAME or NAME:preset, or "all". The file's [method] section counts for the method it names,
    not for others. `grid` holds `section.key=value,value`: every combination becomes an arm; a method that
    has no such option is not multiplied. `reference` is the label of an arm, with or without the values of a
    grid that are not the method's own: at each of those values, arms are compared with the reference at the
    same. The file's [train] section is for all, so what defines a method that recommends it (`DEFINING`) wins
    over it, unless the arm changes the key or it is one of `by_hand`, the dotted keys that the user set for
    all arms.
    """
    base = base or Path.cwd()
    wanted, left_out = [], []
    for text in methods:
        if text != ALL:
            wanted.append(_arm(text))
            continue
        for name in METHODS:
            try:
                _check(settled(variant(table, _arm(name)), _arm(name), base, by_hand), progress)
                wanted.append(_arm(name))
            except (ConfigError, MethodError) as error:
                left_out.append(f"{name}: {error}")
    wanted += arms
    if not wanted:
        raise ConfigError(
            "there is nothing to compare: "
            + (left_out[0] if left_out else "name methods, e.g. --methods fedavg,fca")
        )
    wanted = _gridded(wanted, grid, table, base)
    _distinct(wanted)
    chosen = wanted[0] if reference is None else _named(reference, wanted)
    repeats = [(seed, fold) for seed in seeds for fold in ([None] if folds is None else range(folds))]
    jobs = [
        Job(arm, seed, fold, settled(variant(table, arm, seed, fold, folds), arm, base, by_hand))
        for seed, fold in repeats
        for arm in wanted
    ]
    tasks = {_check(job.config, progress) for job in jobs[: len(wanted)]}
    if len(tasks) > 1:
        raise ConfigError("the arms are not all single-label or all multi-label: compare them apart")
    first = jobs[: len(wanted)]
    remarks = [text for job in first for text in differences(table, job.arm, job.config, by_hand)]
    return Plan(
        arms=tuple(wanted),
        seeds=tuple(seeds),
        folds=folds,
        reference=chosen,
        task=tasks.pop(),
        jobs=tuple(jobs),
        left_out=tuple(left_out),
        remarks=tuple(remarks),
    )


def variant(
    table: Mapping[str, Any],
    arm: Arm,
    seed: int | None = None,
    fold: int | None = None,
    folds: int | None = None,
) -> dict[str, Any]:
    """The file as an arm has it."""
    result = copy.deepcopy(dict(table))
    if arm.method is not None and arm.method != result.get("method", {}).get("name"):
        result["method"] = {}
    for path, value in arm.changes:
        put(result, path, value, f"{path}={value}")
    if fold is not None:
        data = result.setdefault("data", {})
        if isinstance(data.get("split"), str):
            data["split"] = {"column": data["split"]}  # so that the refusal is about folds
        put(result, "data.split.folds", folds, "--folds")
        put(result, "data.split.fold", fold, "--folds")
    if seed is not None:
        put(result, "train.seed", seed, "--seeds")
    # Runs go side by side, so a run itself has one process.
    put(result, "engine.kind", "serial", "engine.kind=serial")
    return result


def settled(table: Mapping[str, Any], arm: Arm, base: Path, by_hand: Sequence[str] = ()) -> Config:
    """The config of an arm, from its `variant` of the file: the method it names keeps what defines it."""
    yields = [key for key in DEFINING if arm.method is not None and not _chosen(key, arm, by_hand)]
    return resolve(table, base, yields)


def differences(table: Mapping[str, Any], arm: Arm, config: Config, by_hand: Sequence[str] = ()) -> list[str]:
    """A line for every key of [train] about which the file and the arm's method disagree."""
    said, lines = table.get("train", {}), []
    for key, value in recommended(config.method, config.multi).items():
        mine, best = spelt(key, config.setting(key)), spelt(key, value)
        if mine != best:
            why = "as asked for" if _chosen(key, arm, by_hand) else "as the file says"
            lines.append(f"{arm.label}: {key} = {mine} {why}; the method recommends {best}")
        elif key in said and spelt(key, said[key]) != best:
            other = spelt(key, said[key])
            lines.append(f"{arm.label}: {key} = {best} as the method recommends; the file says {other}")
    named, final = config.objective, config.method.base_loss(config.objective)
    if "objective" in said and any(part not in final.parts for part in named.parts):
        lines.append(f"{arm.label}: objective = {final.toml}, which is the method, in place of {named.toml}")
    return lines


def _chosen(key: str, arm: Arm, by_hand: Sequence[str]) -> bool:
    """Whether a key of [train] was set for this arm, or for all by hand."""
    path = f"train.{key}"
    return any(one == path or one.startswith(f"{path}.") for one in (*by_hand, *dict(arm.changes)))


def arm_from(text: str) -> Arm:
    """An arm written as "LABEL: section.key=value section.key=value"."""
    label, colon, rest = text.partition(":")
    if not colon or not label.strip() or not rest.strip():
        raise ConfigError(f"--arm: '{text}' is not of the form 'LABEL: section.key=value section.key=value'")
    return Arm(label.strip(), tuple(map(setting, shlex.split(rest))))


def numbers(text: str) -> tuple[int, ...]:
    """0..4 or 0,3,7 or both mixed."""
    seeds: list[int] = []
    for part in text.split(","):
        span = re.fullmatch(r"\s*(\d+)\s*(?:\.\.\s*(\d+)\s*)?", part)
        if not span or (span[2] and int(span[2]) < int(span[1])):
            raise ConfigError(f"--seeds: '{text}' is not a list of whole numbers; write 0..4 or 0,3,7")
        seeds += range(int(span[1]), int(span[2] or span[1]) + 1)
    return tuple(dict.fromkeys(seeds))


def _arm(text: str) -> Arm:
    """The arm of NAME, NAME:preset, FILE.py:Class or FILE.py:Class:preset."""
    parts = text.strip().split(":")
    size = 1 if parts[0] in METHODS else 2
    name, preset = ":".join(parts[:size]), ":".join(parts[size:])
    return Arm(text.strip(), (("method.name", name), *((("method.preset", preset),) if preset else ())))


def _gridded(arms: Sequence[Arm], grid: Sequence[str], table: Mapping[str, Any], base: Path) -> list[Arm]:
    """All combinations of the arms and the values of a grid."""
    axes = [_axis(text) for text in grid]
    own = table.get("method", {}).get("name", "fedavg")

    def takes(arm: Arm, path: str) -> bool:
        section, key, *_ = path.split(".")
        method = find(arm.method or own, base)
        return section != "method" or key in method.model_fields or (key == "preset" and bool(method.presets))

    for path, _ in axes:
        if not any(takes(arm, path) for arm in arms):
            resolve(variant(table, arms[0].with_change(path, None)), base)  # says which key is meant
    result = []
    for arm in arms:
        mine = [[(path, value) for value in values] for path, values in axes if takes(arm, path)]
        for changes in itertools.product(*mine):
            one = arm
            for path, value in changes:
                one = one.with_change(path, value)
            result.append(one)
    return result


def _named(label: str, arms: Sequence[Arm]) -> Arm:
    """The arm of a label, or the first of a family."""
    fitting = [arm for arm in arms if label in (arm.label, arm.family)]
    if not fitting:
        raise ConfigError("--reference: " + unknown("arm", label, [arm.label for arm in arms]))
    return fitting[0]


def _axis(text: str) -> tuple[str, list[Any]]:
    """section.key=value,value: the key and its values, each TOML or, where that fails, plain text."""
    path, equals, values = text.partition("=")
    if not equals or "." not in path or not values.strip():
        raise ConfigError(f"--grid: '{text}' is not of the form section.key=value,value")
    try:
        return path.strip(), parse_toml(f"values = [{values}]")["values"]
    except tomllib.TOMLDecodeError:
        return path.strip(), [setting(f"{path}={value}")[1] for value in values.split(",")]


def _distinct(arms: Sequence[Arm]) -> None:
    """Two rows of the table need two names and two folders."""
    seen: dict[str, Arm] = {}
    for arm in arms:
        if not arm.slug or arm.slug in seen:
            other = f" as '{seen[arm.slug].label}' has" if arm.slug in seen else ""
            raise ConfigError(
                f"'{arm.label}' would have the folder '{arm.slug}'{other}: give each arm a name of its own"
            )
        seen[arm.slug] = arm


def _check(config: Config, progress: Progress | None) -> str:
    """Read the data (from then on in the cache) and divide it, refuse what does not fit it, and tell its
    task."""
    return material(config, progress).samples.task
