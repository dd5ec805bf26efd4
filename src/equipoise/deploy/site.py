"""One hospital: its folder, and the desk that answers what reaches it.

    site.toml       who we are, where the coordinator is, our data
    policy.toml     what we allow (see `policy`)
    keys/           our key pair and the coordinator's certificate
    journal.jsonl   everything we were asked, and what we said
    privacy.json    what training with differential privacy has spent, over all runs (see `budget`)
    runs/<run>/     the run's config as we accepted it, our private state and our own results; for our eyes
    only

All that we write there has digests that are checked when it is read back (see `keeping`); what you wrote is
recorded in the journal whenever it is not what it was.

What leaves is an answer that the policy has let pass, or one sentence: a refusal names the rule, a failure
its kind. What exactly failed, with the names of files or patients it may hold, is written to the journal
here.
"""

from __future__ import annotations

import json
import os
import re
import tomllib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import cached_property, partial
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import torch
from pydantic import Field, ValidationError
from torch import Tensor

from equipoise.blueprint import Built, Place
from equipoise.config import Config, resolve
from equipoise.data import Progress
from equipoise.data.samples import Samples
from equipoise.deploy import settings
from equipoise.deploy.budget import Account
from equipoise.deploy.card import COUNTS
from equipoise.deploy.masking import bind, make_member, masked, masks_of, step
from equipoise.deploy.policy import Policy, Refused, read_policy
from equipoise.engine import Host, probe
from equipoise.engine.flower.wire import INVITATION, MASKS, RUN, Request, SiteName, StepRequest
from equipoise.errors import ConfigError, StorageError, WeightsError
from equipoise.evaluate.metrics import from_statistics
from equipoise.evaluate.observer import scalars
from equipoise.exchange import Ledger, decode_upload
from equipoise.exchange.secure.member import Member
from equipoise.keeping import FIRST, append_line, as_hash, read_json, write_json
from equipoise.locate import Allow, named
from equipoise.memory import keep_memory
from equipoise.methods.base import OWN, POOLED
from equipoise.names import first_mistake, unknown
from equipoise.opening import read_text
from equipoise.options import Options
from equipoise.partition import Holding, PartitionOptions, divide, small_cells, without_small_cells
from equipoise.partition.cells import counts_of
from equipoise.server import Journal, planned_passes
from equipoise.server.journal import read as read_journal
from equipoise.setup import Material, cache_folder, fits, make_host, place_of
from equipoise.site import START, Store
from equipoise.site.accounting import Spent
from equipoise.site.figures import mean_of
from equipoise.site.measure import LEAST
from equipoise.site.noise import Secret
from equipoise.text import parse_toml
from equipoise.version import __version__

DIGEST = re.compile(r"[0-9a-fA-F]{64}")
OURS = ("base", "data", "partition", "engine")
"""sections of a config that are a site's own and never taken from the coordinator"""
TICKET, DATA = "ticket.json", "data.json"
READY, MASKED = 2, 16
"""runs of which a site keeps network and data, and of which the secrets of masked answers: the last that
asked. The former can be made anew, the latter cannot."""
LEAVE = "restore it, or delete the run's folder to leave the run"
Thing = TypeVar("Thing")


class SiteOptions(Options):
    """What `site.toml` says."""

    name: SiteName
    """this site's name, as the coordinator has it"""
    superlink: str = Field(default="", pattern=r"^([A-Za-z0-9.-]+|\[[0-9A-Fa-f:]+\]):\d{1,5}$|^$")
    """host:port of the coordinator; always reached over TLS"""
    key: str = "keys/site"
    """our private key; the public one beside it goes to the coordinator"""
    certificate: str = "keys/ca.crt"
    """the certificate the coordinator's is checked against"""
    roster: str = "keys/roster.json"
    """the sites of the federation and their keys, signed; needed for masked answers"""
    device: str = "auto"
    """auto, cpu, cuda, cuda:1, mps"""
    labelled: tuple[str, ...] | None = None
    """multi-label: the classes we label; none = all of them"""
    weights: dict[str, str] = Field(default_factory=dict)
    """files of weights that a run may start from, by the name or sha256 in its config; no other is opened"""
    data: dict[str, Any]
    """our images and labels, as in the config of a run"""
    partition: dict[str, Any] | None = None
    """only in a rehearsal: the data of all sites, divided, of which we take our share"""


