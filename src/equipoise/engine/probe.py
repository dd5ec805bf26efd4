"""The ledger by trial: a method's round, asked of two small generated sites, shows every leaf that leaves.

The generated sites hold noise; they differ in size, so a length that depends on a site's data varies visibly.
"""

from __future__ import annotations

import tempfile
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from equipoise.blueprint import HERE, Blueprint, Built, Place
from equipoise.data.samples import Samples, Task
from equipoise.engine.host import Host
from equipoise.errors import MethodError
from equipoise.exchange import Ask, Bounds, Ledger, Line, Question, decode_upload
from equipoise.exchange.ledger import entries, fractions, merge
from equipoise.leaves import Mean, Upload
from equipoise.methods.base import Method
from equipoise.nets import load
from equipoise.partition import Holding
from equipoise.seeds import numpy_generator
from equipoise.site import SiteData, Store
from equipoise.site.figures import GROUPS
from equipoise.tree import Tree

SIZES = {"probe-a": 4, "probe-b": 5}


def made_up(
    classes: tuple[str, ...],
    task: Task,
    shape: tuple[int, int, int],
    labelled: bool,
    device: torch.device = torch.device("cpu"),
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
        sites[name] = SiteData(samples, Holding(name, index, index, index, mask), device)
    return sites


class Trial(Ask):
    """A conversation with generated sites that writes down what it saw.

    It speaks of as many sites as the real round has, since shapes may depend on that; all but two of them
    drop out. Where the real round has one site, the second generated one is looked at but not counted.
    `everyone` is how many the federation has.
    """

    def __init__(self, host: Host, round: int, lines: list[Line], sites: int, everyone: int) -> None:
        names = (*SIZES, *(f"absent-{i}" for i in range(everyone - len(SIZES))))[:everyone]
        options = host.options
        rounds, seed = options.rounds, options.seed
        super().__init__(sites=names[:sites], everyone=names, round=round, rounds=rounds, seed=seed)
        self._host, self._lines = host, lines
        classes = len(next(iter(host.sites.values())).classes)
        images = {site: dict.fromkeys(("train", "validation", "test"), n) for site, n in SIZES.items()}
        self.passes = 0
        """passes over a site's images in private steps so far"""
        self._bounds = Bounds(host.method.limits(classes, options.epochs), images)

    def _answers(self, question: Question, sent: Mapping[str, Tensor]) -> Iterator[tuple[str, bool, Upload]]:
        leaves, passes, reads, fine = [], 0, set[str](), set[str]()
        for site in SIZES:
            extra = question.each.get(site if site in question.asked else question.asked[0])
            header, upload = decode_upload(self._host.answer(question.call(site), question.payload, extra))
            if problem := self._bounds.problem(site, question.name, upload):
                raise MethodError(
                    f"an honest answer to '{question.name}' would be left out ({problem}): mend the method's "
                    f"limits()"
                )
            leaves.append(entries(upload))
            fine |= fractions(upload) | self._weighed(upload)
            if self._host.blueprint.privacy is not None:
                passes, reads = self._host.trace.passes, reads | self._host.trace.reads
            if site in question.asked:
                yield site, header["wrote"], upload
            elif header["wrote"] and question.write is not None:
                self.versions[site] = question.write
        size = len(question.payload) + max(map(len, question.each.values()), default=0)
        self.passes += passes
        read = tuple(sorted(reads))
        line = Line(question.name, self.round, merge(leaves), size, passes, read, fine=frozenset(fine))
        for i, seen in enumerate(self._lines):
            if _alike(line, seen):
                # The ending is tried before evaluation, which asks in every round.
                since = min(seen.since, line.since)
                self._lines[i] = replace(seen, since=since, fine=seen.fine | line.fine)
                return
        self._lines.append(line)

    def _weighed(self, upload: Upload) -> set[str]:
        """The means of a method that weighs sites by a rule of its own: a generated site may get a whole
        number where others get fractions."""
        if type(self._host.method).weight is Method.weight:
            return set()
        return {name for name, leaf in upload.items() if isinstance(leaf, Mean)}


def _alike(line: Line, seen: Line) -> bool:
    """Whether a question has the same answer as before, and reads the same for it."""
    return replace(line, since=seen.since, down_bytes=seen.down_bytes) == seen


def probe(
    blueprint: Blueprint,
    built: Built,
    everyone: int,
    participants: int,
    exact: bool,
    place: Place = HERE,
    per_site: bool = True,
) -> Ledger:
    """The ledger of a run with so many sites, of which so many take part in a round.

    It goes through each phase of the method, its finish, and evaluation. The networks are left as they were.
    """
    method, options, lines = blueprint.method, blueprint.train, list[Line]()
    private = blueprint.privacy is not None
    # Private passes are counted, so none may be left out.
    changes = {"epochs": options.epochs if private else min(1, options.epochs), "batch_size": 4}
    small = blueprint.model_copy(update={"train": options.model_copy(update=changes)})
    channels, height, width = blueprint.input.shape
    shape = (height, width, channels)
    sites = made_up(blueprint.classes, blueprint.task, shape, blueprint.partial, place.device)
    with tempfile.TemporaryDirectory() as folder:
        trial = Host(small, sites, Store(Path(folder)), replace(place, cache=None), built)
        trial.noise = dict.fromkeys(SIZES, 1.0)
        server, training = blueprint.first(built.net), list[tuple[int, int]]()
        for round in method.phases(options.rounds):
            ask = Trial(trial, round, lines, participants, everyone)
            server = method.round(server, ask)
            training.append((round, ask.passes))
        end = Trial(trial, options.rounds, lines, everyone, everyone)
        server = method.finish(server, end)
        ask = Trial(trial, 0, lines, everyone, everyone)
        flags: Tree = {"own": torch.tensor(True)} | ({"exact": torch.tensor(True)} if exact else {})
        if not per_site:
            flags[GROUPS] = torch.tensor(blueprint.shots)
        for tree in method.predictors(server, ask).values():
            ask(method.evaluate, server=tree, **flags)
        load(built.net, trial.initial)
    return Ledger(tuple(lines), private, tuple(training), end.passes)
