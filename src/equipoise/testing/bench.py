"""One method under test: its federations, and the runs that several checks look at."""

from __future__ import annotations

import importlib.util
import inspect
import os
import random
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import replace
from functools import cached_property
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
import torch

from equipoise import engine, running, seeds
from equipoise.config import Config, recommended, resolve
from equipoise.data.samples import Task
from equipoise.engine import Engine, Question, Serial
from equipoise.engine import host as hosts
from equipoise.errors import ConfigError, SiteError
from equipoise.exchange import Ledger
from equipoise.locate import OF_FILE, Code
from equipoise.methods import METHODS, Method, find
from equipoise.names import unknown
from equipoise.server import Checkpoints
from equipoise.site import Store
from equipoise.testing.federations import ORDINARY, Home, home, tables
from equipoise.testing.traces import Tap, Trace, raw, rejected
from equipoise.tree import flatten
from equipoise.trust import remember

ROUNDS = 2
BATCH = 8
SEED = 7


class Bench:
    """One method under test: its federations, and the runs that several checks look at."""

    def __init__(
        self, method: str | type[Method], options: Mapping[str, Any] | None = None, task: Task | None = None
    ) -> None:
        if isinstance(method, str):
            # Found once: a file that is read anew for every run would hide state that its class keeps.
            self.name, self.cls = method, find(method, Path.cwd())
        else:
            self.name, self.cls = _name(method), method
        self.codes = {} if self.name in METHODS else {self.name: _code(self.name)}
        fields = dict(options or {})
        preset = fields.pop("preset", None)
        if preset is not None and preset not in self.cls.presets:
            raise ConfigError(unknown(f"preset of '{self.name}'", str(preset), self.cls.presets))
        self.options = {**self.cls.presets.get(preset or "", {}), **fields}
        self.task: Task = task or self.cls.tasks[0]
        self._home = Home()
        self._count = 0
        self._ledgers: dict[str, Ledger] = {}

    def method(self, **changes: Any) -> Method:
        """The method with the options under test."""
        return self.cls(**{**self.options, **changes})

    def config(
        self, sites: Mapping[str, Sequence[int]] = ORDINARY, task: Task | None = None, **train: Any
    ) -> Config:
        """A tiny run of the method."""
        chosen = {"rounds": ROUNDS, "batch_size": BATCH, "lr": 0.01, "seed": SEED} | train
        wanted = recommended(self.cls, (task or self.task) == "multi")
        table = tables(sites, task or self.task) | {
            "net": {"name": "small-cnn", "dropout": 0.0},
            "method": {"name": "fedavg"},
            "engine": {"device": "cpu"},
            "evaluate": {"every": ROUNDS},
            "train": {**wanted, **chosen},
        }
        return replace(resolve(table), method=self.method(), method_name=self.name, codes=self.codes)

    def run(
        self,
        config: Config,
        folder: Path | None = None,
        *,
        watch: Callable[[str, dict[str, Any]], None] | None = None,
        reverse: bool = False,
        lose: Callable[[Question, str], bool] = lambda question, site: False,
    ) -> Trace:
        """Run and gather what is left behind."""
        folder = folder or self.new_folder()
        taps: list[Tap] = []

        def wrap(engine: Engine) -> Engine:
            if not isinstance(engine, Serial):
                return engine
            taps.append(Tap(engine, reverse, lose))
            return taps[0]

        try:
            with mock.patch.object(running, "probe", self._probe(config.digest)):
                result = running.run(config, folder, watch=watch, wrap=wrap)
        except SiteError as error:
            raise AssertionError("; ".join([str(error), *rejected(folder)])) from error
        newest = Checkpoints(folder / "checkpoints").newest()
        versions = newest[1].versions if newest else {}
        tensors = flatten(result.server, "server/")
        for site, version in versions.items():
            tensors |= {
                f"{site}/{name}": x for name, x in Store(folder / "sites").read(site, version).items()
            }
        tap = taps[0] if taps else None
        return Trace(result, tensors, tuple(tap.answers) if tap else (), config, tap)

    def new_folder(self) -> Path:
        self._count += 1
        return self._home.folder / f"run-{self._count}"

    def _probe(self, config: str) -> Callable[..., Ledger]:
        """What a run will exchange, measured once for runs of the same config."""
        usual = engine.probe

        def probe(*arguments: Any) -> Ledger:
            if config not in self._ledgers:
                self._ledgers[config] = usual(*arguments)
            return self._ledgers[config]

        return probe

    @property
    def ordinary(self) -> Trace:
        """The run that most checks compare with, made once."""
        return self._made[0]

    @property
    def changed(self) -> list[str]:
        """What that run changed of the method, object or class."""
        return self._made[1]

    @cached_property
    def _made(self) -> tuple[Trace, list[str]]:
        config = self.config()
        before = _snapshot(config.method)
        trace = self.run(config)
        after = _snapshot(config.method)
        return trace, [name for name in before | after if before.get(name) != after.get(name)]

    @cached_property
    def repeated(self) -> bool:
        """Whether a run that differs in everything that must not matter ends with the same bits.

        It is the second one, its sites are asked in reverse order, and torch's generator is seeded otherwise
        for them. Where it is as the first, the rules that name these one by one are kept; where it is not,
        they find out which.
        """
        first, before = self.ordinary, global_states()
        with otherwise_seeded():
            again = self.run(self.config(), reverse=True)
        return global_states() == before and first.difference(again) is None

    @contextmanager
    def own_cache(self) -> Iterator[None]:
        """Decoded images go to our folder, not to the user's cache."""
        with mock.patch.dict(os.environ, EQUIPOISE_CACHE=str(home().folder / "cache")):
            yield


def _name(cls: type[Method]) -> str:
    """A name under which a worker process finds the class."""
    known = {method: name for name, method in METHODS.items()}
    if cls in known:
        return known[cls]
    from_file = cls.__module__.startswith(OF_FILE) or "." in cls.__qualname__
    if not from_file and importlib.util.find_spec(cls.__module__.partition(".")[0]):
        return f"{cls.__module__}:{cls.__name__}"
    return f"{inspect.getfile(cls)}:{cls.__name__}"


def _code(name: str) -> Code:
    """The code of a method of one's own, noted as trusted."""
    code = Code(name, Path.cwd(), "method.name")
    remember(code)
    return code


def global_states() -> dict[str, Any]:
    """The global generators of torch, numpy and Python, as they are now."""
    numpy = np.random.get_state(legacy=False)
    return {"torch": raw(torch.get_rng_state()), "numpy": repr(numpy), "Python": random.getstate()}


def otherwise_seeded() -> AbstractContextManager[Any]:
    """Inside a question torch's generator is seeded, for dropout layers: here with another number."""
    isolated = seeds.isolated

    def elsewhere(seed: int, device: torch.device) -> AbstractContextManager[None]:
        return isolated(seed + 1, device)

    return mock.patch.object(hosts, "isolated", elsewhere)


def _snapshot(method: Method) -> dict[str, str]:
    """All a method object and its classes hold, as text."""
    values = {name: repr(value) for name, value in vars(method).items()}
    for cls in type(method).__mro__:
        if issubclass(cls, Method):
            values |= {
                f"{cls.__name__}.{name}": repr(value)
                for name, value in vars(cls).items()
                if not name.startswith(("__", "_abc_", "model_"))
            }
    return values
