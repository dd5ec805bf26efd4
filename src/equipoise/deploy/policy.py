"""A site's policy: what it lets be done and reported, whatever the coordinator asks. Read from `policy.toml`;
it always wins.

`methods`: a method runs here only if the files that define it are the ones that were approved. `each`: a leaf
that the coordinator can read for this site alone leaves only if it is named. `small_cell`: nothing is
reported of a class with fewer images than this (and any at all); it is left out of what is reported class by
class, and an answer that cannot be reported without it is refused. Training has all images. `min_sites`: a
sum over fewer sites says too much of one. `secure`: whether answers must be masked. `reduce`: a sum that
compares sites shows the coordinator each of them. `privacy`: what training may spend here in all.
`batch_size`, `optimizers`, `questions_per_round`, `questions_per_run`: what a run may do to find out more
than its sums are meant to say.
"""

from __future__ import annotations

import tomllib
from collections.abc import Collection, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, Literal

import torch
from pydantic import Field, ValidationError, field_validator
from torch import Tensor

from equipoise.config import Config
from equipoise.data.samples import Task
from equipoise.deploy.budget import Account, Budget
from equipoise.deploy.card import COUNTS
from equipoise.errors import ConfigError, EquipoiseError
from equipoise.exchange import decode_upload, encode_upload
from equipoise.exchange.ledger import Entry, entries
from equipoise.exchange.robust import Rule
from equipoise.exchange.withhold import by_class, class_dimension, withhold
from equipoise.locate import Code, named
from equipoise.methods import METHODS, fingerprint
from equipoise.names import first_mistake, nearest, unknown
from equipoise.opening import read_text
from equipoise.options import Options
from equipoise.partition import covered, small_cells
from equipoise.site.accounting import Spent
from equipoise.site.options import OPTIMIZERS
from equipoise.site.privacy import TRAIN
from equipoise.text import parse_toml

SMALL_CELL = 5
MIN_SITES = 3


class Refused(EquipoiseError):
    """This site does not do what it was asked; the sentence names the rule and says nothing of the data."""

    exit_code = 7


