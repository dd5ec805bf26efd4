"""Does a method keep the rules? A suite of small checks for the methods in this package and for one in your
own file.

    from equipoise.testing import check_method
    check_method("my_method.py:Mine")

or, as tests of their own:

    @pytest.mark.parametrize(("name", "check"), method_checks("my_method.py:Mine"))
    def test_mine(name, check):
        check()

Every check trains the small CNN on a few dozen made-up images, in a temporary folder, on the CPU. A failure
is an AssertionError that names the method, the check and what differed. `CHECKS` has them all; the docstring
of each is its rule.
"""

from __future__ import annotations

import ast
import csv
import importlib.util
import inspect
import io
import json
import math
import os
import random
import re
import shutil
import sys
import tempfile
import weakref
import zipfile
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, field, replace
from fnmatch import fnmatchcase
from functools import cached_property
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
import torch
from PIL import Image
from pydantic import ValidationError
from torch import Tensor

from equipoise.config import Config, recommended, resolve
from equipoise.data.samples import Task
from equipoise.engine import Engine, Question, Serial
from equipoise.engine import host as hosts
from equipoise.errors import ConfigError, MethodError, SiteError
from equipoise.evaluate import ENDING
from equipoise.exchange import Ledger, decode_upload
from equipoise.exchange.ledger import Entry, entries
from equipoise.locate import OF_FILE, Code
from equipoise.methods import METHODS, Method, find
from equipoise.names import unknown
from equipoise.running import Result, make_ledger, run
from equipoise.seeds import numpy_generator
from equipoise.server import Checkpoints
from equipoise.server.journal import read as read_journal
from equipoise.setup import material
from equipoise.site import Store
from equipoise.tree import Tree, flatten
from equipoise.trust import remember

CLASSES = 3
SIZE = 16
ROUNDS = 2
BATCH = 8
SEED = 7

ORDINARY: dict[str, tuple[int, ...]] = {
    "north": (0, 0, 0, 0, 0, 1, 1, 1, 1, 2, 2, 2),
    "south": (0, 0, 1, 1, 1, 1, 2, 2),
    "west": (0, 0, 1, 1, 2, 2, 2, 2, 2, 2),
}
MISSING_CLASS = {"whole": (0, 0, 0, 1, 1, 1, 2, 2), "without": (0, 0, 0, 0, 1, 1, 1, 1)}
ONE_SAMPLE = {"many": (0, 0, 1, 1, 2, 2), "one": (1,)}
LAST_OF_ONE = {
    "even": (0, 0, 0, 1, 1, 1, 2, 2),
    "odd": (0, 0, 0, 1, 1, 1, 2, 2, 2),
}  # the second: a batch of 8 and one more
OVERFIT = {"only": (0, 1, 2, 0) * 16}

STILL: dict[str, Any] = {
    **{"horizontal": False, "vertical": False, "rotation": 0.0, "crop": 1.0, "strong_crop": 1.0, "blur": 0.0},
    **{
        "operations": 0,
        "jitter": (0.0, 0.0, 0.0, 0.0),
        "jitter_share": 0.0,
        "grey_share": 0.0,
        "blur_share": 0.0,
    },
}
"""Views that leave images as they are, for a run that shall learn them by heart."""


# Federations without data -----------------------------------------------------------------------------------


