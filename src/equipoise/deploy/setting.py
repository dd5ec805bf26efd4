"""Setting up a site, and trying it out before it takes part."""

from __future__ import annotations

import stat
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from equipoise.config import read
from equipoise.deploy.card import rows
from equipoise.deploy.keys import NEW_AUTHORITY, check_dates, new_pair, read_public
from equipoise.deploy.policy import Refused, approved, fingerprint, read_policy
from equipoise.deploy.site import own_config, read_site, take_part
from equipoise.engine import probe
from equipoise.errors import ConfigError
from equipoise.exchange import Ledger
from equipoise.methods import METHODS, find
from equipoise.names import unknown
from equipoise.running import one_thread

SITE = """\
# Who we are, where the coordinator is, and our data. Nothing in this file leaves the site, except the name.
name = "{name}"
superlink = "{superlink}"
key = "keys/site"
certificate = "keys/ca.crt"
device = "auto"

# Our images, as in the config of a run (docs/config.md). Name all classes of the federation in the agreed order, also those we lack.
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

# Nothing is told class by class while a class has fewer images than this (0: no such rule).
small_cell = 5

# What the coordinator may read for this site alone (question.leaf). Take "evaluate.own" out to keep our own test results here;
# we are then left out of evaluation, not of training. Take "join.counts" out to tell how many images we have, but not of what.
each = ["evaluate.own", "join.counts"]

# Methods that may run here: name = fingerprint of its files, as `equipoise site check` shows it. A changed file is refused.
[methods]
{methods}"""


def new_site(folder: Path, name: str, superlink: str, methods: Sequence[str]) -> list[Path]:
    """Make a site's folder; nothing that is there is replaced."""
    if (folder / "site.toml").exists():
        raise ConfigError(f"{folder} is a site's folder already: edit {folder / 'site.toml'}, or choose another folder")
    prints = {one: fingerprint(find(one, folder)) if ":" in one else _known(one) for one in methods}
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


def _known(name: str) -> str:
    if name not in METHODS:
        raise ConfigError(unknown("method", name, METHODS))
    return approved([name])[name]


@dataclass(frozen=True)
class Checked:
    """What was tried at a site; with a run's config, what would leave and which rules that breaks."""

    facts: dict[str, str]
    joining: list[dict[str, Any]]
    """the ledger's rows for joining, before any question"""
    ledger: Ledger | None
    refused: list[str]


def check_site(folder: Path, file: Path | None = None) -> Checked:
    """Try data, keys and policy of a site; with a run's config, ask its questions of two made-up sites."""
    options, policy = read_site(folder), read_policy(folder / "policy.toml")
    key = folder / options.key
    read_public(key.with_name(key.name + ".pub"))
    if not key.is_file() or stat.S_IMODE(key.stat().st_mode) & 0o077:
        raise ConfigError(f"{key} must be there and readable by its owner only: chmod 600 {key}")
    if not (folder / options.certificate).is_file():
        raise ConfigError(f"there is no {folder / options.certificate}: ask the coordinator for ca.crt")
    check_dates(folder / options.certificate, NEW_AUTHORITY)
    with one_thread(), tempfile.TemporaryDirectory() as place:
        config = own_config(options, folder, {} if file is None else read(file).table())
        joined = take_part(options, config, Path(place))
        ledger = None if file is None else probe(joined.host, 1, exact=False)
    samples = joined.stuff.samples
    train = ", ".join(f"{name} {n}" for name, n in zip(samples.classes, joined.counts["train"].tolist(), strict=True))
    changed = [name for name, text in policy.methods.items() if name in METHODS and _known(name) != text]
    facts = {
        "site": f"{options.name}, coordinator {options.superlink or 'not given'}",
        "keys": f"{key.name} is ours alone; {options.certificate} is there",
        "data": f"{len(samples):,} images of {len(samples.classes)} classes; to train on: {train}",
        "policy": f"approved: {', '.join(policy.methods) or 'no method'}; changed since: {', '.join(changed) or 'none'}",
    }
    refused = list[str]()
    if ledger is not None:
        try:
            policy.approve(config.method_name, type(config.method))
        except Refused as error:
            refused.append(f"{error}; its fingerprint is {fingerprint(type(config.method))}")
        for line in ledger.lines:
            refused += policy.objections(line.question, line.up, **joined.facts, read=("train",))
    joining = rows(samples.classes, samples.images.shape[1:], policy.each)
    return Checked(facts, joining, ledger, list(dict.fromkeys(refused)))
