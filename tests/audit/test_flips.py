"""One bit of one file changes, as disks do it: it is noticed and named, or it makes no difference.

Files are drawn at random from a run that is half done, from one that is finished, from the folders of a
federation that is half done (coordinator and site), and from the image cache; so is the bit. Then everything
is used that reads them. The ordinary suite tries a few of them, `-m audit` a hundred.
"""

from __future__ import annotations

import contextlib
import os
import random
import shutil
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from tests.doctored import rows
from tests.flower.conftest import Node, Wire

from equipoise.config import Config
from equipoise.data import cache
from equipoise.deploy import apps
from equipoise.deploy.coordinator import coordinate
from equipoise.errors import EquipoiseError
from equipoise.keeping import read_lines
from equipoise.report import write_report
from equipoise.running import resume, run
from equipoise.tree import digest
from equipoise.use import export, load
from equipoise.verify import verify

MakeConfig = Callable[..., Config]
FEW, MANY = (
    {"half": 3, "done": 2, "federation": 3, "cache": 2},
    {"half": 30, "done": 25, "federation": 30, "cache": 15},
)
ENDS = ("failed", "refused", "lost")
"""events by which a site or a coordinator tells that something is wrong"""


class Stop(Exception):
    """The run is interrupted."""


def stop(event: str, facts: dict[str, Any]) -> None:
    if event == "round" and facts["round"] == 2:
        raise Stop


@dataclass
class Case:
    """Folders as they are, what may be flipped in them, and what using them comes to."""

    folder: Path
    use: Callable[[Path], Any]
    """all that reads the folder; what it comes to"""
    parts: tuple[str, ...] = ("",)
    """the folders inside it that are flipped in and verified"""
    noticed: Callable[[Path], list[str]] = field(default=lambda folder: [])
    """what was told without an error"""
    used: list[Any] = field(default_factory=list)

    @property
    def expected(self) -> Any:
        """What using it comes to as it is."""
        if not self.used:
            copy = self.folder.with_name(f"{self.folder.name} as it is")
            self.used.append(self.use(shutil.copytree(self.folder, copy)))
        return self.used[0]

    def files(self) -> list[Path]:
        found = (path for part in self.parts for path in (self.folder / part).rglob("*"))
        return sorted(
            path.relative_to(self.folder) for path in found if path.is_file() and path.stat().st_size
        )


def numbers(folder: Path) -> list[dict[str, Any]]:
    """The rows of metrics; how many bytes were sent is counted per attempt."""
    return [
        {key: value for key, value in row.items() if "bytes" not in key}
        for row in rows(folder / "metrics.jsonl")
    ]


# What reads a folder ----------------------------------------------------------------------------------------


def go_on(folder: Path) -> Any:
    found = resume(folder)
    return found.state_hash, found.rounds, found.metrics, numbers(folder)


def look(folder: Path) -> Any:
    """All that is made of a finished run: the page, the models, what is shown again."""
    text = write_report(folder).read_text().replace(str(folder), "")
    models = [load(folder, site) for site in (None, "site-00", "site-01", "site-02")] + [
        load(folder / "model.safetensors")
    ]
    return (
        text,
        [digest(model.tensors) for model in models],
        [model.title for model in models],
        go_on(folder),
    )


def federate(folder: Path) -> Any:
    """Go on with the federation."""
    names = sorted(path.name for path in folder.iterdir() if path.name.startswith("site-"))
    nodes = [Node(i + 2, name.encode(), "then", folder / name) for i, name in enumerate(names)]
    try:
        found = coordinate(Wire(nodes), folder / "run")
        return found.state_hash, found.rounds, numbers(folder / "run")
    finally:
        for name in names:
            with contextlib.suppress(EquipoiseError):
                apps.desk(str(folder / name)).close()
        apps.desk.cache_clear()


def told(folder: Path) -> list[str]:
    """What the journals of a federation say went wrong, or was not what it was."""
    found = []
    for place in (folder / "run", folder / "site-00"):
        lines = read_lines(place / "journal.jsonl")[0]
        found += [str(line) for line in lines if line["event"] in ENDS]
        found += [str(line) for line in lines if line["event"] == "settings"][1:]
    return found


def draw(config: Config) -> Callable[[Path], Any]:
    """Train with the images of a cache."""

    def use(folder: Path) -> Any:
        cache._whole.cache_clear()  # as a process does that has not read them yet
        with pytest.MonkeyPatch.context() as patch:
            patch.setenv("EQUIPOISE_CACHE", str(folder))
            return run(config).state_hash

    return use


