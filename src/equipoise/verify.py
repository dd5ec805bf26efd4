"""A folder checked without changing it: every file that has a digest, and what its files say of each other.

Two journals of one federation can be held against each other: each has written down the heads that the
other's had on the way, so neither can have been cut or written anew by one side alone.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from equipoise.data.cache import check_cache
from equipoise.deploy import settings
from equipoise.errors import StorageError
from equipoise.exchange import unseal
from equipoise.exchange.codec import CodecError
from equipoise.keeping import FIRST, read_json, read_lines, read_text
from equipoise.run_folder import CARD, CHECKPOINTS, CONFIG, JOURNAL, METRICS, PAGE, PRIVATE, RESULT, TIMING
from equipoise.server import Checkpoints
from equipoise.site import Store

TICKET = "ticket.json"
KEEPING = (PRIVATE, "private")
"""folders that hold a folder of private state per site"""
FOREIGN = ("flower", "keys", "tensorboard", "mlflow", "wandb")
"""folders of files that are not ours to check"""
FIX = "restore it from a copy"
NAME = "name a run folder, a site's folder or the image cache"
Line = dict[str, Any]


@dataclass
class Findings:
    """What was looked at, and what is wrong with it."""

    checked: list[str] = field(default_factory=list)
    """files that are as they were written"""
    without_digest: list[str] = field(default_factory=list)
    """files of which nobody can say"""
    problems: list[str] = field(default_factory=list)

    @contextmanager
    def noting(self) -> Iterator[None]:
        """Write a failure down, and go on."""
        try:
            yield
        except StorageError as error:
            self.problems.append(str(error))

    def expect(self, right: bool, problem: str) -> None:
        if not right:
            self.problems.append(problem)


def verify(folder: Path, other: Path | None = None) -> Findings:
    """Check all there is in a folder; `other` is the journal of the other side of a federation, or its
    folder."""
    if not folder.is_dir():
        raise StorageError(f"there is no folder {folder}: {NAME}")
    findings = Findings()
    files = sorted(path for path in folder.rglob("*") if path.is_file())
    for path in files:
        inside = path.relative_to(folder)
        check = None if set(inside.parts[:-1]) & set(FOREIGN) else check_of(path)
        if check is None:
            findings.without_digest.append(str(inside))
            continue
        before = len(findings.problems)
        with findings.noting():
            check(path)
        if len(findings.problems) == before:
            findings.checked.append(str(inside))
    if not findings.checked and not findings.problems:
        raise StorageError(f"{folder} holds no file with a digest: {NAME}")
    for path in files:
        with findings.noting():
            if path.name == CONFIG:
                _check_run(path.parent, findings)
            elif path.name == "site.toml":
                _check_site(path.parent, findings)
    if other is not None:
        with findings.noting():
            findings.problems += compared(_journal(folder), _journal(other))
    return findings


# One file ---------------------------------------------------------------------------------------------------


def check_of(path: Path) -> Callable[[Path], object] | None:
    """How a file is checked, or None where it has no digest."""
    if path.suffix == ".json":
        return lambda path: read_json(path, FIX)
    if path.suffix == ".jsonl":
        return _check_lines
    if path.suffix == ".safetensors":
        return _check_tensors
    if path.suffix == ".raw":
        return check_cache
    if path.name in (CONFIG, PAGE, CARD):
        return lambda path: read_text(path, FIX)
    return None


def _check_lines(path: Path) -> None:
    if read_lines(path)[1] != path.stat().st_size:
        raise StorageError(f"{path}: the last line is cut short, by a crash or because it is being written")


def _check_tensors(path: Path) -> None:
    if path.parent.parent.name in KEEPING:
        Store(path.parent.parent).read(path.parent.name, path.stem)
        return
    try:
        unseal(path.read_bytes())
    except (OSError, CodecError) as error:
        raise StorageError(f"{path} is damaged or was changed ({error}): {FIX}") from error


# What files say of each other -------------------------------------------------------------------------------


def _check_run(folder: Path, findings: Findings) -> None:
    """Metrics, journal, checkpoints and result of a run must fit together."""
    checkpoints = Checkpoints(folder / CHECKPOINTS, make=False)
    newest = checkpoints.newest()
    if newest is None:
        return
    header = newest[1]
    rows = {line["hash"]: line["round"] for line in read_lines(folder / METRICS)[0]}
    heads = {FIRST, *(line["hash"] for line in read_lines(folder / JOURNAL)[0])}
    lost = f"{folder / METRICS} has not the rows it had when"
    cut = f"{folder / JOURNAL} has lost lines or was written anew since"
    findings.expect(header.metrics in {FIRST, *rows}, f"{lost} the newest checkpoint was written: {FIX}")
    findings.expect(header.journal in heads, f"{cut} the newest checkpoint was written: {FIX}")
    for round in checkpoints.rounds():
        with findings.noting():
            _check_parent(checkpoints, round, findings)
    for site, version in header.versions.items():
        path = folder / PRIVATE / site / f"{version}.safetensors"
        there = path.is_file() or not (folder / PRIVATE).is_dir()
        findings.expect(there, f"{path} is missing, and the newest checkpoint needs it: {FIX}")
    if (folder / RESULT).is_file():
        result = read_json(folder / RESULT, FIX)
        last = next(reversed(rows), FIRST)
        timed = {line["round"] for line in read_lines(folder / TIMING)[0]}
        findings.expect(result["metrics_hash"] == last, f"{lost} the run ended: {FIX}")
        findings.expect(result["journal_hash"] in heads, f"{cut} the run ended: {FIX}")
        same = result["state_hash"] == header.state
        findings.expect(same, f"{folder / RESULT} is not of the newest checkpoint: {FIX}")
        findings.expect(set(rows.values()) <= timed, f"{folder / TIMING} has lost rows: {FIX}")


def _check_parent(checkpoints: Checkpoints, round: int, findings: Findings) -> None:
    """A checkpoint names the one before it."""
    if round - 1 in checkpoints.rounds():
        parent, before = checkpoints.load(round)[1].parent, checkpoints.load(round - 1)[1].state
        path = checkpoints.path(round)
        findings.expect(parent == before, f"{path} does not follow the checkpoint before it: {FIX}")


def _check_site(folder: Path, findings: Findings) -> None:
    """A site's journal must reach up to the last message of every run, and know the settings."""
    lines = read_lines(folder / JOURNAL)[0]
    heads = {FIRST, *(line["hash"] for line in lines)}
    for path in sorted(folder.glob(f"runs/*/{TICKET}")):
        with findings.noting():
            reached = read_json(path, FIX)["journal"] in heads
            cut = f"{folder / JOURNAL} has lost lines or was written anew since {path} was: {FIX}"
            findings.expect(reached, cut)
    recorded = [line["files"] for line in lines if line["event"] == settings.EVENT]
    now = settings.digests(folder)
    for name in sorted({*now, *recorded[-1]} if recorded else ()):
        same = now.get(name) == recorded[-1].get(name)
        changed = f"{folder / name} is not what it was when this site last looked"
        findings.expect(same, f"{changed}: if you did not change it, {FIX}")