def write_federation(
    folder: Path,
    train: Mapping[str, Sequence[int]],
    test: Mapping[str, Sequence[int]] | None = None,
    *,
    task: Task = "single",
    size: int = SIZE,
) -> dict[str, Any]:
    """Write exactly these sites with these labels into a folder; returns the `data` and `partition` tables of
    a config.

    `test` are the rows each site is validated and tested on; without it, its own training images. In a
    multi-label federation the given class is a finding, and every third image has the first finding too.
    """
    names = [f"c{c}" for c in range(CLASSES)]
    rows: list[dict[str, Any]] = []
    folder.mkdir(parents=True)
    with zipfile.ZipFile(folder / "images.zip", "w", zipfile.ZIP_STORED) as archive:
        for site, labels in train.items():
            held_out = labels if test is None else test[site]
            parts = {"train": labels, "validation": held_out, "test": held_out}
            for split, wanted in parts.items():
                for i, y in enumerate(wanted):
                    same = "train" if test is None else split
                    file = f"{site}-{same}-{i}.png"
                    if file not in archive.NameToInfo:
                        archive.writestr(zipfile.ZipInfo(file), _picture(y, size, site, same, i))
                    found = {y, 0} if i % 3 == 0 else {y}
                    row = {
                        "id": f"{site}-{split}-{i}",
                        "file": file,
                        "site": site,
                        "split": split,
                        "label": names[y],
                    }
                    rows.append(row | {name: int(c in found) for c, name in enumerate(names)})
    with open(folder / "rows.csv", "w", newline="") as table:
        writer = csv.DictWriter(table, list(rows[0]))
        writer.writeheader()
        writer.writerows(rows)
    label: dict[str, Any] = {"label": "label", "classes": names} if task == "single" else {"labels": names}
    data = {
        "kind": "csv",
        "path": str(folder / "rows.csv"),
        "images": str(folder / "images.zip"),
        "image_size": size,
    }
    return {
        "data": data | label | {"id": "id", "site": "site", "split": "split"},
        "partition": {"kind": "column"},
    }


def _picture(y: int, size: int, *purpose: object) -> bytes:
    """A PNG: stripes whose direction and colour are the class's, in noise."""
    draw = numpy_generator(0, "testing", *purpose)
    down, across = np.mgrid[0:size, 0:size]
    wave = np.sin((down * math.cos(y) + across * math.sin(y)) * 1.3 + draw.uniform(0, 2 * math.pi))
    pixels = 120 + 40 * wave[..., None] + 25 * np.eye(3)[y % 3] + draw.normal(0, 25, (size, size, 3))
    buffer = io.BytesIO()
    Image.fromarray(pixels.clip(0, 255).astype(np.uint8)).save(buffer, "PNG")
    return buffer.getvalue()


# What a run leaves behind -----------------------------------------------------------------------------------


@dataclass(frozen=True)
class Answer:
    """One answer as it left a site, and what the site kept to itself with it."""

    question: Question
    site: str
    data: bytes
    kept: Mapping[str, Tensor]


@dataclass
class Tap:
    """Stands between the loop and the serial engine: writes every answer down, can turn the order round and
    lose answers."""

    engine: Serial
    reverse: bool = False
    lose: Callable[[Question, str], bool] = field(default=lambda question, site: False)
    answers: list[Answer] = field(default_factory=list)

    def ask(self, question: Question, sites: Sequence[str]) -> Iterator[tuple[str, bytes]]:
        for site, data in self.engine.ask(question, list(reversed(sites)) if self.reverse else sites):
            store = self.engine.host.store
            wrote = question.write is not None and decode_upload(data)[0]["wrote"]
            self.answers.append(
                Answer(question, site, data, store.read(site, question.write or "") if wrote else {})
            )
            if not self.lose(question, site):
                yield site, data

    def close(self) -> None:
        self.engine.close()


@dataclass(frozen=True)
class Trace:
    """All that must be the same when a run is repeated, and the answers that were given on the way."""

    result: Result
    tensors: Mapping[str, Tensor]
    """the server tree and every site's private tree"""
    answers: tuple[Answer, ...]
    """none where sites ran in other processes"""
    config: Config
    tap: Tap | None

    def ledger(self) -> Ledger:
        """What the run said it would exchange."""
        if self.tap is None:
            raise AssertionError("a ledger is looked at where the sites run in this process")
        return make_ledger(self.config, self.tap.engine.host, material(self.config))

    def difference(self, other: Trace) -> str | None:
        """Where two runs part, or None where they agree to the bit."""
        if set(self.tensors) != set(other.tensors):
            return f"only one of the runs has '{min(set(self.tensors) ^ set(other.tensors))}'"
        for name, tensor in self.tensors.items():
            if not same_bits(tensor, other.tensors[name]):
                return f"'{name}' differs by up to {_distance(tensor, other.tensors[name]):.3g}"
        for mine, theirs in zip(self.result.history, other.result.history, strict=True):
            if json.dumps(mine, sort_keys=True) != json.dumps(theirs, sort_keys=True):
                keys = [key for key in mine if mine[key] != theirs.get(key)]
                return f"the metrics of round {mine['round']} differ in {', '.join(keys)}"
        return None


