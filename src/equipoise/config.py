"""The config of a run: one TOML file, every key checked before any work.

Each room brings the options of its section; here they are put together. A key that does not exist, a value of the wrong kind, a
method or a data kind nobody knows: one sentence with the place and the nearest valid name.
"""

from __future__ import annotations

import copy
import hashlib
import json
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, TypeVar

from pydantic import BaseModel, ValidationError

from equipoise import data, partition
from equipoise.data import DataOptions
from equipoise.engine import EngineOptions
from equipoise.errors import ConfigError, StorageError
from equipoise.evaluate import EvaluateOptions
from equipoise.exchange import ExchangeOptions
from equipoise.keeping import read_text
from equipoise.losses import ObjectiveOptions, parse_objective
from equipoise.methods import Method, find
from equipoise.names import nearest, unknown
from equipoise.nets import NetOptions
from equipoise.partition import PartitionOptions
from equipoise.site import TrainOptions
from equipoise.site.views import VIEWS

Model = TypeVar("Model", bound=BaseModel)

DEFAULTS: dict[str, dict[str, Any]] = {
    "data": {"kind": "phantom"},
    "partition": {"kind": "column"},
    "net": {"name": "small-cnn"},
    "method": {"name": "fedavg"},
}
SECTIONS = ("data", "partition", "net", "method", "train", "engine", "evaluate", "exchange")
KEPT = "config.toml"
"""the file of a run folder that holds its resolved config, as it was when the run began"""
BESIDE = ("base", "reproduce")
"""what a file may hold beside the sections: where its paths start, and what `equipoise reproduce` reads"""


@dataclass(frozen=True)
class Config:
    """A whole run, resolved: every default filled in."""

    data: DataOptions
    partition: PartitionOptions
    net: NetOptions
    method: Method
    method_name: str
    train: TrainOptions
    objective: ObjectiveOptions
    engine: EngineOptions
    evaluate: EvaluateOptions
    exchange: ExchangeOptions
    base: Path
    """the folder relative paths start from"""

    def table(self) -> dict[str, Any]:
        """The resolved config as plain values, in the shape of the file."""
        train = self.train.model_dump(mode="json", exclude_none=True)
        train["objective"] = _plain_objective(self.objective)
        return {
            "base": str(self.base),
            "data": self.data.model_dump(mode="json", exclude_none=True),
            "partition": self.partition.model_dump(mode="json", exclude_none=True),
            "net": self.net.model_dump(mode="json", exclude_none=True),
            "method": {"name": self.method_name, **self.method.model_dump(mode="json", exclude_none=True)},
            "train": train,
            "engine": self.engine.model_dump(mode="json", exclude_none=True),
            "evaluate": self.evaluate.model_dump(mode="json", exclude_none=True),
            "exchange": self.exchange.model_dump(mode="json", exclude_none=True),
        }

    @property
    def digest(self) -> str:
        """Hash of all that can change the result; where sites run, and what is written beside it, cannot."""
        table = {key: value for key, value in self.table().items() if key not in ("base", "engine")}
        del table["evaluate"]["tensorboard"]
        return hashlib.sha256(json.dumps(table, sort_keys=True).encode()).hexdigest()

    def with_engine(self, **changes: Any) -> Config:
        """The same run on another engine."""
        return replace(self, engine=self.engine.model_copy(update=changes))


def read(path: Path, overrides: Sequence[str] = (), base: Path | None = None) -> Config:
    """The config in a TOML file, with `section.key=value` overrides."""
    return resolve(override(load(path), overrides), base)


def of_run(folder: Path) -> Config:
    """The config of a run folder; refused where the file is not as the run wrote it."""
    return resolve(tomllib.loads(text_of_run(folder)))


