"""The model a run starts from: the global predictor of the round that another run selected.

The config names the run's folder, and holds the digest of its state: a source that has changed since is
noticed when the run is resumed. Only whoever starts a run reads the source; a site never does.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from pydantic import ValidationError
from torch import Tensor

from equipoise.blueprint import Blueprint
from equipoise.errors import ConfigError, StorageError, WeightsError
from equipoise.exchange import unseal
from equipoise.exchange.codec import CodecError
from equipoise.locate import Parts, context
from equipoise.nets import Net, state
from equipoise.nets.weights import LARGEST
from equipoise.opening import read_regular
from equipoise.run_folder import BLUEPRINT, CHECKPOINTS, CONFIG, FROZEN, RESULT, RunFolder
from equipoise.server import Checkpoints
from equipoise.server.checkpoint import Header
from equipoise.site import TrainOptions
from equipoise.text import parse_toml
from equipoise.tree import Tree, flat_digest
from equipoise.trust import of_folder

BODY = "body."
"""how the names of the tensors begin that are not a head's"""


# A run folder, read back ------------------------------------------------------------------------------------


def parts_of_run(run: RunFolder, trust: bool = False) -> Parts:
    """Where the code that a run names is found; it is run only if this user has run it before, or trusts
    it."""
    base = Path(str(parse_toml(run.text(CONFIG)).get("base", "")))
    return Parts(base, of_folder(run, trust))


def read_blueprint(run: RunFolder, parts: Parts) -> Blueprint:
    """The blueprint of a run; code that it names is found in `parts`."""
    try:
        return Blueprint.model_validate(run.read(BLUEPRINT), context=context(parts))
    except ValidationError as error:
        raise StorageError(f"{run / BLUEPRINT} is damaged: {run.fix(BLUEPRINT)}") from error


def read_frozen(run: RunFolder, blueprint: Blueprint) -> dict[str, Tensor]:
    """The tensors of a run's network that never change; none without `net.freeze`."""
    if not blueprint.frozen:
        return {}
    try:
        _, tensors = unseal(read_regular(run / FROZEN, LARGEST))
    except FileNotFoundError as error:
        raise StorageError(f"{run} has no {FROZEN}: `equipoise resume {run}` writes it") from error
    except (OSError, CodecError) as error:
        raise StorageError(f"{run / FROZEN} is damaged: {run.fix(FROZEN)}") from error
    if flat_digest(tensors) != blueprint.frozen_sha256:
        raise StorageError(f"{run / FROZEN} is not of this run: {run.fix(FROZEN)}")
    return tensors


def read_result(run: RunFolder) -> dict[str, Any]:
    """What a finished run came to."""
    if not run.has(RESULT):
        raise StorageError(f"{run} has no {RESULT}: finish the run with {run.again}")
    return run.read(RESULT)


def read_selected(run: RunFolder, rounds: list[int]) -> tuple[Tree, Header]:
    """The coordinator's state after the reported round, the last of several; without any, the newest."""
    checkpoints = Checkpoints(run / CHECKPOINTS, make=False)
    checkpoint = checkpoints.load(rounds[-1]) if rounds else checkpoints.newest()
    if checkpoint is None:
        raise StorageError(f"{run} has no checkpoint: finish the run with {run.again}")
    return checkpoint


# What another run starts from -------------------------------------------------------------------------------


def settled(train: TrainOptions, base: Path) -> TrainOptions:
    """The options with the digest of the model they start from, if they name one and do not say it."""
    if train.init is None:
        if train.init_sha256 or train.init_parts:
            raise ConfigError("train.init_parts and train.init_sha256 are about train.init: name a run there")
        return train
    if train.init_sha256 is not None:
        return train
    return train.model_copy(update={"init_sha256": _read(train.init, base)[2].state})


def chosen(net: Net, blueprint: Blueprint, train: TrainOptions, base: Path) -> dict[str, Tensor]:
    """The tensors of a network that `train.init` sets, with their values; none without it."""
    if train.init is None:
        return {}
    run, server, header = _read(train.init, base)
    if train.init_sha256 not in (None, header.state):
        raise StorageError(
            f"train.init: the model of {run} has the sha256 {header.state}, and the config says "
            f"{train.init_sha256}: bring that model back, or start a new run without train.init_sha256"
        )
    source, body = read_blueprint(run, parts_of_run(run)), train.init_parts == "body"
    if not body and source.classes != blueprint.classes:
        raise WeightsError(
            f"train.init: {run} tells apart {', '.join(source.classes)}, and this run "
            f'{", ".join(blueprint.classes)}: set train.init_parts = "body" to start with a new head'
        )
    tensors: dict[str, Tensor] = {**source.method.serving(server)["model"], **read_frozen(run, source)}
    mine = state(net)
    wanted = [name for name in mine if name.startswith(BODY) or (not body and name in tensors)]
    for name in wanted:
        theirs = tuple(tensors[name].shape) if name in tensors else None
        if theirs != tuple(mine[name].shape):
            raise WeightsError(_other(run, name, theirs, tuple(mine[name].shape), source))
    if not body and all(name.startswith(BODY) for name in wanted):
        raise WeightsError(
            f"train.init: the model of {run} ({source.method_name}) shares no head with this one: set "
            f'train.init_parts = "body" to start with a new head'
        )
    return {name: tensors[name] for name in wanted}


def _read(name: str, base: Path) -> tuple[RunFolder, Tree, Header]:
    """A run folder and the state of its selected round."""
    run = RunFolder(base / name)
    if not run.has(CONFIG):
        raise ConfigError(f"train.init: {run} is not a run folder: name one that `equipoise run` has made")
    return run, *read_selected(run, read_result(run)["selected_rounds"])


def _other(
    run: RunFolder, name: str, theirs: tuple[int, ...] | None, mine: tuple[int, ...], source: Blueprint
) -> str:
    """Why a model does not fit, by the first tensor that differs."""
    shape = "×".join(map(str, mine))
    what = "is not in it" if theirs is None else f"is {'×'.join(map(str, theirs))} there and {shape} here"
    return (
        f"train.init: the model of {run} ({source.net.name}, {source.method_name}) does not fit: '{name}' "
        f"{what}; start from a run with the same network"
    )