def read_site(folder: Path) -> SiteOptions:
    """The `site.toml` of a folder."""
    path = folder / "site.toml"
    try:
        return SiteOptions.model_validate(parse_toml(read_text(path)))
    except FileNotFoundError:
        raise ConfigError(f"there is no {path}: make a site's folder with `equipoise site init`") from None
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
        raise ConfigError(f"{path} is not valid TOML: {error}") from error
    except ValidationError as error:
        first = first_mistake(error)
        place = ".".join(map(str, first["loc"]))
        if first["type"] == "extra_forbidden":
            raise ConfigError(f"{path}: {unknown('key', place, SiteOptions.model_fields)}") from None
        hint = (
            "write host:port without http://, the connection is always encrypted"
            if place == "superlink"
            else first["msg"]
        )
        raise ConfigError(f"{path}: '{place}': {hint}") from None


class Whole(PartitionOptions):
    """Everything is one site's: the rows that carry its name, or all of them where no row carries any."""

    kind: str = "whole"
    name: str

    def sites_of(self, samples: Samples, seed: int) -> dict[str, np.ndarray]:
        rows = np.arange(len(samples))
        if samples.site is not None:
            rows = rows[np.asarray(samples.site).astype(str) == self.name]
            if not len(rows):
                raise ConfigError(
                    f"site.toml: no row of the data is of site '{self.name}': correct `name`, or drop "
                    f"data.site"
                )
        return {self.name: rows}


def own_config(
    options: SiteOptions,
    folder: Path,
    table: Mapping[str, Any],
    policy: Policy,
    allow: Allow | None = None,
) -> Config:
    """A run's config with the site's own data, device and files of weights in it.

    Code that it names is run, and an optimiser tried, only if the policy (or `allow`) lets it pass.
    """
    own: dict[str, Any] = {"data": options.data, "engine": {"device": options.device}}
    if options.partition is not None:
        own["partition"] = options.partition
    theirs = {key: value for key, value in table.items() if key not in OURS}
    if isinstance(train := theirs.get("train"), dict):
        if named(optimizer := train.get("optimizer")):
            policy.trains_with(optimizer)
        # The first model comes with the first question: no path of the coordinator's is opened here.
        theirs["train"] = {key: value for key, value in train.items() if key not in START}
    made = resolve(theirs | own, folder, allow=allow or policy.allow)
    made = replace(
        made,
        evaluate=made.evaluate.model_copy(update={"trackers": ()}),  # the coordinator's, and not for here
        weights={
            name.lower() if DIGEST.fullmatch(name) else name: path for name, path in options.weights.items()
        },
    )
    place = place_of(made)
    for net in (made.net, *made.method.frozen().values()):
        place.located(net)
    return made


def apart(config: Config) -> None:
    """Refuse what needs all images in one place."""
    if config.method.standard == "pooled":
        raise ConfigError(
            f"method '{config.method_name}' needs all images in one place, which hospitals never have: use "
            "it in a simulation (`equipoise run`, `equipoise compare`)"
        )
    if config.train.augment.normalise == "data":
        raise ConfigError(
            'train.augment.normalise = "data" needs all images in one place: use "imagenet", "half" or '
            "numbers"
        )


def own_material(options: SiteOptions, config: Config, progress: Progress | None = None) -> Material:
    """The site's data and nothing else, small cells and all."""
    samples = config.data.load(cache=cache_folder(), base=config.base, progress=progress)
    fits(config, samples.task)
    apart(config)
    if options.labelled is not None:
        strange = sorted(set(options.labelled) - set(samples.classes))
        if strange:
            raise ConfigError(f"site.toml: 'labelled': {unknown('class', strange[0], samples.classes)}")
        if samples.task == "single":
            raise ConfigError("site.toml: 'labelled' is for several labels per image: remove it")
        labels = samples.labels.copy()
        labels[:, [name not in options.labelled for name in samples.classes]] = np.nan
        samples = replace(samples, labels=labels)
    rule = Whole(name=options.name) if options.partition is None else config.partition
    held = [
        one for one in divide(samples, rule, config.data.split, config.train.seed) if one.name == options.name
    ]
    if not held:
        raise ConfigError(f"site.toml: the partition has no site '{options.name}'")
    return Material(samples, (held[0],))


class Watched(dict[str, Any]):
    """The splits of a site, remembering which a method looked at."""

    def __init__(self, splits: Mapping[str, Any]) -> None:
        super().__init__(splits)
        self.read: set[str] = set()

    def __getitem__(self, split: str) -> Any:
        self.read.add(split)
        return super().__getitem__(split)