class Policy(Options):
    """What a site allows."""

    small_cell: int = Field(default=SMALL_CELL, ge=0)
    """nothing is reported of a class with fewer images than this, unless it has none; 0 turns the rule off"""
    each: tuple[str, ...] = ("evaluate.own", COUNTS)
    """leaves (question.leaf) the coordinator may read for this site alone; join.counts: our images per class,
    reported when we join"""
    secure: Literal["allowed", "required"] = "allowed"
    """"required": this site takes part in masked runs only (exchange.secure), and sends nothing that is read
    for itself alone, whatever `each` says"""
    min_sites: int = Field(default=MIN_SITES, ge=1)
    """a question is answered only if at least so many sites are asked, in a run that adds up no fewer
    answers"""
    reduce: tuple[Rule, ...] = ("mean",)
    """how our updates may be combined with the others'; all but the mean let the coordinator read ours
    alone"""
    batch_size: int = Field(default=8, ge=1)
    """smallest train.batch_size a run may have"""
    optimizers: tuple[str, ...] = OPTIMIZERS
    """local optimisers a run may use, others than ours by their whole name; plain sgd tells class counts most
    directly"""
    questions_per_round: int = Field(default=50, ge=1)
    """most questions of one round that are answered, repeated ones counted"""
    questions_per_run: int = Field(default=10_000, ge=1)
    """most questions of one run that are answered"""
    privacy: Budget | None = None
    """a run trains here only with differential privacy, and only until all runs together have spent this"""
    methods: dict[str, str] = Field(default_factory=dict)
    """approved methods: name = fingerprint of the files that define it"""
    parts: dict[str, str] = Field(default_factory=dict)
    """approved networks, views, losses and other code that a run brings: name = fingerprint of its files"""

    @field_validator("optimizers")
    @classmethod
    def _spelt_right(cls, names: tuple[str, ...]) -> tuple[str, ...]:
        for name in names:
            if name not in OPTIMIZERS and not named(name):
                raise ValueError(unknown("optimiser", name, OPTIMIZERS))
        return names

    def allow(self, code: Code) -> None:
        """Refuse code that was not approved as it is now; of a name that was not, nothing is even read."""
        rule = "methods" if code.where == "method.name" else "parts"
        self.approve(code.name, code.approval if code.name in getattr(self, rule) else "", rule)

    def approve(self, name: str, mark: str, rule: str = "methods") -> None:
        """Refuse a method or a part whose files were not approved with this fingerprint."""
        approved: dict[str, str] = getattr(self, rule)
        if name not in approved:
            raise Refused(f"policy rule '{rule}': '{name}' is not approved at this site")
        if approved[name] != mark:
            raise Refused(f"policy rule '{rule}': the files of '{name}' are not the ones this site approved")

    def trains_with(self, optimizer: object) -> None:
        """Refuse a local optimiser that is not listed; asked before one is looked up and tried."""
        if isinstance(optimizer, str) and optimizer not in self.optimizers:
            raise Refused(f"policy rule 'optimizers': this site does not train with '{optimizer[:100]}'")

    def terms(self, config: Config) -> Iterator[str]:
        """The rules that a run breaks by its config, a sentence each."""
        for name, mark in marks_of(config).items():
            try:
                self.approve(name, mark, "methods" if name == config.method_name else "parts")
            except Refused as error:
                yield str(error)
        if self.secure == "required" and not config.exchange.secure:
            yield (
                "policy rule 'secure': the run does not mask its answers, and this site takes part in masked "
                "runs only: set exchange.secure = true"
            )
        if config.exchange.least < self.min_sites:
            yield (
                f"policy rule 'min_sites': the run adds up as few as {config.exchange.least} answers, "
                f"this site takes part in sums of at least {self.min_sites}: set exchange.min_sites = "
                f"{self.min_sites}"
            )
        if config.exchange.reduce not in self.reduce:
            yield (
                f"policy rule 'reduce': to combine updates by '{config.exchange.reduce}' the coordinator "
                f"reads each site's own, and this site allows {_listed(self.reduce)} only"
            )
        if config.train.batch_size < self.batch_size:
            yield (
                f"policy rule 'batch_size': the run trains on {config.train.batch_size} images at a time, "
                f"this site on no fewer than {self.batch_size}"
            )
        try:
            self.trains_with(config.train.optimizer)
        except Refused as error:
            yield str(error)
        if self.privacy is not None and config.privacy is None:
            yield (
                "policy rule 'privacy': this site trains with differential privacy only: give the run a "
                "section [privacy]"
            )

    def asked(self, sites: Collection[str]) -> None:
        """Refuse a question that goes to too few sites."""
        if len(set(sites)) < self.min_sites:
            raise Refused(
                f"policy rule 'min_sites': this site answers only when at least {self.min_sites} sites are "
                f"asked, and {len(set(sites))} {'was' if len(set(sites)) == 1 else 'were'} (policy.toml: "
                "min_sites)"
            )

    def affords(self, account: Account, more: Spent) -> None:
        """Refuse training that would spend more than the budget."""
        after = None if self.privacy is None else account.over(self.privacy, more)
        if after is not None and self.privacy is not None:
            raise Refused(
                f"policy rule 'privacy': with this training the site would have spent ε = {after:.3g} at δ = "
                f"{self.privacy.delta:g}, and its budget is {self.privacy.epsilon:g}: it does not train"
            )

    def covers(self, question: str, reads: Collection[str]) -> None:
        """Refuse an answer that tells of training images without noise, where training must be private."""
        if self.privacy is not None and TRAIN in reads:
            raise Refused(
                f"policy rule 'privacy': the answer to '{question}' is computed from training images without "
                "noise"
            )

    def counted(self, in_round: int, in_run: int) -> None:
        """Refuse a question that is one too many."""
        for name, count in (("questions_per_round", in_round), ("questions_per_run", in_run)):
            if count > getattr(self, name):
                raise Refused(
                    f"policy rule '{name}': this site has answered {getattr(self, name)}, and answers no more"
                )

    def objections(
        self,
        question: str,
        leaves: Iterable[Entry],
        classes: tuple[str, ...],
        parameters: Collection[str],
        counts: Mapping[str, Tensor],
        read: Collection[str],
    ) -> Iterator[str]:
        """The rules an answer with these tensors breaks, a sentence each.

        `counts` are the images per class of each split, `read` the splits the answer is computed from,
        `parameters` the names of the network's tensors: those are as wide as there are classes without being
        reported class by class.
        """
        leaves, seen = list(leaves), set[str]()
        for entry in leaves:
            name = f"{question}.{entry.leaf}"
            rule = self._unmasked(entry, name)
            if rule and name not in seen:
                seen.add(name)
                yield f"policy rule '{rule}': this site does not tell '{name}' to be read for itself alone"
            leaf = [one for one in leaves if one.leaf == entry.leaf]
            if (
                not by_class(entry, len(classes), parameters)
                or class_dimension(leaf, entry, len(classes)) is not None
            ):
                continue
            for split in _splits(entry, counts, read):
                small = small_cells(counts[split], self.small_cell).any()
                if small and f"{name} {split}" not in seen:
                    seen.add(f"{name} {split}")
                    yield (
                        f"policy rule 'small_cell': '{name}' cannot be reported without the classes that "
                        f"have fewer than {self.small_cell} {split} images here"
                    )

    def _unmasked(self, entry: Entry, name: str) -> str | None:
        """The rule that a tensor breaks by being read for this site alone, if any."""
        if self.secure == "required" and (entry.kind == "each" or None in entry.shape):
            return "secure"
        return "each" if entry.kind == "each" and name not in self.each else None

    def release(
        self,
        question: str,
        data: bytes,
        classes: tuple[str, ...],
        parameters: Collection[str],
        counts: Mapping[str, Tensor],
        read: Collection[str],
        task: Task = "single",
    ) -> tuple[bytes, list[str]]:
        """An answer as it may leave, without its small cells, and its leaves that lack some; one that breaks
        a rule is refused. All else is as for `objections`."""
        header, upload = decode_upload(data)
        leaves = entries(upload)
        for sentence in self.objections(question, leaves, classes, parameters, counts, read):
            raise Refused(sentence)

        def cells(entry: Entry) -> Tensor:
            gone = [self.untold(counts[split], task) for split in _splits(entry, counts, read)]
            return torch.stack(gone).any(0) if gone else torch.zeros(len(classes), dtype=torch.bool)

        made, changed = withhold(upload, cells, len(classes), parameters)
        return (encode_upload(made, header) if changed else data), changed

    def untold(self, counts: Tensor, task: Task) -> Tensor:
        """bool [C]: the classes that are left out of what is reported of training images.

        Classes that exclude each other add up to the number of training images, which is known.
        """
        return (covered if task == "single" else small_cells)(counts, self.small_cell)

    def cells(self, counts: Tensor, gone: Tensor | None = None) -> list[int | None]:
        """Images per class as they may be reported: None for the classes that are `gone`, by default the
        small cells, and everywhere if they may not be reported at all."""
        gone = small_cells(counts, self.small_cell) if gone is None else gone
        counted = COUNTS in self.each
        return [int(n) if counted and not out else None for n, out in zip(counts, gone, strict=True)]