def text_of_run(folder: Path) -> str:
    """The text of a run folder's config."""
    try:
        return read_text(
            folder / KEPT,
            "undo the change, or start a new run in another folder; "
            "`equipoise run FILE.toml --out` takes another [engine] or base",
        )
    except FileNotFoundError:
        raise StorageError(f"{folder} is not a run folder: it has no {KEPT}") from None


def load(path: Path) -> dict[str, Any]:
    """The table in a TOML file, put over that of the file which its key `extends` names (relative to it), if it has one."""
    seen = [path]
    table = _toml(path)
    while (parent := table.pop("extends", None)) is not None:
        if not isinstance(parent, str):
            raise ConfigError(f"{seen[-1]}: extends must be the name of one file, in quotes")
        path = seen[-1].parent / parent
        if path.resolve() in [one.resolve() for one in seen]:
            raise ConfigError(f"{seen[-1]} extends {parent}, which extends it in turn: remove one of the two")
        seen.append(path)
        table = merged(_toml(path), table)
    return table


def merged(base: Mapping[str, Any], table: Mapping[str, Any]) -> dict[str, Any]:
    """One table over another, key by key and table by table; one that names another `kind` (or `name`) starts anew."""
    mark = "kind" if "kind" in base else "name"
    if mark in base and table.get(mark, base[mark]) != base[mark]:
        return dict(table)
    result = dict(base)
    for key, value in table.items():
        below = result.get(key)
        result[key] = merged(below, value) if isinstance(below, dict) and isinstance(value, dict) else value
    return result


def _toml(path: Path) -> dict[str, Any]:
    try:
        with open(path, "rb") as file:
            return tomllib.load(file)
    except FileNotFoundError:
        raise ConfigError(f"there is no config file {path}") from None
    except IsADirectoryError:
        raise ConfigError(f"{path} is a folder, not a config file; to go on with a run use `equipoise resume {path}`") from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise ConfigError(f"{path} is not valid TOML: {error}") from error


def override(table: Mapping[str, Any], overrides: Sequence[str]) -> dict[str, Any]:
    """A copy of the table with `section.key=value` texts applied; values are TOML, or plain text where that fails."""
    result = copy.deepcopy(dict(table))
    for text in overrides:
        put(result, *setting(text), text)
    return result


def setting(text: str) -> tuple[str, Any]:
    """The dotted key and the value of one `section.key=value`."""
    path, equals, value = text.partition("=")
    if not equals or not all(path.strip().split(".")):
        raise ConfigError(f"'{text}' is not of the form section.key=value")
    try:
        return path.strip(), tomllib.loads(f"value = {value}")["value"]
    except tomllib.TOMLDecodeError:
        return path.strip(), value.strip()


def put(table: dict[str, Any], path: str, value: Any, text: str) -> None:
    """Set the value at a dotted key, in place; `text` is what the user wrote."""
    *sections, last = path.split(".")
    for key in sections:
        table = table.setdefault(key, {})
        if not isinstance(table, dict):
            raise ConfigError(f"'{text}': '{key}' is not a section")
    table[last] = value


def resolve(table: Mapping[str, Any], base: Path | None = None) -> Config:
    """Check a config table and fill in every default."""
    for key in table:
        if key not in (*SECTIONS, *BESIDE):
            raise ConfigError(unknown("section", key, SECTIONS))
    sections = {name: {**DEFAULTS.get(name, {}), **_section(table, name)} for name in SECTIONS}
    base = Path(str(table.get("base", base or Path.cwd())))
    name, method = _method(dict(sections["method"]), base)
    train = {**method.recommends, **sections["train"]}
    options = validate(TrainOptions, train, "train")
    for view in options.views or ():
        if view not in VIEWS:
            raise ConfigError("train.views: " + unknown("view", view, VIEWS))
    net = validate(NetOptions, sections["net"], "net")
    given = validate(_kind(data.KINDS, sections["data"], "data"), sections["data"], "data")
    objective = _objective(options.objective, given.multi)
    if objective.cosine and net.head != "cosine":
        raise ConfigError("train.objective: 'ldam' needs cosines: set net.head = \"cosine\"")
    return Config(
        data=given,
        partition=validate(_kind(partition.KINDS, sections["partition"], "partition"), sections["partition"], "partition"),
        net=net,
        method=method,
        method_name=name,
        train=options,
        objective=objective,
        engine=validate(EngineOptions, sections["engine"], "engine"),
        evaluate=validate(EvaluateOptions, sections["evaluate"], "evaluate"),
        exchange=validate(ExchangeOptions, sections["exchange"], "exchange"),
        base=base,
    )