# Two journals -----------------------------------------------------------------------------------------------


def _journal(place: Path) -> list[Line]:
    path = place / JOURNAL if place.is_dir() else place
    if not path.is_file():
        raise StorageError(f"there is no journal {path}: name a {JOURNAL}, or the folder that holds it")
    return read_lines(path)[0]


def compared(one: Sequence[Line], two: Sequence[Line]) -> list[str]:
    """Sentences on what a coordinator's and a site's journal, either given first, say wrongly of each
    other."""
    sides = {bool(_site_name(lines)): lines for lines in (one, two)}
    if set(sides) != {True, False}:
        return ["these are not the journals of a coordinator and a site: name one of each"]
    coordinator, site = sides[False], sides[True]
    name = _site_name(site)
    received = [line for line in coordinator if line["event"] == "received" and line["site"] == name]
    runs = {line["run"] for line in received}
    questions = [line for line in site if line.get("run") in runs and line.get("coordinator")]
    if not received or not questions:
        return [f"the two journals know nothing of each other: has '{name}' ever answered this run?"]
    return [
        *_strange(received, "journal", site, "coordinator", f"site '{name}'"),
        *_strange(questions, "coordinator", coordinator, f"site '{name}'", "coordinator"),
    ]


def _site_name(lines: Sequence[Line]) -> str | None:
    """The site whose journal this is, or None for a coordinator's."""
    return next((str(line["site"]) for line in lines if line["event"] == settings.EVENT), None)


def _strange(lines: Sequence[Line], key: str, theirs: Sequence[Line], keeper: str, writer: str) -> list[str]:
    """A sentence on the first head that was received from somebody and is not in their journal."""
    heads = {FIRST, *(line["hash"] for line in theirs)}
    missing: list[Mapping[str, Any]] = [line for line in lines if line[key] not in heads]
    if not missing:
        return []
    return [
        f"the journal of the {writer} was cut or written anew: {len(missing)} of the {len(lines)} heads that "
        f"the {keeper} has of it are not in it, the first in line {missing[0]['seq'] + 1} of the {keeper}'s"
    ]
