"""The config of a run: one TOML file, every key checked before any work.

Each room brings the options of its section; here they are put together. A key that does not exist, a value of
the wrong kind, a method or a data kind nobody knows: one sentence with the place and the nearest valid name.
"""

from __future__ import annotations

import copy
import hashlib
import json
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, TypeVar, get_args

from pydantic import BaseModel, ValidationError

from equipoise import data, partition
from equipoise.data import DataOptions
from equipoise.engine import EngineOptions
from equipoise.errors import ConfigError
from equipoise.evaluate import EvaluateOptions
from equipoise.exchange import ExchangeOptions
from equipoise.initial import settled
from equipoise.locate import Allow, Code, Parts, context, named
from equipoise.losses import ObjectiveOptions, parse_objective
from equipoise.methods import Method, look_up
from equipoise.names import first_mistake, nearest, unknown
from equipoise.nets import NETS, NetOptions
from equipoise.opening import TEXT, open_regular
from equipoise.options import NONE, offable
from equipoise.partition import PartitionOptions
from equipoise.run_folder import CONFIG, RunFolder
from equipoise.site import PrivacyOptions, TrainOptions
from equipoise.site.views import VIEWS
from equipoise.text import parse_toml
from equipoise.trackers import check_name
from equipoise.trust import of_folder, remember

Model = TypeVar("Model", bound=BaseModel)

DEFAULTS: dict[str, dict[str, Any]] = {
    "data": {"kind": "phantom"},
    "partition": {"kind": "column"},
    "net": {"name": "small-cnn"},
    "method": {"name": "fedavg"},
}
SECTIONS = ("data", "partition", "net", "method", "train", "privacy", "engine", "evaluate", "exchange")
DEFINING = ("objective",)
"""keys of [train] that are part of a method which recommends them: a comparison keeps them, whatever its file
says for all"""
BESIDE_RESULT = ("trackers",)
"""keys of [evaluate] that change nothing but what is written beside the result"""
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
    privacy: PrivacyOptions | None
    """differential privacy; none where the file has no such section"""
    base: Path
    """the folder relative paths start from"""
    codes: Mapping[str, Code] = field(default_factory=dict, compare=False)
    """by name: the code of one's own that the config names"""
    allow: Allow = field(default=remember, compare=False, repr=False)
    """asked before code that it names is run later on: its trackers"""
    weights: Mapping[str, str] | None = None
    """where files of weights are, by the name or sha256 they are asked for by; none: the name is a path"""

    def table(self) -> dict[str, Any]:
        """The resolved config as plain values, in the shape of the file."""
        train = self.train.model_dump(mode="json", exclude_none=True)
        train["objective"] = _plain_objective(self.objective)
        private = self.privacy and {"privacy": self.privacy.model_dump(mode="json", exclude_none=True)}
        return {
            "base": str(self.base),
            "data": self.data.model_dump(mode="json", exclude_none=True),
            "partition": self.partition.model_dump(mode="json", exclude_none=True),
            "net": self.net.model_dump(mode="json", exclude_none=True),
            "method": {"name": self.method_name, **self.method.model_dump(mode="json", exclude_none=True)},
            "train": train,
            **(private or {}),
            "engine": self.engine.model_dump(mode="json", exclude_none=True),
            "evaluate": self.evaluate.model_dump(mode="json", exclude_none=True),
            "exchange": self.exchange.model_dump(mode="json", exclude_none=True),
        }

    @property
    def digest(self) -> str:
        """Hash of all that can change the result."""
        return digest_of(self.table())

    @property
    def marks(self) -> dict[str, str]:
        """By name: the fingerprints of the code of one's own that the config names."""
        return {name: code.fingerprint for name, code in sorted(self.codes.items())}

    @property
    def multi(self) -> bool:
        """Whether images have several labels, as far as the file tells: by its data or its objective."""
        return self.data.multi or _only_multi(self.objective)

    def setting(self, key: str) -> Any:
        """The value of a key of [train]."""
        return self.objective if key == "objective" else getattr(self.train, key)

    def with_engine(self, **changes: Any) -> Config:
        """The same run on another engine."""
        return replace(self, engine=self.engine.model_copy(update=changes))


