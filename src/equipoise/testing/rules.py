"""What a method may hold, send and need."""

from __future__ import annotations

import ast
import re
import sys
from dataclasses import replace
from fnmatch import fnmatchcase
from pathlib import Path

import torch
from pydantic import ValidationError
from torch import Tensor

from equipoise.data.samples import Task
from equipoise.engine import Question
from equipoise.errors import MethodError
from equipoise.evaluate import ENDING
from equipoise.exchange import decode_upload
from equipoise.exchange.ledger import Entry, entries
from equipoise.options import described
from equipoise.testing.bench import Bench
from equipoise.testing.federations import CLASSES, ODD, ORDINARY, OVERFIT, STILL
from equipoise.testing.traces import expect, finite, nobody_lost, raw
from equipoise.tree import Tree, flatten


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
    bare = [name for name, text in described(cls).items() if not text]
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


def check_private(bench: Bench) -> None:
    """What is private to a site is not in the bytes of its answers, as it is or as its change."""
    before: dict[tuple[str, str], Tensor] = {}
    names = [name for answer in bench.ordinary.answers for name in answer.kept]
    for glob in bench.cls.private:
        there = any(fnmatchcase(name, f"net/{glob}") for name in names)
        expect(there, f"the site keeps nothing of what is declared private: '{glob}'")
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
                alike = [
                    leaf
                    for leaf, y in uploaded
                    if y.shape == flat.shape and torch.allclose(y, flat, rtol=1e-5, atol=1e-9)
                ]
                expect(not alike or not _telling(x), f"{where}{how} as '{alike[0] if alike else ''}'")


def _uploaded(data: bytes) -> Tree:
    leaves = decode_upload(data)[1]
    return flatten({name: leaf.value for name, leaf in leaves.items()})


def _telling(x: Tensor) -> bool:
    """Whether finding these numbers elsewhere says anything: zeros or a single count are found everywhere."""
    return x.is_floating_point() and x.numel() >= CLASSES and float(x.min()) != float(x.max())


def check_ledger(bench: Bench) -> None:
    """Every question is in the ledger, and nothing leaves a site but what it lists."""
    trace = bench.ordinary
    nobody_lost(trace, ORDINARY)
    ledger = trace.ledger()
    for answer in trace.answers:
        name = answer.question.name
        line = ledger.line(name, answer.question.round)
        if line is None:
            raise AssertionError(f"the question '{name}' is not in the ledger")
        header, upload = decode_upload(answer.data)
        strange = set(header) - {"site", "round", "question", "wrote", "leaves"}
        expect(not strange, f"the answer to '{name}' says more than it should: {', '.join(sorted(strange))}")
        sent, listed = entries(upload), {entry.name: entry for entry in line.up}
        for entry in sent:
            expect(entry.name in listed, f"'{entry.name}' leaves with '{name}' and is not in the ledger")
            expect(
                _as_listed(entry, listed[entry.name]),
                f"'{entry.name}' of '{name}' is {entry}, not {listed[entry.name]}",
            )
        expect(
            len(sent) == len(listed),
            f"the answer to '{name}' has {len(sent)} tensors and the ledger {len(listed)}",
        )


def _as_listed(sent: Entry, listed: Entry) -> bool:
    fits = len(sent.shape) == len(listed.shape)
    fits = fits and all(n is None or n == m for m, n in zip(sent.shape, listed.shape, strict=True))
    return fits and (sent.kind, sent.dtype, sent.weight) == (listed.kind, listed.dtype, listed.weight)


def check_odd_sites(bench: Bench) -> None:
    """A site may lack a class, have a single image, or leave one image over after its last full batch."""
    trace = bench.run(bench.config(ODD))
    finite(trace)
    nobody_lost(trace, ODD)


def check_dropout(bench: Bench) -> None:
    """A site whose answer to the first question is lost, or to the last, falls out of the round; the round
    goes on, and the site is back in the next."""
    versions = [
        a.question.write
        for a in bench.ordinary.answers
        if a.question.round == 0 and a.question.write is not None
    ]
    lost: dict[str | None, str] = {versions[-1]: "west"}
    lost[versions[0]] = "south"  # the only one, where there is one question

    def lose(question: Question, site: str) -> bool:
        return question.write is not None and lost.get(question.write) == site

    trace = bench.run(bench.config(), lose=lose)
    finite(trace)
    first, second = (row["sites"] for row in trace.result.history[:2])
    still = sorted(set(first) & set(lost.values()))
    expect(not still, f"an answer of '{still[0] if still else ''}' was lost and the site still counts")
    back = sorted(second) == sorted(ORDINARY)
    expect(back, f"after a lost answer the next round has only {', '.join(second)}")


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
