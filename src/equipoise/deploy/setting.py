"""Setting up a site, and trying it out before it takes part."""

from __future__ import annotations

import re
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from equipoise.config import load, override
from equipoise.data.pixels import survey
from equipoise.data.warn import warnings_of
from equipoise.deploy.card import SPLITS, rows
from equipoise.deploy.coordinator import federated
from equipoise.deploy.keys import NEW_AUTHORITY, check_dates, new_pair, own_key, read_public
from equipoise.deploy.policy import Refused, approved, marks_of, read_policy
from equipoise.deploy.roster import fingerprint, own_identity, read_roster, same_key
from equipoise.deploy.site import SiteOptions, own_config, read_site, take_part
from equipoise.errors import ConfigError, WeightsError
from equipoise.exchange import Ledger
from equipoise.locate import Code, Parts
from equipoise.methods import METHODS, look_up
from equipoise.names import unknown
from equipoise.running import one_thread
from equipoise.trust import remember

SITE = """\
# Who we are, where the coordinator is, and our data. Nothing in this file leaves the site, except the name.
name = "{name}"
superlink = "{superlink}"
key = "keys/site"
certificate = "keys/ca.crt"
device = "auto"

# Files of weights that a run may start from: the name or sha256 in its config, and where the file is here.
# No other is opened.
[weights]
# "efficientnet-lite0-57934424.pth" = "weights/efficientnet-lite0-57934424.pth"

# Our images, as in the config of a run (docs/config.md). Name all classes of the federation in the agreed
# order, also those we lack.
[data]
kind = "csv"
path = "rows.csv"
images = "images"
label = "diagnosis"
classes = ["melanoma", "nevus"]
group = "patient"
image_size = 64
"""
POLICY = """\
# What this site allows. It is read before every answer: a change counts at once.

# Nothing is reported of a class that has fewer images than this: it is left out of counts, sums and tests,
# and trained on like all others (0: no such rule).
small_cell = 5

# A question is answered only if at least so many sites are asked, in a run that adds up no fewer answers:
# a sum over one site is that site's value.
min_sites = 3

# "required": only runs whose answers are masked (exchange.secure), and nothing that is read for this site
# alone, whatever `each` says.
secure = "allowed"

# How our updates may be combined with those of other sites: of a mean the coordinator keeps the sum only;
# "median", "trimmed" and "krum" hold out against hostile sites, but the coordinator reads ours alone.
reduce = ["mean"]

# What a run may do here: images per training step at least; local optimisers; how many questions it may ask.
batch_size = 8
optimizers = ["sgd", "adam", "adamw"]
questions_per_round = 50
questions_per_run = 10000

# What the coordinator may read for this site alone (question.leaf). Take "evaluate.own" out to keep our own
# test results here; we are then left out of evaluation, not of training. Take "join.counts" out to tell how
# many images we have, but not of what.
each = ["evaluate.own", "join.counts"]

# What training may spend here in privacy, over all runs: then only runs with differential privacy train
# here, and none once it is spent (docs/privacy.md).
# privacy = {{ epsilon = 8.0, delta = 1e-5 }}

# Methods that may run here: name = fingerprint of its files, as `equipoise site check` shows it. A changed
# file is refused. Under [parts] stand networks, views, losses and other code that a run may bring.
[methods]
{methods}
[parts]
# "our_net.py:Net" = "…"
"""


RULE = re.compile("policy rule '([a-z_]+)'")
FIXES = {
    "methods": 'To allow it, write its name and fingerprint under [methods] in policy.toml: "NAME" = "…".',
    "parts": 'To allow it, write its name and fingerprint under [parts] in policy.toml: "NAME" = "…".',
    "each": "To allow it, add the name to `each` in policy.toml.",
    "small_cell": "To allow it, lower `small_cell` in policy.toml.",
    "min_sites": "Or lower `min_sites` in policy.toml.",
    "batch_size": "Ask the coordinator for a larger train.batch_size, or lower `batch_size` in policy.toml.",
    "optimizers": "Ask the coordinator for another train.optimizer, or add this one to `optimizers` in "
    "policy.toml.",
}
"""by rule: what the site can do about a refusal"""


def new_site(folder: Path, name: str, superlink: str, methods: Sequence[str]) -> list[Path]:
    """Make a site's folder; nothing that is there is replaced."""
    if (folder / "site.toml").exists():
        raise ConfigError(
            f"{folder} is a site's folder already: edit {folder / 'site.toml'}, or choose another folder"
        )
    prints = {one: _mark(one, folder) if ":" in one else _known(one) for one in methods}
    (folder / "keys").mkdir(parents=True, exist_ok=True, mode=0o700)
    folder.chmod(0o700)
    (folder / "site.toml").write_text(SITE.format(name=name, superlink=superlink))
    try:
        read_site(folder)
    except ConfigError:
        (folder / "site.toml").unlink()
        raise
    lines = "".join(f'"{one}" = "{text}"\n' for one, text in prints.items())
    (folder / "policy.toml").write_text(POLICY.format(methods=lines or '# "fca" = "…"\n'))
    made = [folder / "site.toml", folder / "policy.toml"]
    return made + ([] if (folder / "keys" / "site").exists() else new_pair(folder / "keys" / "site"))


