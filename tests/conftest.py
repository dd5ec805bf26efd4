"""Shared fixtures: one thread, a cache folder and a list of trusted code of the tests' own, and the real
images where they are at hand.

What takes a second to import (torch, Equipoise) is imported by fixtures: the process that only deals tests
out to others does without.
"""

from __future__ import annotations

import contextlib
import gc
import logging
import os
import shlex
import shutil
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable, Generator, Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from tests.light import LATER, ONLY

if TYPE_CHECKING:
    from equipoise.config import Config
    from equipoise.exchange import Ledger
    from equipoise.running import Result

NURSERY, DOOR = Path(__file__).with_name("nursery.py"), "EQUIPOISE_TEST_NURSERY"
DEALER = pytest.StashKey[tuple[tempfile.TemporaryDirectory[str], subprocess.Popen[bytes]]]()


def pytest_configure(config: pytest.Config) -> None:
    """Where tests are dealt out to several processes, these have one nursery, and come from it themselves."""
    if config.getoption("numprocesses", None) and not hasattr(config, "workerinput"):
        folder = tempfile.TemporaryDirectory(prefix="nursery-")
        os.environ[DOOR] = f"{folder.name}/door"
        config.stash[DEALER] = (folder, begin_nursery(os.environ[DOOR]))
        tester = shlex.join([sys.executable, "-S", "-E", str(NURSERY), "tester", os.environ[DOOR]])
        config.option.tx = [f"popen//python={tester}"] * len(config.option.tx)
        with contextlib.suppress(Exception):  # of another version of pytest: then each does it for itself
            compile_tests(config)


def pytest_unconfigure(config: pytest.Config) -> None:
    if DEALER in config.stash:
        folder, process = config.stash[DEALER]
        end_nursery(process)
        folder.cleanup()


def compile_tests(config: pytest.Config) -> None:
    """Keep what pytest makes of each file, as it does itself: in a new checkout the processes that run tests
    would all make it at the same time."""
    from _pytest.assertion import rewrite

    if sys.dont_write_bytecode:
        return
    for file in Path(__file__).parent.rglob("*.py"):
        if not file.name.startswith("test_") and file.name != "conftest.py":
            continue
        (folder := rewrite.get_cache_dir(file)).mkdir(exist_ok=True)
        kept = folder / (file.stem + rewrite.PYC_TAIL)
        if rewrite._read_pyc(file, kept) is None:
            mark, code = rewrite._rewrite_test(file, config)
            rewrite._write_pyc(config.stash[rewrite.assertstate_key], code, mark, kept)


def begin_nursery(address: str) -> subprocess.Popen[bytes]:
    one_core = {"OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1"}
    command = [sys.executable, str(NURSERY), "nursery", address]
    return subprocess.Popen(command, stdin=subprocess.PIPE, env=os.environ | one_core, start_new_session=True)


def end_nursery(process: subprocess.Popen[bytes]) -> None:
    """It ends when its input does."""
    assert process.stdin is not None
    process.stdin.close()
    process.wait()


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Generator[None, object, object]:
    """Nothing that is made here is soon garbage."""
    gc.disable()
    try:
        return (yield)
    finally:
        gc.enable()