def same_bits(a: Tensor, b: Tensor) -> bool:
    """Same kind, shape and bits; other than `==`, a NaN equals itself and 0 does not equal -0."""
    return a.dtype == b.dtype and a.shape == b.shape and raw(a) == raw(b)


def raw(x: Tensor) -> bytes:
    """The bytes of a tensor."""
    return x.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy().tobytes()


def _distance(a: Tensor, b: Tensor) -> float:
    return float((a.double() - b.double()).abs().max()) if a.shape == b.shape and a.numel() else math.inf


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
        given = dict(options or {})
        preset = given.pop("preset", None)
        if preset is not None and preset not in self.cls.presets:
            raise ConfigError(unknown(f"preset of '{self.name}'", str(preset), self.cls.presets))
        self.options = {**self.cls.presets.get(preset or "", {}), **given}
        self.task: Task = task or self.cls.tasks[0]
        self.folder = Path(tempfile.mkdtemp(prefix="equipoise-check-"))
        weakref.finalize(self, shutil.rmtree, self.folder, ignore_errors=True)
        self._count = 0

    def method(self, **changes: Any) -> Method:
        """The method with the options under test."""
        return self.cls(**{**self.options, **changes})

    def table(
        self, sites: Mapping[str, Sequence[int]], task: Task | None = None, size: int = SIZE
    ) -> dict[str, Any]:
        """The data and partition of a federation, written when first asked for."""
        task = task or self.task
        where = "-".join([*sites, task, str(size)])
        stored = self.folder / "data" / where
        if not stored.exists():
            test = (
                None
                if sites is OVERFIT
                else {site: tuple(dict.fromkeys(labels)) for site, labels in sites.items()}
            )
            tables = write_federation(stored, sites, test, task=task, size=size)
            if task == "multi" and sites is ORDINARY:
                tables["partition"]["missing"] = 1  # every site leaves one class unlabelled
            (stored / "tables.json").write_text(json.dumps(tables))
        return json.loads((stored / "tables.json").read_text())

    def config(
        self, sites: Mapping[str, Sequence[int]] = ORDINARY, task: Task | None = None, **train: Any
    ) -> Config:
        """A tiny run of the method."""
        chosen = {"rounds": ROUNDS, "batch_size": BATCH, "lr": 0.01, "seed": SEED} | train
        wanted = recommended(self.cls, (task or self.task) == "multi")
        found = resolve(
            self.table(sites, task)
            | {
                "net": {"name": "small-cnn", "dropout": 0.0},
                "method": {"name": "fedavg"},
                "engine": {"device": "cpu"},
            }
            | {"train": {**wanted, **chosen}}
        )
        return replace(found, method=self.method(), method_name=self.name, codes=self.codes)

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
            result = run(config, folder, watch=watch, wrap=wrap)
        except SiteError as error:
            raise AssertionError("; ".join([str(error), *_rejected(folder)])) from error
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
        return self.folder / f"run-{self._count}"

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

    def sound(self, sites: Mapping[str, Sequence[int]]) -> None:
        """A run over these sites ends with finite numbers, and no answer was turned away."""
        trace = self.run(self.config(sites))
        _finite(trace)
        _nobody_lost(trace, sites)

    @contextmanager
    def own_cache(self) -> Iterator[None]:
        """Decoded images go to our folder, not to the user's cache."""
        with mock.patch.dict(os.environ, EQUIPOISE_CACHE=str(self.folder / "cache")):
            yield


def _name(cls: type[Method]) -> str:
    """A name under which a worker process finds the class."""
    known = {found: name for name, found in METHODS.items()}
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