@dataclass
class Joined:
    """A run this site takes part in."""

    folder: Path
    config: Config
    dataset: Material
    host: Host
    splits: Watched
    held: Holding
    """all rows of the site, with those that no test counts"""
    small_cell: int
    """the policy's rule when we joined: what is tested stays the same in all rounds"""
    journal: Journal | None = None
    """the site's; a ticket is kept together with its head"""

    @cached_property
    def counts(self) -> dict[str, Tensor]:
        """Images per class of each split (positives, for multi-label), without those that no test counts."""
        wide = len(self.dataset.samples.classes)
        rows = {split: dict.__getitem__(self.splits, split) for split in self.splits}
        if self.dataset.samples.task == "single":
            return {split: torch.bincount(one.labels, minlength=wide) for split, one in rows.items()}
        return {split: (one.labels > 0).sum(0) for split, one in rows.items()}

    @cached_property
    def small(self) -> dict[str, Tensor]:
        """By split: bool [C], the classes of which there are too few images to tell anything."""
        samples = self.dataset.samples
        return {
            split: small_cells(counts_of(samples, getattr(self.held, split)), self.small_cell)
            for split in self.splits
        }

    @cached_property
    def known(self) -> dict[str, Tensor] | None:
        """Images of each split that are labelled for each class and may be reported; None where all of them
        are."""
        rows = {split: dict.__getitem__(self.splits, split) for split in self.splits}
        if all(one.complete for one in rows.values()):
            return None
        return {split: one.known.sum(0) for split, one in rows.items()}

    def withholding(self, policy: Policy) -> str:
        """What is not reported of our data as there are too few images of a class, in words."""
        classes = self.dataset.samples.classes
        names = {
            split: [classes[i] for i in mask.nonzero().flatten().tolist()]
            for split, mask in self.small.items()
        }
        parts = [f"of {split} images {', '.join(small)}" for split, small in names.items() if small]
        if not parts:
            return ""
        gone = policy.untold(self.counts["train"], self.dataset.samples.task) & ~self.small["train"]
        other = [classes[i] for i in gone.nonzero().flatten().tolist()]
        more = f"; with them {other[0]} of train, so that sums do not tell them" if other else ""
        return f"fewer than {self.small_cell} {'; '.join(parts)}: not reported, and not tested{more}"

    def card(self, policy: Policy) -> dict[str, Any]:
        """What the site tells of its data when it joins."""
        samples, counted = self.dataset.samples, COUNTS in policy.each
        gone = self.small | {"train": policy.untold(self.counts["train"], samples.task)}
        rows = {split: dict.__getitem__(self.splits, split) for split in self.counts}
        labelled = {split: policy.cells(images) for split, images in (self.known or {}).items()}
        frozen = self.host.blueprint.frozen_sha256
        return {
            "classes": list(samples.classes),
            "task": samples.task,
            "shape": list(samples.images.shape[1:]),
            "input": self.host.blueprint.input.model_dump(mode="json"),
            "partial": self.dataset.facts.partial,
            "images": {split: len(one) for split, one in rows.items()},
            "counts": {split: policy.cells(counts, gone[split]) for split, counts in self.counts.items()},
            **({"known": labelled} if labelled else {}),
            **({} if frozen is None else {"frozen": frozen}),
            "small_cell": policy.small_cell,
            "withheld": {
                split: mask.nonzero().flatten().tolist()
                for split, mask in self.small.items()
                if counted and bool(mask.any())
            },
        }

    @property
    def facts(self) -> dict[str, Any]:
        """What a policy must know of this site."""
        names = (*self.host.shared, *self.host.private)
        return {"classes": self.dataset.samples.classes, "parameters": names, "counts": self.counts}

    def release(self, policy: Policy, question: str, answer: bytes) -> tuple[bytes, list[str]]:
        """An answer as the policy lets it leave, and its leaves that lack small cells."""
        read = sorted(self.splits.read)
        return policy.release(
            question, answer, **self.facts, read=read or ["train"], task=self.dataset.samples.task
        )

    def ledger(self) -> Ledger:
        """What the run would exchange, tried on made-up sites."""
        host = self.host
        built = Built(host.net, host.frozen)
        per_site = self.config.evaluate.per_site
        ledger = probe(host.blueprint, built, 1, 1, False, Place(host.device), per_site)
        return replace(ledger, compared=self.config.exchange.compare is not None)

    def keep_results(self, round: int, answer: bytes) -> None:
        """Write down what an evaluation says of this site, whether it is reported to anyone or not."""
        upload = decode_upload(answer)[1]
        if set(upload) != {POOLED, OWN}:
            return
        results: dict[str, dict[str, Any]] = {}
        for tree in (leaf.value for leaf in upload.values() if isinstance(leaf.value, Mapping)):
            for split, roles in tree.items():
                results.setdefault(split, {}).update(
                    {name: _figures(figures) for name, figures in roles.items()}
                )
        append_line(self.folder / "metrics.jsonl", {"round": round + 1, **results}, sync=True)

    def accept(self, ticket: int) -> None:
        """Take a message with this ticket, if it is newer than all before it."""
        path = self.folder / TICKET
        last: dict[str, Any] = read_json(path, LEAVE) if path.exists() else {"ticket": 0, "journal": FIRST}
        if self.journal is not None and last["journal"] not in self.journal:
            raise StorageError(
                "journal.jsonl has lost lines or was written anew since the last message: restore it"
            )
        if ticket <= last["ticket"]:
            raise Refused(
                "this message was answered before, or is older than one that was: it is not answered again"
            )
        if self.journal is not None:
            self.journal.sync()
        write_json(path, {"ticket": ticket, "journal": FIRST if self.journal is None else self.journal.head})

    def check_data(self) -> None:
        """Refuse a run that we joined with other data."""
        path, now = self.folder / DATA, {"fingerprint": self.dataset.samples.fingerprint}
        if not path.exists():
            write_json(path, now | {"small_cell": self.small_cell})
        if read_json(path, LEAVE)["fingerprint"] != now["fingerprint"]:
            raise Refused(
                "this site's data are not those it joined the run with: it takes part in a new run only"
            )

    def count(self, round: int, policy: Policy) -> None:
        """One more question of a round; the policy says how many are answered."""
        path = self.folder / "questions.json"
        fix = "delete it to count from here on"
        rounds = {int(key): int(n) for key, n in read_json(path, fix).items()} if path.exists() else {}
        rounds[round] = rounds.get(round, 0) + 1
        policy.counted(rounds[round], sum(rounds.values()))
        write_json(path, {str(key): n for key, n in rounds.items()})