def digest_of(table: Mapping[str, Any]) -> str:
    """Hash of all that can change the result of a resolved config.

    Where sites run, and what is written beside the result, cannot.
    """
    rest = {key: value for key, value in table.items() if key not in ("base", "engine")}
    evaluate = {key: value for key, value in rest["evaluate"].items() if key not in BESIDE_RESULT}
    return hashlib.sha256(json.dumps(rest | {"evaluate": evaluate}, sort_keys=True).encode()).hexdigest()


def read(
    path: Path, overrides: Sequence[str] = (), base: Path | None = None, allow: Allow = remember
) -> Config:
    """The config in a TOML file, with `section.key=value` overrides; `allow` as in `resolve`."""
    return resolve(override(load(path), overrides), base, allow=allow)


def digest_in(folder: Path | RunFolder) -> str:
    """The digest of a run folder's config, without looking at what it names."""
    return digest_of(parse_toml(RunFolder(folder).text(CONFIG)))


def added_since(folder: Path | RunFolder, config: Config) -> str:
    """The first key of a config that the one in a run folder lacks, where all it has is the same: an option
    that the version which began the run did not have."""
    begun, now = parse_toml(RunFolder(folder).text(CONFIG)), config.table()
    sections = {name: keys for name, keys in now.items() if isinstance(keys, dict)}
    added = [(name, key) for name, keys in sections.items() for key in keys if key not in begun.get(name, {})]
    for name, key in added:
        del sections[name][key]
    return ".".join(added[0]) if added and digest_of(now) == digest_of(begun) else ""


def read_folder(folder: Path, trust: bool = False) -> Config:
    """The config of a run folder; refused where the file is not as the run wrote it.

    Code that it names is run only if this user has run it before, or says to trust it.
    """
    run = RunFolder(folder)
    return resolve(parse_toml(run.text(CONFIG)), allow=of_folder(run, trust))


def load(path: Path) -> dict[str, Any]:
    """The table in a TOML file, put over that of the file which its key `extends` names (relative to it), if
    it has one."""
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
    """One table over another, key by key and table by table; one that names another `kind` (or `name`) starts
    anew."""
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
        with open_regular(path, TEXT) as file:
            return parse_toml(file.read().decode())
    except FileNotFoundError:
        raise ConfigError(f"there is no config file {path}") from None
    except IsADirectoryError:
        raise ConfigError(
            f"{path} is a folder, not a config file; to resume a run use {RunFolder(path).again}"
        ) from None
    except OSError as error:
        raise ConfigError(f"{path} cannot be read: {error.strerror}") from error
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise ConfigError(f"{path} is not valid TOML: {error}") from error


def override(table: Mapping[str, Any], overrides: Sequence[str]) -> dict[str, Any]:
    """A copy of the table with `section.key=value` texts applied; values are TOML, or plain text where that
    fails."""
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
        return path.strip(), parse_toml(f"value = {value}")["value"]
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


def resolve(
    table: Mapping[str, Any], base: Path | None = None, yields: Sequence[str] = (), allow: Allow = remember
) -> Config:
    """Check a config table and fill in every default.

    `yields` are keys of [train] that give way to what the method recommends, if it does; all others win over
    it. A method's file or module is run only if `allow` lets it pass; without one the table is taken for the
    user's own.
    """
    for key in table:
        if key not in (*SECTIONS, *BESIDE):
            raise ConfigError(unknown("section", key, SECTIONS))
    sections = {name: {**DEFAULTS.get(name, {}), **_section(table, name)} for name in SECTIONS}
    base = Path(str(table.get("base", base or Path.cwd())))
    parts = Parts(base, allow)
    name, method = _method(dict(sections["method"]), parts)
    dataset = _kind(data.KINDS, DataOptions, sections["data"], "data", parts)  # type: ignore[type-abstract]
    wanted = recommended(method, dataset.multi or _only_multi(sections["train"].get("objective"), parts))
    train = {**wanted, **sections["train"], **{key: wanted[key] for key in yields if key in wanted}}
    options = settled(validate(TrainOptions, train, "train", parts), base)
    _check_views(options, name, method)
    if dataset.here:
        options.try_views(dataset.channels, dataset.image_size)
    net = validate(NetOptions, sections["net"], "net", parts)
    if net.weights is not None and options.init is not None:
        raise ConfigError("net.weights and train.init both say what the first model is: leave one out")
    objective = objective_of(options.objective, dataset.multi, parts)
    if objective.scale is not None and net.head != "cosine":
        raise ConfigError("train.objective: 'ldam' needs cosines: set net.head = \"cosine\"")
    evaluate = validate(EvaluateOptions, sections["evaluate"], "evaluate", parts)
    for tracker in evaluate.trackers:
        check_name(tracker if isinstance(tracker, str) else tracker["name"])
    private = None
    if "privacy" in table:
        private = validate(PrivacyOptions, sections["privacy"], "privacy", parts)
    kinds, own = partition.KINDS, partition.OwnDivision
    return Config(
        data=dataset,
        partition=_kind(kinds, PartitionOptions, sections["partition"], "partition", parts, own),
        net=_scaled(net, method, objective),
        method=method,
        method_name=name,
        train=options,
        objective=objective,
        engine=validate(EngineOptions, sections["engine"], "engine", parts),
        evaluate=evaluate,
        exchange=validate(ExchangeOptions, sections["exchange"], "exchange", parts),
        privacy=private,
        base=base,
        codes=parts.codes,
        allow=allow,
    )