def expect(condition: bool, otherwise: str) -> None:
    """Like `assert`, also under `python -O`."""
    if not condition:
        raise AssertionError(otherwise)


def _same(a: Trace, b: Trace, otherwise: str) -> None:
    difference = a.difference(b)
    expect(difference is None, f"{otherwise}: {difference}")


def _finite(trace: Trace) -> None:
    for name, tensor in trace.tensors.items():
        expect(
            not tensor.is_floating_point() or bool(torch.isfinite(tensor).all()), f"'{name}' is not finite"
        )
    for row in trace.result.history:
        expect(
            not re.search(r"\b(NaN|Infinity)\b", json.dumps(row)),
            f"a metric of round {row['round']} is not finite",
        )


def _rejected(folder: Path) -> list[str]:
    """Why answers were turned away."""
    return [
        line["reason"] for line in read_journal(folder / "journal.jsonl")[0] if line["event"] == "rejected"
    ]


def _nobody_lost(trace: Trace, sites: Iterable[str]) -> None:
    reasons = _rejected(trace.result.folder)
    expect(not reasons, f"an answer was turned away: {reasons[0] if reasons else ''}")
    for row in trace.result.history:
        lost = sorted(set(sites) - set(row["sites"]))
        expect(not lost, f"site '{lost[0] if lost else ''}' was left out of round {row['round']}")


# The checks -------------------------------------------------------------------------------------------------


def check_documented(bench: Bench) -> None:
    """The module says what the method is from and what leaves the site; every hyper-parameter says what it
    does."""
    cls = bench.cls
    source = bench.name.rpartition(":")[0]
    if source.endswith(".py"):
        text = ast.get_docstring(ast.parse((Path.cwd() / source).read_text())) or ""
    else:
        text = sys.modules[cls.__module__].__doc__ or ""
    expect("Leaves the site:" in text, "the module docstring has no line 'Leaves the site: …'")
    expect(bool(cls.paper), "the class does not say which `paper` it is from")
    cited = re.match(r"(\w[\w'-]*).*\b((?:19|20)\d\d)\b", cls.paper)
    if cited:
        author, year = cited.groups()
        expect(author in text and year in text, f"the module docstring does not cite {author} … {year}")
    bare = [name for name, about in cls.model_fields.items() if not about.description]
    expect(not bare, f"the hyper-parameter '{bare[0] if bare else ''}' has no docstring")


def check_frozen(bench: Bench) -> None:
    """A method holds hyper-parameters and nothing else: none can be assigned, and a run changes neither
    object nor class."""
    method = bench.method()
    for name in (*type(method).model_fields, "anything"):
        try:
            setattr(method, name, getattr(method, name, 1))
        except (ValidationError, ValueError, AttributeError, TypeError):
            continue
        expect(False, f"'{name}' can be assigned after the method was made")
    expect(not bench.changed, f"a run changes '{bench.changed[0] if bench.changed else ''}' of the method")


def _snapshot(method: Method) -> dict[str, str]:
    """All a method object and its classes hold, as text."""
    found = {name: repr(value) for name, value in vars(method).items()}
    for cls in type(method).__mro__:
        if issubclass(cls, Method):
            found |= {
                f"{cls.__name__}.{name}": repr(value)
                for name, value in vars(cls).items()
                if not name.startswith(("__", "_abc_", "model_"))
            }
    return found


def check_same_seed(bench: Bench) -> None:
    """The same seed gives the same bits."""
    _same(bench.ordinary, bench.run(bench.config()), "a second run with the same seed is not the same")


def check_other_seed(bench: Bench) -> None:
    """Another seed gives other bits."""
    other = bench.run(bench.config(seed=SEED + 1))
    learnt = [name for name in bench.ordinary.tensors if not name.endswith("/steps")]
    moved = any(
        not same_bits(bench.ordinary.tensors[n], other.tensors[n]) for n in learnt if n in other.tensors
    )
    expect(moved, "a run with another seed ends with the same bits")