def _section(table: Mapping[str, Any], name: str) -> dict[str, Any]:
    value = table.get(name, {})
    if not isinstance(value, dict):
        raise ConfigError(f"'{name}' must be a section, written [{name}]")
    return value


def _kind(kinds: Mapping[str, type[Model]], table: Mapping[str, Any], where: str) -> type[Model]:
    kind = table["kind"]
    if not isinstance(kind, str) or kind not in kinds:
        raise ConfigError(f"{where}.kind: " + unknown("kind", str(kind), kinds))
    return kinds[kind]


def _method(table: dict[str, Any], base: Path) -> tuple[str, Method]:
    name = str(table.pop("name"))
    cls = find(name, base)
    preset = str(table.pop("preset", ""))
    if preset and preset not in cls.presets:
        raise ConfigError("method.preset: " + unknown(f"preset of '{name}'", preset, cls.presets))
    return name, validate(cls, {**cls.presets.get(preset, {}), **table}, "method", also=("name", "preset"))


def _objective(value: Any, multi: bool) -> ObjectiveOptions:
    if value is None:
        value = "bce" if multi else "cross_entropy"
    try:
        return parse_objective(value)
    except ConfigError as error:
        text = str(error)
        raise ConfigError(f"train.{text}" if text.startswith("objective") else f"train.objective: {text}") from None


def _plain_objective(objective: ObjectiveOptions) -> Any:
    parts = [part.model_dump(mode="json", exclude_none=True) for part in objective.parts]
    return parts[0] if len(parts) == 1 else parts


def validate(cls: type[Model], table: Mapping[str, Any], where: str, also: Sequence[str] = ()) -> Model:
    """The options, or one sentence about the first thing that is wrong."""
    try:
        return cls.model_validate(dict(table))
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
    place = ".".join([where, *(str(part) for part in first["loc"])])
    if first["type"] == "extra_forbidden":
        owner, *rest = _owner(cls, first["loc"][:-1]), first["loc"][-1]
        valid = [*owner.model_fields, *(also if owner is cls else ())]
        guess = nearest(str(rest[-1]), valid)
        hint = f"did you mean '{guess}'? " if guess else ""
        raise ConfigError(f"unknown key '{place}': {hint}valid: {', '.join(sorted(valid))}")
    if first["type"] == "missing":
        raise ConfigError(f"'{place}' is missing: set it in the config")
    given = first["input"]
    hint = ""
    if first["type"] == "literal_error":
        guess = nearest(
            str(given), [text.strip().strip("'") for text in first["ctx"]["expected"].replace(" or ", ",").split(",")]
        )
        hint = f" (did you mean '{guess}'?)" if guess else ""
    message = first["msg"].removeprefix("Value error, ")
    message = message[:1].lower() + message[1:]
    shown = "" if isinstance(given, dict) else f" is {json.dumps(given, default=str)}:"
    raise ConfigError(f"'{place}'{shown} {message}{hint}")


def _owner(cls: type[BaseModel], loc: Sequence[Any]) -> type[BaseModel]:
    """The options class a nested key belongs to."""
    for part in loc:
        annotation = cls.model_fields[str(part)].annotation if str(part) in cls.model_fields else None
        if isinstance(annotation, type) and issubclass(annotation, BaseModel):
            cls = annotation
    return cls