def _section(table: Mapping[str, Any], name: str) -> dict[str, Any]:
    value = table.get(name, {})
    if not isinstance(value, dict):
        raise ConfigError(f"'{name}' must be a section, written [{name}]")
    return value


def _kind(
    kinds: Mapping[str, type[Model]],
    base: type[Model],
    table: Mapping[str, Any],
    where: str,
    parts: Parts,
    around: type[Model] | None = None,
) -> Model:
    """The options of a section whose `kind` says which class they are of: one of ours, or one's own, or where
    a function does, the class `around` it."""
    kind = table["kind"]
    if named(kind):
        code = parts.find(kind, f"{where}.kind")
        if around is not None and callable(code) and not isinstance(code, type):
            return validate(around, table, where, parts)
        if not (isinstance(code, type) and issubclass(code, base)):
            raise ConfigError(f"{where}.kind: '{kind}' is not a class that builds on {base.__name__}")
        if missing := sorted(getattr(code, "__abstractmethods__", ())):
            raise ConfigError(f"{where}.kind: the class '{kind}' has no '{missing[0]}'")
        return validate(code, table, where, parts)
    if not isinstance(kind, str) or kind not in kinds:
        raise ConfigError(f"{where}.kind: " + unknown("kind", str(kind), kinds) + ", or FILE.py:Class")
    return validate(kinds[kind], table, where, parts)


def _method(table: dict[str, Any], parts: Parts) -> tuple[str, Method]:
    name = str(table.pop("name"))
    cls = look_up(name, parts)
    preset = str(table.pop("preset", ""))
    if preset and preset not in cls.presets:
        raise ConfigError("method.preset: " + unknown(f"preset of '{name}'", preset, cls.presets))
    fields = {**cls.presets.get(preset, {}), **table}
    return name, validate(cls, fields, "method", parts, also=("name", "preset"))


def _check_views(options: TrainOptions, name: str, method: Method) -> None:
    """Refuse views nobody knows, and fewer of them than the method sees of every image."""
    views = options.views or method.views
    for view in views:
        if view not in options.known_views:
            raise ConfigError("train.views: " + unknown("view", view, VIEWS) + ", or FILE.py:name")
    if len(views) < len(method.views):
        own = ", ".join(f'"{view}"' for view in method.views)
        raise ConfigError(
            f"train.views: '{name}' sees {len(method.views)} views of every image and {[*views]} has "
            f"{len(views)}: set train.views = [{own}], or leave it out"
        )


def recommended(method: Method | type[Method], multi: bool) -> dict[str, Any]:
    """What a method recommends for [train]; an objective only where it is for the labels that the data has.

    Some data does not say before it is read; then a method that is for several labels only knows better.
    """
    task = "multi" if multi else "single"

    def fits(key: str, value: Any) -> bool:
        return key != "objective" or task in parse_objective(value).tasks or task not in method.tasks

    return {key: value for key, value in method.recommends.items() if fits(key, value)}