def _mark(name: str, folder: Path) -> str:
    """The fingerprint of a method of the user's own, which is run to see that it is one."""
    parts = Parts(folder, remember)
    look_up(name, parts)
    return parts.codes[name].approval


def _known(name: str) -> str:
    if name not in METHODS:
        raise ConfigError(unknown("method", name, METHODS))
    return approved([name])[name]


def _roster(folder: Path, options: SiteOptions) -> str:
    """What a site knows of the others."""
    if not (folder / options.roster).is_file():
        return "none: this site can take part in no masked run (exchange.secure)"
    sites = read_roster(folder / options.roster, folder / options.certificate)
    same_key(sites, options.name, own_identity(folder / options.key))
    return f"{len(sites)} sites, signed; fingerprint to compare with theirs: {fingerprint(sites)}"


def _with_print(sentence: str, prints: Sequence[str]) -> str:
    """A refusal of code, with the fingerprint that would approve it."""
    return "; ".join([sentence, *(text for text in prints if text.split("'")[1] in sentence.split("'")[2:])])


def with_fix(sentence: str) -> str:
    """A refusal, with what to write into policy.toml, or to agree on, so that there is none."""
    match = RULE.match(sentence)
    fix = FIXES.get(match[1]) if match else None
    return sentence if fix is None else f"{sentence}. {fix}"


@dataclass(frozen=True)
class Checked:
    """What was tried at a site; with a run's config, what would leave and which rules that breaks."""

    facts: dict[str, str]
    joining: list[dict[str, Any]]
    """the ledger's rows for joining, before any question"""
    ledger: Ledger | None
    refused: list[str]
    warnings: list[str]
    """what may be wrong with the data"""


def check_site(folder: Path, file: Path | None = None, overrides: Sequence[str] = ()) -> Checked:
    """Try data, keys and policy of a site; with a run's config, ask its questions of two generated sites."""
    options, policy = read_site(folder), read_policy(folder / "policy.toml")
    key = folder / options.key
    read_public(key.with_name(key.name + ".pub"))
    own_key(key)
    if not (folder / options.certificate).is_file():
        raise ConfigError(f"there is no {folder / options.certificate}: ask the coordinator for ca.crt")
    check_dates(folder / options.certificate, NEW_AUTHORITY)
    refused, seen = list[str](), list[Code]()

    def allow(code: Code) -> None:
        seen.append(code)
        policy.allow(code)

    try:
        table = {} if file is None else override(load(file), overrides)
        config = own_config(options, folder, table, policy, allow)
    except (
        Refused,
        WeightsError,
    ) as error:  # what is not approved is not run: what it would send cannot be tried
        code = next((one for one in reversed(seen) if f"'{one.name}'" in str(error)), None)
        refused.append(str(error) + (f"; its fingerprint is {code.approval}" if code else ""))
        config, file = own_config(options, folder, {}, policy, allow), None
    with one_thread(), tempfile.TemporaryDirectory() as place:
        joined = take_part(options, config, Path(place), policy.small_cell)
        ledger = None if file is None else joined.ledger()
    samples = joined.dataset.samples
    train = ", ".join(
        f"{name} {n}" for name, n in zip(samples.classes, joined.counts["train"].tolist(), strict=True)
    )
    changed = [name for name, text in policy.methods.items() if name in METHODS and _known(name) != text]
    facts = {
        "site": f"{options.name}, coordinator {options.superlink or 'not given'}",
        "keys": f"{key.name} is ours alone; {options.certificate} is there",
        "data": f"{len(samples):,} images of {len(samples.classes)} classes; to train on: {train}",
        "roster": _roster(folder, options),
        "policy": f"approved: {', '.join(policy.methods) or 'no method'}; changed since: "
        f"{', '.join(changed) or 'none'}",
    }
    if ledger is not None:
        refused += policy.terms(federated(config))
        prints = [f"the fingerprint of '{name}' is {mark}" for name, mark in marks_of(config).items()]
        refused = [_with_print(sentence, prints) for sentence in refused]
        for line in ledger.lines:
            refused += policy.objections(line.question, line.up, **joined.facts, read=("train",))
    if text := joined.withholding(policy):
        facts["withheld"] = text
    joining = rows(samples.classes, samples.images.shape[1:], joined.card(policy), policy.each)
    splits = {split: getattr(joined.held, split) for split in SPLITS}
    doubts = warnings_of(samples, splits, survey(samples), config.data.declared, agreed=True)
    refused = [with_fix(sentence) for sentence in dict.fromkeys(refused)]
    return Checked(facts, joining, ledger, refused, doubts)