# The folders ------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def cases(tiny: MakeConfig, town: Any, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Case]:
    root = tmp_path_factory.mktemp("flips")
    config = tiny("fca", train={"rounds": 3}, evaluate={"select": "best_validation"})
    with pytest.raises(Stop):
        run(config, root / "half", watch=stop)
    resume(shutil.copytree(root / "half", root / "done"))
    write_report(root / "done")
    export(load(root / "done"), root / "done" / "model.safetensors", "safetensors")
    there = town(tiny("fca", evaluate={"select": "best_validation"}))
    with pytest.raises(Stop):
        coordinate(there.wire, there.run, stop)
    for folder in there.sites.values():
        apps.desk(str(folder)).close()
    apps.desk.cache_clear()
    made = {
        "half": Case(root / "half", go_on),
        "done": Case(root / "done", look),
        "federation": Case(there.run.parent, federate, ("run", "site-00"), told),
        "cache": Case(root / "cache", draw(tiny(train={"rounds": 1}))),
    }
    copy = root / "cache as it is"
    copy.mkdir()
    made["cache"].used.append(made["cache"].use(copy))
    shutil.copytree(copy, root / "cache")
    for case in made.values():
        for part in case.parts:
            assert verify(case.folder / part).problems == []
    return made


def flip(path: Path, random: random.Random) -> str:
    """Change one bit and nothing else that the system would tell of the file."""
    before, data = path.stat(), bytearray(path.read_bytes())
    place, bit = random.randrange(len(data)), random.randrange(8)
    data[place] ^= 1 << bit
    path.write_bytes(data)
    os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))
    return f"bit {bit} of byte {place} of {len(data)}"


def attempt(case: Case, path: Path, copy: Path, random: random.Random) -> str:
    """Flip a bit of a copy and use it: what came of it. Another result without a word fails."""
    shutil.copytree(case.folder, copy)
    what = f"{path}: {flip(copy / path, random)}"
    seen = [problem for part in case.parts for problem in verify(copy / part).problems]
    refusal, same = None, False
    try:
        same = case.use(copy) == case.expected
    except EquipoiseError as error:
        refusal = str(error)
    said = case.noticed(copy) if refusal is None else []
    shutil.rmtree(copy)
    if refusal is not None:
        assert "\n" not in refusal, what
        assert seen, f"{what}: verify has not seen it, but using it ended with: {refusal}"
        return "refused"
    assert said or same, f"{what}: another result without a word"
    return "told" if said else "no difference"


def attempts(case: Case, count: int, seed: int, tmp_path: Path) -> dict[str, int]:
    random_ = random.Random(seed)
    files, outcomes = case.files(), dict.fromkeys(("refused", "told", "no difference"), 0)
    chosen = random_.sample(files, min(count, len(files)))
    chosen += random_.choices(files, k=count - len(chosen))
    for number, path in enumerate(chosen):
        outcomes[attempt(case, path, tmp_path / f"copy-{number}", random_)] += 1
    return outcomes


@pytest.mark.parametrize("name", FEW)
def test_a_few_flipped_bits(name: str, cases: dict[str, Case], tmp_path: Path) -> None:
    outcomes = attempts(cases[name], FEW[name], 0, tmp_path)
    assert sum(outcomes.values()) == FEW[name]


@pytest.mark.audit
@pytest.mark.slow
@pytest.mark.parametrize("name", MANY)
def test_without_a_flip_it_comes_to_the_same(name: str, cases: dict[str, Case], tmp_path: Path) -> None:
    case = cases[name]
    assert case.use(shutil.copytree(case.folder, tmp_path / name)) == case.expected


@pytest.mark.audit
@pytest.mark.slow
@pytest.mark.parametrize("name", MANY)
def test_a_hundred_flipped_bits(name: str, cases: dict[str, Case], tmp_path: Path) -> None:
    outcomes = attempts(cases[name], MANY[name], 1, tmp_path)
    print(f"{name}: {outcomes}")
    assert sum(outcomes.values()) == MANY[name]
    assert name == "cache" or outcomes["refused"] > MANY[name] / 4


def test_every_kind_of_file_is_drawn_from(cases: dict[str, Case]) -> None:
    names = {name: {path.name for path in case.files()} for name, case in cases.items()}
    assert {
        "config.toml",
        "metrics.jsonl",
        "timing.jsonl",
        "journal.jsonl",
        "HEAD.json",
        "notes.jsonl",
    } <= names["half"]
    assert {
        "result.json",
        "blueprint.json",
        "ledger.json",
        "data.json",
        "features.json",
        "report.html",
    } <= names["done"]
    assert {"federation.json", "roster.json", "tickets.json", "ticket.json", "config.json"} <= names[
        "federation"
    ]
    assert {"site.toml", "policy.toml", "data.json"} <= names["federation"]
    assert {Path(name).suffix for name in names["cache"]} == {".raw", ".json"}