def departures(config: Config) -> list[str]:
    """A line for every key of [train] that is not as the method recommends it, or as the published weights
    of the network need it."""
    lines = []
    for key, value in recommended(config.method, config.multi).items():
        wanted, chosen = spelt(key, value), spelt(key, config.setting(key))
        if wanted != chosen:
            text = f"{key} = {chosen} as the config says; the method recommends {wanted}"
            lines.append(f"{config.method_name}: {text}")
    known, normalise = NETS.get(config.net.name), config.train.augment.normalise
    if known is not None and config.net.weights is not None and normalise != known.normalise:
        text = f"augment.normalise = {json.dumps(normalise)}; the published weights were trained with "
        lines.append(f'{config.net.name}: {text}"{known.normalise}"')
    return lines


def spelt(key: str, value: Any) -> str:
    """A value of [train] as TOML, an objective in its shortest form."""
    return objective_of(value, multi=False).toml if key == "objective" else json.dumps(value)


def objective_of(value: Any, multi: bool, parts: Parts | None = None) -> ObjectiveOptions:
    """The base loss that `train.objective` means; none is the plain one of the task. `parts` is where code is
    found."""
    if value is None:
        value = "bce" if multi else "cross_entropy"
    try:
        return parse_objective(value, parts)
    except ConfigError as error:
        text = str(error).removeprefix("train.objective: ")  # code that is not found says its place
        where = "train." if text.startswith("objective") else "train.objective: "
        raise type(error)(where + text) from None


def _only_multi(objective: Any, parts: Parts | None = None) -> bool:
    """Whether an objective is there and is for several labels per image only."""
    return objective is not None and objective_of(objective, multi=False, parts=parts).tasks == ("multi",)


def _scaled(net: NetOptions, method: Method, objective: ObjectiveOptions) -> NetOptions:
    """The net with its cosine head on the scale that the base loss counts on, for training and prediction."""
    if net.head != "cosine":
        if net.scale is not None:
            raise ConfigError(
                'net.scale is the factor of a cosine head: set net.head = "cosine", or leave it out'
            )
        return net
    scale = method.base_loss(objective).scale
    if scale is None:
        return net
    if net.scale not in (None, scale):
        raise ConfigError(
            f"net.scale is {net.scale:g}, the base loss counts on {scale:g}: leave net.scale out"
        )
    return net.model_copy(update={"scale": scale})


def _plain_objective(objective: ObjectiveOptions) -> Any:
    parts = [part.model_dump(mode="json", exclude_none=True) for part in objective.parts]
    return parts[0] if len(parts) == 1 else parts


def validate(
    cls: type[Model],
    table: Mapping[str, Any],
    where: str,
    parts: Parts | None = None,
    also: Sequence[str] = (),
) -> Model:
    """The options, or one sentence about the first thing that is wrong; `parts` is where code is found."""
    try:
        return cls.model_validate(dict(table), context=context(parts) if parts else None)
    except ValidationError as error:
        first = first_mistake(error)
    place = ".".join([where, *(str(part) for part in first["loc"])])
    if first["type"] == "extra_forbidden":
        owner, *rest = _owner(cls, first["loc"][:-1]), first["loc"][-1]
        valid = [*owner.model_fields, *(also if owner is cls else ())]
        guess = nearest(str(rest[-1]), valid)
        hint = f"did you mean '{guess}'? " if guess else ""
        raise ConfigError(f"unknown key '{place}': {hint}valid: {', '.join(sorted(valid))}")
    if first["type"] == "missing":
        raise ConfigError(f"'{place}' is missing: set it in the config")
    value = first["input"]
    hint = ""
    if first["type"] == "literal_error":
        expected = first["ctx"]["expected"].replace(" or ", ",").split(",")
        guess = nearest(str(value), [text.strip().strip("'") for text in expected])
        hint = f" (did you mean '{guess}'?)" if guess else ""
    elif first["loc"] and first["loc"][-1] in offable(_owner(cls, first["loc"][:-1])):
        hint = f', or "{NONE}" to do without'
    message = first["msg"].removeprefix("Value error, ")
    message = message[:1].lower() + message[1:]
    shown = "" if isinstance(value, dict) else f" is {json.dumps(value, default=str)}:"
    raise ConfigError(f"'{place}'{shown} {message}{hint}")


def _owner(cls: type[BaseModel], loc: Sequence[Any]) -> type[BaseModel]:
    """The options class a nested key belongs to."""
    for part in loc:
        annotation = cls.model_fields[str(part)].annotation if str(part) in cls.model_fields else None
        for one in (annotation, *get_args(annotation)):
            if isinstance(one, type) and issubclass(one, BaseModel):
                cls = one
    return cls