def pytest_collection_finish() -> None:
    """What is there before the first test stays: Python need not look through it for garbage again and
    again."""
    gc.collect()
    gc.freeze()


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leave to the sweep what only repeats; and begin with what takes long, so that nobody waits for it."""
    wanted = {(test, one) for test, ones in ONLY.items() for one in ones}
    named = {*LATER, *LATER.values()}
    for item in items:
        test, _, parameters = item.nodeid.removeprefix("tests/").partition("[")
        named.discard(test)
        if test in LATER:
            item.add_marker(pytest.mark.sweep)
        if test in ONLY and (test, parameters.removesuffix("]")) not in wanted:
            item.add_marker(pytest.mark.sweep)
        wanted.discard((test, parameters.removesuffix("]")))
    if hasattr(config, "workerinput"):
        items.sort(key=lambda item: item.get_closest_marker("slow") is None)
    if config.args == config.getini("testpaths") and (wanted or named):
        lost = sorted(wanted) + sorted(named)
        raise pytest.UsageError(f"tests/light.py keeps tests that are not there: {lost}")


@pytest.fixture(autouse=True, scope="session")
def _one_thread() -> None:
    """And PyTorch's loggers, of which there are dozens, pass on what they are told: otherwise pytest visits
    each of them six times in every test."""
    import torch

    torch.set_num_threads(1)
    for name, logger in logging.root.manager.loggerDict.items():
        if name.partition(".")[0] == "torch" and isinstance(logger, logging.Logger):
            logger.propagate = True


@pytest.fixture(autouse=True, scope="session")
def _cache(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("EQUIPOISE_CACHE", str(tmp_path_factory.mktemp("cache")))
        patch.setenv("EQUIPOISE_TRUSTED", str(tmp_path_factory.mktemp("trust") / "trusted.jsonl"))
        yield


@pytest.fixture(autouse=True, scope="session")
def _nursery(_cache: None, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Callable[[str], list[str]]]:
    """Engines start their workers through a process that forks them (see `nursery.py`); in a process that
    tests by itself it is there from the first worker on."""
    from equipoise.engine import frames

    usual, begun, lock = frames.command, list[subprocess.Popen[bytes]](), threading.Lock()
    address = os.environ.get(DOOR) or str(tmp_path_factory.mktemp("nursery") / "door")

    def command(module: str) -> list[str]:
        with lock:
            if DOOR not in os.environ and not begun:
                begun.append(begin_nursery(address))
        return [sys.executable, "-S", "-E", str(NURSERY), "worker", address, module]

    frames.command = command
    yield usual
    frames.command = usual
    for process in begun:
        end_nursery(process)


@pytest.fixture(scope="session")
def forked(_nursery: Callable[[str], list[str]]) -> Callable[..., list[str]]:
    """forked(code, *words) → the command of a process that runs a script as `python -c code *words` does, but
    has imported Equipoise already; and it starts workers as tests do. To kill it, kill the process that the
    script says it is."""
    from equipoise.engine import frames

    start = frames.command

    def command(code: str, *words: object) -> list[str]:
        *python, _, address, _ = worker = start("")
        lines = (
            f"import sys\nsys.argv[1:] = {[str(word) for word in words]!r}",
            "from equipoise.engine import frames",
            f"frames.command = lambda module: {worker[:-1]!r} + [module]",
            code,
            "sys.stdout.flush()",
        )
        return [*python, "tester", address, "\n".join(lines)]

    return command


@pytest.fixture(autouse=True, scope="session")
def _ledgers() -> Iterator[Callable[..., Ledger]]:
    """What a run will exchange is found out once for all runs that are alike."""
    from tests.ledgers import remembering

    from equipoise import engine, running

    door, usual = os.environ.get(DOOR), engine.probe
    running.probe = engine.probe = remembering(Path(door).parent if door else None)
    yield usual
    running.probe = engine.probe = usual


@pytest.fixture(autouse=True)
def _real(
    request: pytest.FixtureRequest,
    _nursery: Callable[[str], list[str]],
    _ledgers: Callable[..., Ledger],
) -> None:
    """But not in tests that are about processes, or about what is exchanged."""
    if request.node.get_closest_marker("real_workers"):
        patch = request.getfixturevalue("monkeypatch")
        patch.setattr("equipoise.engine.frames.command", _nursery)
    if request.node.get_closest_marker("real_probe"):
        patch = request.getfixturevalue("monkeypatch")
        patch.setattr("equipoise.running.probe", _ledgers)
        patch.setattr("equipoise.engine.probe", _ledgers)


@pytest.fixture(scope="session")
def shared_data() -> Path:
    """The folder of real images: $EQUIPOISE_DATA, or ../shared/data beside the project."""
    given = os.environ.get("EQUIPOISE_DATA")
    folder = Path(given) if given else Path(__file__).resolve().parents[2] / "shared" / "data"
    if not (folder / "ham10000" / "images.zip").is_file():
        pytest.skip(
            f"no real images: {folder} is missing; set EQUIPOISE_DATA to the folder that has ham10000/"
        )
    return folder


# Tiny runs: three sites, some forty images of 16 pixels, two rounds; a third of a second each ---------------

MakeConfig = Callable[..., "Config"]


@pytest.fixture(scope="session")
def tiny() -> MakeConfig:
    """tiny(method, engine={…}, train={…}, base=…) → a resolved config."""
    from equipoise.config import resolve

    def make(method: str = "fedavg", base: Path | None = None, **sections: dict[str, Any]) -> Config:
        table: dict[str, dict[str, Any]] = {
            "data": {"kind": "phantom", "scale": 0.004, "image_size": 16},
            "partition": {"kind": "iid", "sites": 3},
            "method": {"name": method},
            "train": {"rounds": 2, "batch_size": 32},
            "engine": {"device": "cpu"},
        }
        for name, changes in sections.items():
            table[name] = {**table.get(name, {}), **changes}
        return resolve(table, base)

    return make


@pytest.fixture(scope="session")
def common(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], AbstractContextManager[Path]]:
    """with common(name) as path: … → a path that is the same in all processes that run tests, for one of them
    at a time."""
    import fcntl

    base = tmp_path_factory.getbasetemp()
    root = (base.parent if "PYTEST_XDIST_WORKER" in os.environ else base) / "common"
    root.mkdir(exist_ok=True)

    @contextmanager
    def path(name: str) -> Iterator[Path]:
        with (root / f"{name}.lock").open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            yield root / name

    return path


@pytest.fixture(scope="session")
def once(
    common: Callable[[str], AbstractContextManager[Path]], tmp_path_factory: pytest.TempPathFactory
) -> Callable[[Config], Result]:
    """once(config) → the result of a run in one process; asked again, also by another process that runs
    tests, the same one. Its folder is there to be read, or copied."""
    from equipoise.running import run

    mine, known = tmp_path_factory.mktemp("once"), dict[str, "Result"]()

    def make(config: Config) -> Result:
        if config.digest not in known:
            with common(config.digest) as folder:
                if (folder / "result.json").exists():  # another's: a finished run writes when it is shown
                    folder = Path(shutil.copytree(folder, mine / config.digest))
                known[config.digest] = run(config, folder)
        return known[config.digest]

    return make


@pytest.fixture(scope="session")
def rows() -> Callable[[Path], list[dict[str, Any]]]:
    """The metrics rows of a run folder; bytes depend on who answered how, not on the result."""
    from equipoise.keeping import bare, read_lines

    def read(folder: Path) -> list[dict[str, Any]]:
        lines = [bare(line) for line in read_lines(folder / "metrics.jsonl")[0]]
        return [{key: value for key, value in line.items() if not key.startswith("bytes_")} for line in lines]

    return read