def check_pool(bench: Bench) -> None:
    """Worker processes give the same bits as one process."""
    pool = bench.run(bench.config().with_engine(kind="pool", workers=2))
    _same(bench.ordinary, pool, "two worker processes do not give what one process gives")


def check_site_order(bench: Bench) -> None:
    """The order in which sites answer does not matter."""
    _same(
        bench.ordinary,
        bench.run(bench.config(), reverse=True),
        "sites asked in reverse order give another result",
    )


class Stopped(Exception):
    """Stands for a crash."""


def check_resume(bench: Bench) -> None:
    """A run that was stopped before and after every commit ends with the same bits as one that ran straight
    through."""
    folder, config = bench.new_folder(), bench.config()
    for _ in range(ROUNDS):
        for committed in (False, True):
            rounds = 0

            def stop(event: str, facts: dict[str, Any], committed: bool = committed) -> None:
                nonlocal rounds
                rounds += event == "round"
                # A round is committed after it was told of; so the first answer after that comes after the
                # commit.
                if rounds and event == ("answer" if committed else "round"):
                    raise Stopped

            try:
                bench.run(config, folder, watch=stop)
            except Stopped:
                continue
    _same(
        bench.ordinary,
        bench.run(config, folder),
        "a stopped and resumed run is not the same as a straight one",
    )


def check_private(bench: Bench) -> None:
    """What is private to a site is not in the bytes of its answers, as it is or as its change."""
    before: dict[tuple[str, str], Tensor] = {}
    kept = [name for answer in bench.ordinary.answers for name in answer.kept]
    declared = [
        glob for glob in bench.cls.private if not any(fnmatchcase(name, f"net/{glob}") for name in kept)
    ]
    expect(
        not declared,
        f"the site keeps nothing of what is declared private: '{declared[0] if declared else ''}'",
    )
    for answer in bench.ordinary.answers:
        if answer.question.write is None:
            continue  # evaluation in a simulation, where every image is at hand anyway
        uploaded = [
            (name, x.double().flatten())
            for name, x in _uploaded(answer.data).items()
            if x.is_floating_point()
        ]
        for name, now in answer.kept.items():
            kind = name.partition("/")[0]
            old = before.get((answer.site, name))
            before[answer.site, name] = now
            # The net's private parameters never leave. The rest starts empty, when its first change says what
            # it is; the change itself may be sent (a control variate's is), the state may not.
            if kind == "tuned" or not _telling(now) or (kind != "net" and old is None):
                continue
            where = f"site '{answer.site}' sends its private '{name}' in answer to '{answer.question.name}'"
            expect(raw(now) not in answer.data, where)
            secret = {"": now} | (
                {", as its change,": now.double() - old.double()} if kind == "net" and old is not None else {}
            )
            for how, x in secret.items():
                flat = x.double().flatten()
                found = [
                    leaf
                    for leaf, y in uploaded
                    if y.shape == flat.shape and torch.allclose(y, flat, rtol=1e-5, atol=1e-9)
                ]
                expect(not found or not _telling(x), f"{where}{how} as '{found[0] if found else ''}'")


def _uploaded(data: bytes) -> Tree:
    leaves = decode_upload(data)[1]
    return flatten({name: leaf.value for name, leaf in leaves.items()})


def _telling(x: Tensor) -> bool:
    """Whether finding these numbers elsewhere says anything: zeros or a single count are found everywhere."""
    return x.is_floating_point() and x.numel() >= CLASSES and float(x.min()) != float(x.max())


