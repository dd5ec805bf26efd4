"""The ledger by trial: a method's round, asked of two small made-up sites, shows every leaf that would leave.

The made-up sites hold noise; they differ in size, so a length that depends on a site's data is seen to vary.
"""

from __future__ import annotations

import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch

from equipoise.data.samples import Samples, Task
from equipoise.engine.host import Host
from equipoise.engine.question import Question
from equipoise.errors import MethodError
from equipoise.exchange import Answers, Bounds, Ledger, Line, Reduction, decode_upload, pack
from equipoise.exchange.ledger import entries, merge
from equipoise.partition import Holding
from equipoise.seeds import generator, numpy_generator
from equipoise.site import SiteData, Store
from equipoise.tree import Tree, flatten

SIZES = {"probe-a": 4, "probe-b": 5}


def made_up(
    classes: tuple[str, ...], task: Task, shape: tuple[int, int, int], labelled: bool
) -> dict[str, SiteData]:
    """Two sites of noise."""
    draw, sites = numpy_generator(0, "probe"), {}
    for name, n in SIZES.items():
        y = np.arange(n) % len(classes)
        samples = Samples(
            images=draw.integers(0, 256, (n, *shape), dtype=np.uint8),
            labels=y if task == "single" else np.eye(len(classes), dtype=np.float32)[y],
            classes=classes,
            task=task,
            ids=np.arange(n).astype(str),
            fingerprint="",
        )
        index = np.arange(n)
        mask = (np.arange(len(classes)) % 2 == n % 2) if labelled else None
        sites[name] = SiteData(samples, Holding(name, index, index, index, mask), torch.device("cpu"))
    return sites


class Trial:
    """An `ask` that answers from made-up sites and writes down what it saw.

    It speaks of as many sites as the real round has, since shapes may depend on that; all but two of them
    drop out. Where the real round has one site, the second made-up one is looked at but not counted.
    `everyone` is how many the federation has.
    """

    def __init__(self, host: Host, round: int, lines: list[Line], sites: int, everyone: int) -> None:
        self.host, self.round, self.rounds = host, round, host.options.rounds
        self._everyone = (*SIZES, *(f"absent-{i}" for i in range(everyone - len(SIZES))))[:everyone]
        self.sites = self._everyone[:sites]
        self._lines = lines
        self._versions: dict[str, str] = {}
        classes = len(next(iter(host.sites.values())).classes)
        images = {site: dict.fromkeys(("train", "validation", "test"), n) for site, n in SIZES.items()}
        self._bounds = Bounds(host.method.limits(classes, host.options.epochs), images)

    def generator(self, *purpose: object) -> torch.Generator:
        return generator(self.host.options.seed, self.round, "server", *purpose)

    def __call__(
        self, question: Any, *, each: Mapping[str, Tree] | None = None, everyone: bool = False, **down: Any
    ) -> Answers:
        extra = {site: pack({}, flatten(tree)) for site, tree in (each or {}).items()}
        write, sites = (None, self._everyone) if everyone else (f"{self.round}.0", self.sites)
        asked = Question(question.__name__, self.round, pack({}, flatten(down)), extra, self._versions, write)
        reduction, found = Reduction(), []
        for site in SIZES:
            given = extra.get(site if site in sites else sites[0])
            header, upload = decode_upload(self.host.answer(asked.call(site), asked.payload, given))
            if problem := self._bounds.problem(site, asked.name, upload):
                raise MethodError(
                    f"an honest answer to '{asked.name}' would be left out ({problem}): mend the method's "
                    f"limits()"
                )
            found.append(entries(upload))
            if site in sites:
                reduction.add(site, upload)
            if header["wrote"] and write is not None:
                self._versions[site] = write
        size = len(asked.payload) + max(map(len, extra.values()), default=0)
        line = Line(asked.name, self.round, merge(found), size)
        if not any(line.question == seen.question and line.up == seen.up for seen in self._lines):
            self._lines.append(line)
        return reduction.result(sites)


def probe(host: Host, participants: int, exact: bool) -> Ledger:
    """The ledger of a run of this host's sites: each phase of the method, its finish, and evaluation."""
    real = next(iter(host.sites.values()))
    shape = real.splits["train"].images.shape[1:]
    method, lines, everyone = host.method, list[Line](), len(host.sites)
    small = host.options.model_copy(update={"epochs": min(1, host.options.epochs), "batch_size": 4})
    with tempfile.TemporaryDirectory() as folder:
        trial = host.elsewhere(
            made_up(real.classes, real.task, shape, real.labelled is not None), small, Store(Path(folder))
        )
        server = trial.init()
        for round in method.phases(host.options.rounds):
            server = method.round(server, Trial(trial, round, lines, participants, everyone))
        end = Trial(trial, host.options.rounds, lines, everyone, everyone)
        server = method.finish(server, end)
        ask = Trial(trial, 0, lines, everyone, everyone)
        flags: Tree = {"own": torch.tensor(True)} | ({"exact": torch.tensor(True)} if exact else {})
        for tree in method.predictors(server, ask).values():
            ask(method.evaluate, server=tree, **flags)
    return Ledger(tuple(lines))