def take_part(
    options: SiteOptions, config: Config, folder: Path, small_cell: int, progress: Progress | None = None
) -> Joined:
    """Data, network and method of a run, ready to answer; `folder` is where the run is kept, `small_cell` the
    rule of the policy."""
    whole = own_material(options, config, progress)
    held = whole.holdings[0]
    dataset = Material(whole.samples, (without_small_cells(whole.samples, held, small_cell),))
    host = make_host(config, dataset, folder / "private")
    host.store = Store(folder / "private", durable=True)
    site = host.sites[options.name]
    site.splits = splits = Watched(site.splits)
    host.begin = splits.read.clear
    joined = Joined(folder, config, dataset, host, splits, held, small_cell)
    if config.privacy is not None:
        host.source = Secret
        host.noise = {options.name: own_noise(joined, options.name)}
    return joined


def own_noise(joined: Joined, site: str) -> float:
    """The noise of our training: what the config says, or what its ε takes with our images."""
    privacy, config = joined.config.privacy, joined.config
    assert privacy is not None
    images = len(dict.__getitem__(joined.splits, "train"))
    privacy.check_images(site, images)
    if privacy.noise is not None:
        return privacy.noise
    passes = planned_passes(joined.ledger(), config.train.rounds, config.evaluate.endings)
    return privacy.noise_of(images, config.train.batch_size, passes)


def _figures(figures: Mapping[str, Any]) -> dict[str, Any]:
    """What an evaluation says of one predictor here, whether in counts or in metrics."""
    return mean_of(figures) if "sum" in figures else scalars(from_statistics(dict(figures)))


def _keep_terms(policy: Policy, config: Config) -> None:
    for sentence in policy.terms(config):
        raise Refused(sentence)


def _recent(kept: dict[str, Thing], run: str, most: int, make: Callable[[str], Thing]) -> Thing:
    """What is kept of a run, made if there is nothing; the run that has not asked for longest makes room."""
    if run in kept:
        kept[run] = kept.pop(run)
    else:
        while len(kept) >= most:
            del kept[next(iter(kept))]
        kept[run] = make(run)
    return kept[run]