def check_ledger(bench: Bench) -> None:
    """Every question is in the ledger, and nothing leaves a site but what it lists."""
    trace = bench.ordinary
    _nobody_lost(trace, ORDINARY)
    ledger = trace.ledger()
    for answer in trace.answers:
        name = answer.question.name
        line = ledger.line(name, answer.question.round)
        if line is None:
            raise AssertionError(f"the question '{name}' is not in the ledger")
        header, upload = decode_upload(answer.data)
        strange = set(header) - {"site", "round", "question", "wrote", "leaves"}
        expect(not strange, f"the answer to '{name}' says more than it should: {', '.join(sorted(strange))}")
        given, listed = entries(upload), {entry.name: entry for entry in line.up}
        for entry in given:
            expect(entry.name in listed, f"'{entry.name}' leaves with '{name}' and is not in the ledger")
            expect(
                _as_listed(entry, listed[entry.name]),
                f"'{entry.name}' of '{name}' is {entry}, not {listed[entry.name]}",
            )
        expect(
            len(given) == len(listed),
            f"the answer to '{name}' has {len(given)} tensors and the ledger {len(listed)}",
        )


def _as_listed(given: Entry, listed: Entry) -> bool:
    fits = len(given.shape) == len(listed.shape)
    fits = fits and all(n is None or n == m for m, n in zip(given.shape, listed.shape, strict=True))
    return fits and (given.kind, given.dtype, given.weight) == (listed.kind, listed.dtype, listed.weight)


def check_missing_class(bench: Bench) -> None:
    """A site may lack a class."""
    bench.sound(MISSING_CLASS)


def check_one_sample(bench: Bench) -> None:
    """A site may have a single image."""
    bench.sound(ONE_SAMPLE)


def check_last_batch_of_one(bench: Bench) -> None:
    """The images of a site may leave one over after the last full batch."""
    bench.sound(LAST_OF_ONE)


def check_dropout(bench: Bench) -> None:
    """A site whose answer is lost falls out of the round, the round goes on, and the site is back in the
    next."""
    asked = [
        a.question.write
        for a in bench.ordinary.answers
        if a.question.round == 0 and a.question.write is not None
    ]
    for lost in dict.fromkeys((asked[0], asked[-1])):

        def lose(question: Question, site: str, lost: str | None = lost) -> bool:
            return site == "south" and question.write == lost

        trace = bench.run(bench.config(), lose=lose)
        _finite(trace)
        first, second = (row["sites"] for row in trace.result.history[:2])
        expect("south" not in first, "an answer was lost and its site still counts")
        expect(
            sorted(second) == sorted(ORDINARY),
            f"after a lost answer the next round has only {', '.join(second)}",
        )


def check_ending(bench: Bench) -> None:
    """What a method does after its last round is not lost where `evaluate.own = "received"`: it is in the
    server tree, in `loc.mine` or in private parts."""
    ended = [row for row in bench.ordinary.result.history if ENDING in row]
    if not ended:
        return
    config = bench.config()
    received = config.evaluate.model_copy(update={"own": "received"})
    history = bench.run(replace(config, evaluate=received)).result.history
    expect(
        len([row for row in history if ENDING in row]) == len(ended),
        "its ending is lost with evaluate.own = 'received'",
    )


def check_neutral(bench: Bench) -> None:
    """With its neutral hyper-parameters the method is FedAvg, bit for bit."""
    if bench.cls.neutral is None:
        return
    config = bench.config()
    # FedAvg looks at the first view only, but all of them are drawn.
    train = config.train.model_copy(update={"views": config.train.views or bench.cls.views})
    plain = replace(
        config, method=METHODS["fedavg"](crt=config.method.crt), method_name="fedavg", train=train
    )
    mine = bench.run(replace(config, method=bench.method(**bench.cls.neutral), train=train)).result.server[
        "model"
    ]
    theirs = bench.run(plain).result.server["model"]
    common = [name for name in theirs if name in mine]
    expect(any(name.startswith("body.") for name in common), "the body is not among the shared tensors")
    for name in common:
        same = same_bits(mine[name], theirs[name])
        expect(same, f"'{name}' is off FedAvg's by up to {_distance(mine[name], theirs[name]):.3g}")