def _splits(entry: Entry, counts: Mapping[str, Tensor], read: Collection[str]) -> Collection[str]:
    """The splits that a tensor tells of: those in its name, or else all that were read."""
    return [split for split in counts if split in entry.tensor.split("/")] or read


def _listed(rules: Collection[str]) -> str:
    return ", ".join(f"'{rule}'" for rule in rules) or "no rule"


def marks_of(config: Config) -> dict[str, str]:
    """By name: the fingerprints of a run's method and of all code that it brings.

    They are those of the code that was run, or of Equipoise's own files as they are.
    """
    own = {name: code.approval for name, code in config.codes.items()}
    return {config.method_name: own.get(config.method_name) or fingerprint(type(config.method)), **own}


def read_policy(path: Path) -> Policy:
    """The policy in a file; without the file nothing is approved, so one must be there."""
    try:
        table: dict[str, Any] = parse_toml(read_text(path))
        return Policy.model_validate(table)
    except FileNotFoundError:
        raise ConfigError(f"there is no policy {path}: make one with `equipoise site init`") from None
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
        raise ConfigError(f"{path} is not a readable policy: {error}") from error
    except ValidationError as error:
        first = first_mistake(error)
        place = ".".join(map(str, first["loc"]))
        guess = nearest(place, Policy.model_fields) if first["type"] == "extra_forbidden" else None
        raise ConfigError(
            f"{path}: '{place}': {f'did you mean {guess!r}?' if guess else first['msg']}"
        ) from None


def approved(names: Collection[str] = tuple(METHODS)) -> dict[str, str]:
    """The fingerprints of methods that come with Equipoise, as they are installed here."""
    return {name: fingerprint(METHODS[name]) for name in names}