class SiteClient:
    """Answers for one site, in any number of runs, one question at a time."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.options = read_site(folder)
        self.journal = Journal(folder / "journal.jsonl")
        lines, _ = read_journal(folder / "journal.jsonl")
        self._settings = next(
            (line["files"] for line in reversed(lines) if line["event"] == settings.EVENT), None
        )
        self._note_settings()
        self._joined: dict[str, Joined] = {}
        self._account = Account(folder, self.journal)
        self._members: dict[str, Member] = {}
        torch.set_num_threads(1)
        keep_memory()

    @property
    def policy(self) -> Policy:
        """As the file is now: a change counts from the next question on."""
        self._note_settings()
        return read_policy(self.folder / "policy.toml")

    def _note_settings(self) -> None:
        """Record in the journal what was put into the folder by hand, whenever it is not what it was."""
        digests = settings.digests(self.folder)
        if digests != self._settings:
            self.journal.write(settings.EVENT, site=self.options.name, files=digests)
            self._settings = digests

    def _note_step(self, text: str, done: int, total: int) -> None:
        """Record in the journal what is done to read our data, a damaged cache that is made anew among it."""
        if done == 0:
            self.journal.write("read data", step=text)

    def close(self) -> None:
        self.journal.close()

    def reply(
        self, kind: str, table: Mapping[str, Any], data: Mapping[str, bytes]
    ) -> tuple[dict[str, Any], bytes | None]:
        """The table, with our journal's head, and the bytes to send back; never raises what could carry data
        out."""
        said, answer = self._reply(kind, table, data)
        return {**said, "journal": self.journal.head}, answer

    def _reply(
        self, kind: str, table: Mapping[str, Any], data: Mapping[str, bytes]
    ) -> tuple[dict[str, Any], bytes | None]:
        echo = {key: table.get(key) for key in ("run", "ticket", "site", "round", "question")}
        facts = {key: echo[key] for key in ("run", "round", "question")} | {
            "coordinator": as_hash(table.get("journal"))
        }
        if kind != INVITATION and type(facts["round"]) is int:
            facts["round"] += 1  # counted as everywhere a user sees rounds; 0 is before the first
        try:
            if kind == INVITATION:
                card = self._join(table)
                self.journal.write("joined", **facts, method=self._run(str(echo["run"])).config.method_name)
                return {**echo, "card": card}, None
            if kind == MASKS and "step" in table:
                answer, withheld = self._step(table, data), list[str]()
            else:
                answer, withheld = self._answer(kind, table, data)
        except Refused as error:
            why = {"why": str(error.__cause__)} if error.__cause__ else {}
            self.journal.write("refused", **facts, reason=str(error), **why)
            return {**echo, "refused": str(error)}, None
        except Exception as error:
            self.journal.write("failed", **facts, reason=f"{type(error).__name__}: {error}")
            return {**echo, "failed": f"{type(error).__name__}; the site's journal says more"}, None
        less = {"rule": "small_cell", "withheld": withheld} if withheld else {}
        self.journal.write("answered", **facts, bytes=len(answer), **less)
        return echo, answer

    # Joining ------------------------------------------------------------------------------------------------

    def _join(self, table: Mapping[str, Any]) -> dict[str, Any]:
        run, config = table.get("run"), table.get("config")
        if not isinstance(run, str) or not RUN.fullmatch(run) or not isinstance(config, dict):
            raise Refused("the invitation names no run or no config")
        if table.get("site") != self.options.name:
            raise Refused("the invitation is for another site")
        if table.get("version") != __version__:
            raise Refused(f"this site has Equipoise {__version__}, the coordinator another: install the same")
        folder, policy = self.folder / "runs" / run, self.policy
        path = folder / "config.json"
        if path.exists() and read_json(path, LEAVE) != json.loads(json.dumps(config)):
            raise Refused("this run was accepted with another config: start a new run for a new config")
        try:
            made = own_config(self.options, self.folder, config, policy)
        except ConfigError as error:
            raise Refused("this site cannot work with the run's config; its journal says why") from error
        except WeightsError as error:
            raise Refused(str(error)) from error
        _keep_terms(policy, made)
        folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        os.chmod(folder.parent, 0o700)
        if not path.exists():
            self._joined.pop(run, None)  # of a folder that was deleted
            write_json(path, config)
        joined = self._run(run)
        joined.accept(self._ticket(table))
        return joined.card(self.policy)

    @staticmethod
    def _ticket(table: Mapping[str, Any]) -> int:
        ticket = table.get("ticket")
        if type(ticket) is not int:
            raise Refused("the message has no ticket")
        return ticket

    def _run(self, run: str) -> Joined:
        """The run of that name, ready for its next question: other runs may ask in between."""
        if not (self.folder / "runs" / run / "config.json").is_file():
            raise Refused("this site takes part in no such run")
        return _recent(self._joined, run, READY, self._take_up)

    def _take_up(self, run: str) -> Joined:
        """Data, network and method of a run that we have accepted."""
        folder = self.folder / "runs" / run
        table = read_json(folder / "config.json", LEAVE)
        config = own_config(self.options, self.folder, table, self.policy)
        kept = read_json(folder / DATA, LEAVE) if (folder / DATA).exists() else {}
        small_cell = kept.get("small_cell", self.policy.small_cell)
        joined = take_part(self.options, config, folder, small_cell, self._note_step)
        joined.check_data()
        joined.journal = self.journal
        joined.host.spend = partial(self._spend, run)
        return joined

    def _spend(self, run: str, site: str, spent: Spent) -> None:
        """Count private steps before they are taken, if the policy has the budget for them."""
        self.policy.affords(self._account, spent)
        self._account.spend(run, spent)

    # Answering ----------------------------------------------------------------------------------------------

    def _answer(
        self, kind: str, table: Mapping[str, Any], data: Mapping[str, bytes]
    ) -> tuple[bytes, list[str]]:
        """The answer as it leaves, and its leaves that lack small cells."""
        try:
            call = Request.model_validate(dict(table))
        except ValidationError as error:
            place = str(error.errors(include_url=False)[0]["loc"][0])
            raise Refused(f"the question is not in order: '{place[:40]}'") from None
        if call.site != self.options.name:
            raise Refused("the question is for another site")
        if kind != f"{'query' if call.write is None else 'train'}.{call.question}" or "payload" not in data:
            raise Refused("the question is not what its message says it is")
        joined, policy = self._run(call.run), self.policy
        _keep_terms(policy, joined.config)
        if call.blueprint and (part := joined.host.blueprint.difference(call.blueprint)):
            raise Refused(
                f"the coordinator trains by another blueprint than this site: '{part}' is not the same; the "
                f"site's blueprint is drawn from the run's config and its own site.toml"
            )
        if call.site not in call.asked:
            raise Refused("the question goes to other sites")
        policy.asked(call.asked)
        if call.round > joined.config.train.rounds:
            raise Refused("the run has fewer rounds than that")
        if call.question not in joined.config.method.questions():
            raise Refused("the method knows no such question")
        secure = joined.config.exchange.secure
        masks = masks_of(self._member(joined, policy), call, data) if secure else None
        joined.accept(call.ticket)
        joined.count(call.round, policy)
        joined.host.least = max(LEAST, policy.small_cell)
        try:
            answer = joined.host.answer(call, data["payload"], data.get("extra"))
        finally:
            joined.host.forget()
        joined.keep_results(call.round, answer)
        policy.covers(call.question, joined.host.trace.reads)
        released, withheld = joined.release(policy, call.question, answer)
        return (released if masks is None else masked(released, masks, joined.config)), withheld

    # Masking ------------------------------------------------------------------------------------------------

    def _step(self, table: Mapping[str, Any], data: Mapping[str, bytes]) -> bytes:
        """A letter of secure aggregation that comes without a question."""
        try:
            call = StepRequest.model_validate(dict(table))
        except ValidationError as error:
            place = str(error.errors(include_url=False)[0]["loc"][0])
            raise Refused(f"the letter is not in order: '{place[:40]}'") from None
        if call.site != self.options.name or "letter" not in data:
            raise Refused("the letter is for another site, or empty")
        joined, policy = self._run(call.run), self.policy
        _keep_terms(policy, joined.config)
        member = self._member(joined, policy)
        joined.accept(call.ticket)
        return step(member, call.step, data["letter"])

    def _member(self, joined: Joined, policy: Policy) -> Member:
        """Our end of a run's secure aggregation; its secrets live in memory only."""
        make = partial(make_member, self.folder, self.options)
        return bind(_recent(self._members, joined.folder.name, MASKED, make), policy, joined.config)