def check_global_rng(bench: Bench) -> None:
    """A run neither moves nor reads the global generators of torch, numpy and Python."""
    isolated, straight = hosts.isolated, bench.ordinary

    def elsewhere(seed: int, device: torch.device) -> AbstractContextManager[None]:
        return isolated(seed + 1, device)

    # Inside a question these are seeded, for dropout layers and the like. Without dropout no seed may make a
    # difference.
    with mock.patch.object(torch.nn.functional, "dropout", side_effect=lambda x, *_, **__: x) as dropout:
        before = _global_states()
        with mock.patch.object(hosts, "isolated", elsewhere):
            other = bench.run(bench.config())
        moved = [name for name, state in _global_states().items() if state != before[name]]
        if dropout.called:
            straight = bench.run(bench.config())
    expect(not moved, f"a run draws from the global generator of {moved[0] if moved else ''}")
    _same(
        straight,
        other,
        "a site draws from a global generator (torch, numpy, Python); use loc.generator(…)",
    )


def _global_states() -> dict[str, Any]:
    numpy = np.random.get_state(legacy=False)
    return {"torch": raw(torch.get_rng_state()), "numpy": repr(numpy), "Python": random.getstate()}


def check_overfits(bench: Bench) -> None:
    """A single site learns 64 images by heart."""
    config = bench.config(OVERFIT, rounds=3, epochs=8, batch_size=16, lr=0.005, augment=STILL)
    config = replace(config, evaluate=config.evaluate.model_copy(update={"every": 3}))
    accuracy = bench.run(config).result.metrics["test"]["generalisation"]["accuracy"]
    expect(accuracy > 0.95, f"after training on 64 images its accuracy on them is {accuracy:.3f}")


def check_refuses_task(bench: Bench) -> None:
    """A task the method is not for is refused with one clear sentence."""
    tasks: tuple[Task, ...] = ("single", "multi")
    for task in tasks:
        if task in bench.cls.tasks:
            continue
        try:
            bench.run(bench.config(task=task))
        except MethodError as error:
            expect(task in str(error), f"the refusal does not name the task: {error}")
            continue
        expect(False, f"a {task}-label run is not refused")


CHECKS: dict[str, Callable[[Bench], None]] = {
    check.__name__.removeprefix("check_"): check
    for check in (
        check_documented,
        check_frozen,
        check_same_seed,
        check_other_seed,
        check_site_order,
        check_resume,
        check_private,
        check_ledger,
        check_missing_class,
        check_one_sample,
        check_last_batch_of_one,
        check_dropout,
        check_ending,
        check_neutral,
        check_global_rng,
        check_overfits,
        check_refuses_task,
        check_pool,
    )
}
"""Every check by name, quick ones first."""


def method_checks(
    method: str | type[Method],
    options: Mapping[str, Any] | None = None,
    *,
    task: Task | None = None,
    only: Iterable[str] | None = None,
) -> list[tuple[str, Callable[[], None]]]:
    """The checks that apply to a method, by name, ready to be called; `options` are its hyper-parameters (or
    a preset)."""
    names = list(CHECKS if only is None else only)
    for name in names:
        if name not in CHECKS:
            raise ConfigError(unknown("check", name, CHECKS))
    bench = Bench(method, options, task)
    idle = {"neutral": bench.cls.neutral is None, "refuses_task": {"single", "multi"} <= set(bench.cls.tasks)}
    return [(name, _call(bench, name)) for name in names if not idle.get(name, False)]


def _call(bench: Bench, name: str) -> Callable[[], None]:
    def check() -> None:
        try:
            with bench.own_cache():
                CHECKS[name](bench)
        except Exception as error:
            text = str(error) if isinstance(error, AssertionError) else f"{type(error).__name__}: {error}"
            raise AssertionError(f"method '{bench.name}' fails the check '{name}': {text}") from error

    return check


def check_method(
    method: str | type[Method],
    options: Mapping[str, Any] | None = None,
    *,
    task: Task | None = None,
    only: Iterable[str] | None = None,
) -> None:
    """Run every check that applies (or `only` some); the first that fails raises an AssertionError.

    `method` is a name, `FILE.py:Class`, `package.module:Class`, or the class itself; `task` chooses between
    single- and multi-label images where the method takes both.
    """
    for _, check in method_checks(method, options, task=task, only=only):
        check()
