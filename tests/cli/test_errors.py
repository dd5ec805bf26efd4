"""A failure is one sentence on standard error and the exit code of its kind; with --json also a JSON
object."""

from __future__ import annotations

import errno
import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import equipoise
import equipoise.running

FAILURES = {
    "unknown key": (["train.round=3"], 2, "did you mean 'rounds'"),
    "unknown method": (["method.name=fedavgg"], 2, "did you mean 'fedavg'"),
    "not an override": (["train.rounds"], 2, "section.key=value"),
    "wrong kind of value": (["train.rounds=many"], 2, "train.rounds"),
    "missing data": (["data={kind='csv', path='gone.csv', label='x'}"], 3, "gone.csv"),
    "impossible partition": (["partition={kind='iid', sites=5000}"], 4, "5000"),
    "missing weights": (["net.weights='gone.safetensors'"], 5, "gone.safetensors"),
    "wrong task": (["method.name=fca", "data.task=multi", "train.objective=bce"], 6, "fca"),
    "too few sites": (["exchange.min_sites=7"], 7, "6 of 6 sites"),
}


@pytest.mark.parametrize("name", FAILURES)
def test_each_kind_of_failure_has_its_code(cli, tiny, name: str) -> None:
    overrides, code, part = FAILURES[name]
    done = cli("run", tiny, *overrides, "--out", "out", "--json")
    assert done.code == code
    assert done.err.count("\n") == 1
    assert part in done.err
    assert json.loads(done.out) == {"error": done.err.strip(), "exit_code": code}
    if code == 2:
        assert not Path("out").exists()
    if code in (2, 3, 4, 5, 6):
        assert cli("check", tiny, *overrides).code == code


def test_a_missing_file_and_a_folder_instead_of_one(cli) -> None:
    assert cli("run", "gone.toml") == (2, "", "there is no config file gone.toml\n")
    Path("folder").mkdir()
    assert "equipoise resume folder" in cli("run", "folder").err


def test_a_folder_that_is_no_run(cli) -> None:
    done = cli("resume", "nowhere")
    assert done.code == 8
    assert "no config.toml" in done.err


def test_a_folder_of_another_run(cli, tiny) -> None:
    assert cli("run", tiny, "train.rounds=0", "--out", "out").code == 0
    done = cli("run", tiny, "train.rounds=1", "--out", "out")
    assert done.code == 8
    assert "another config" in done.err


def test_a_damaged_run(cli, tiny) -> None:
    assert cli("run", tiny, "train.rounds=1", "--out", "out").code == 0
    newest = max(Path("out/checkpoints").glob("*.safetensors"))
    newest.write_bytes(newest.read_bytes()[:-5])
    done = cli("resume", "out")
    assert done.code == 8
    assert newest.name in done.err


def test_usage(cli) -> None:
    done = cli("frobnicate")
    assert done.code == 2
    assert done.err == "No such command 'frobnicate'.\n"
    assert cli("demo", "--workers", 0).code == 2


@pytest.mark.parametrize(
    ("number", "code", "part"), [(errno.ENOSPC, 8, "disk is full"), (errno.EIO, 1, "EQUIPOISE_DEBUG=1")]
)
def test_what_the_system_refuses(cli, tiny, monkeypatch, number: int, code: int, part: str) -> None:
    def fail(*args: object, **kwargs: object) -> None:
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(equipoise.running, "run", fail)
    done = cli("run", tiny)
    assert done.code == code
    assert part in done.err and "Traceback" not in done.err
    monkeypatch.setenv("EQUIPOISE_DEBUG", "1")
    assert "Traceback" in cli("run", tiny).err


def stopping(with_signal: signal.Signals) -> Callable[..., Any]:
    """`equipoise.run`, sent a signal by itself when the first round is over."""
    run = equipoise.running.run

    def stopped(config: Any, out: Path, watch: Callable[[str, dict[str, Any]], None]) -> Any:
        def tell(event: str, facts: dict[str, Any]) -> None:
            watch(event, facts)
            if event == "round":
                os.kill(os.getpid(), with_signal)

        return run(config, out, watch=tell)

    return stopped


@pytest.fixture
def keyboard() -> Iterator[None]:
    """Python's own answer to Ctrl-C, also where the tests were started in the background and ignore it."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


@pytest.fixture(scope="module")
def straight() -> dict[str, Any]:
    """What a run that nobody interrupts prints; the first test that asks fills it in."""
    return {}


@pytest.mark.usefixtures("keyboard")
@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_an_interrupted_run_goes_on_to_the_same_result(
    cli, tiny, monkeypatch, straight: dict[str, Any], number: signal.Signals, code: int
) -> None:
    if not straight:
        straight |= json.loads(cli("run", tiny, "--out", "straight", "--json").out)
    with monkeypatch.context() as patch:
        patch.setattr(equipoise.running, "run", stopping(number))
        done = cli("run", tiny, "--out", "stopped", "--quiet")
    assert done == (code, "", "interrupted; `equipoise resume stopped` continues\n")
    assert not Path("stopped/result.json").exists()
    resumed = json.loads(cli("resume", "stopped", "--json").out)
    assert resumed["state_hash"] == straight["state_hash"]
    assert resumed["metrics"] == straight["metrics"]
    assert Path("stopped/report.html").is_file()


@pytest.mark.slow
@pytest.mark.parametrize("new", [False, pytest.param(True, marks=pytest.mark.sweep)])
def test_a_real_process_ends_cleanly_with_its_workers(
    tiny: Path, forked: Callable[..., list[str]], new: bool
) -> None:
    """New, or forked from one that has imported all it needs."""
    code = "import os\nfrom equipoise.cli import main\nprint(os.getpid(), flush=True)\nmain(sys.argv[1:])"
    words = ["run", str(tiny), "train.rounds=500", "engine.kind=pool", "engine.workers=1", "--out", "out"]
    command = [sys.executable, "-m", "equipoise.cli", *words] if new else forked(code, *words)
    environment = os.environ | {"PYTHONPATH": str(Path(equipoise.__file__).parents[1])}
    with subprocess.Popen(
        command,
        env=environment,
        cwd=tiny.parent,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as process:
        assert process.stdout is not None and process.stderr is not None
        itself = process.pid if new else int(process.stdout.readline())
        lines = iter(process.stderr.readline, "")
        assert any(line.startswith("round 1/") for line in lines)
        os.kill(itself, signal.SIGTERM)
        rest = process.stderr.read()
    assert process.returncode == 143
    assert rest.endswith("interrupted; `equipoise resume out` continues\n")
    assert "Traceback" not in rest
