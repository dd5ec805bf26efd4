"""Copies of a process: with files and signals of their own, ended and reaped; never of one with threads."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import textwrap
import threading
from collections.abc import Callable
from pathlib import Path

import pytest

from equipoise.engine.fork import can_fork

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="copies are made on Linux only")


@pytest.fixture
def alone(forked: Callable[..., list[str]]) -> Callable[..., str]:
    """alone(script, *words): what it prints in a process of its own, without threads."""
    begin = "import os, sys, signal\nfrom equipoise.engine.fork import Copy, can_fork\n"

    def run(script: str, *words: object) -> str:
        command = forked(begin + textwrap.dedent(script), *words)
        done = subprocess.run(command, capture_output=True, text=True, timeout=120)
        assert done.returncode == 0, done.stderr
        return done.stdout

    return run


def test_a_process_with_threads_is_not_copied() -> None:
    done = threading.Event()
    thread = threading.Thread(target=done.wait)
    thread.start()
    try:
        assert not can_fork()
    finally:
        done.set()
        thread.join()


def test_a_copy_answers_on_its_pipes_lets_go_of_files_and_has_an_end_of_its_own(
    alone: Callable[..., str], tmp_path: Path
) -> None:
    script = """
        import fcntl
        assert can_fork()
        locked = open(sys.argv[1], "w")
        fcntl.flock(locked, fcntl.LOCK_EX)
        signal.signal(signal.SIGTERM, lambda *_: None)
        def work():
            import atexit
            atexit.register(lambda: os.write(2, b"never"))
            line = sys.stdin.buffer.raw.readline()
            os.write(1, line.upper())
            os.write(1, str(signal.getsignal(signal.SIGTERM) == signal.SIG_DFL).encode())
            sys.stdin.buffer.raw.readline()
        copy = Copy(work)
        assert copy.poll() is None
        copy.stdin.write(b"hello\\n"); copy.stdin.flush()
        print(os.read(copy.stdout.fileno(), 100))
        locked.close()
        again = open(sys.argv[1], "w")
        fcntl.flock(again, fcntl.LOCK_EX | fcntl.LOCK_NB)  # the copy does not hold it
        assert os.getsid(copy.pid) == copy.pid
        copy.stdin.close()
        print(copy.wait(30))
        killed = Copy(lambda: signal.pause())
        killed.kill()
        print(killed.wait(30))
        failed = Copy(lambda: 1 / 0)
        print(failed.wait(30))
    """
    lines = alone(script, tmp_path / "lock").splitlines()
    assert lines[0].startswith("b'HELLO")
    assert lines[1:] == ["0", str(-signal.SIGKILL), "1"]


RUN = """
    import json
    from pathlib import Path
    from equipoise.engine.fork import Copy
    from equipoise.running import run
    seen = []
    def wrap(engine):
        seen.append([type(worker._process).__name__ for worker in engine.workers])
        return engine
    table = json.loads(sys.argv[1])
    same = [run(table | {"engine": {"kind": "serial", "device": "cpu"}}, sys.argv[2] + "/serial")]
    pool = {"engine": {"kind": "pool", "workers": 2, "device": "cpu"}}
    same.append(run(table | pool, sys.argv[2] + "/pool", wrap=wrap))
    import threading
    from equipoise.engine import frames
    frames.command = lambda module: [sys.executable, "-m", module]  # as a user's run starts them
    threading.Thread(target=signal.pause, daemon=True).start()
    pool["engine"]["workers"] = 1
    same.append(run(table | pool, sys.argv[2] + "/threads", wrap=wrap))
    print(json.dumps([seen, [one.state_hash for one in same], [one.metrics for one in same]]))
"""


OWN = """
    from equipoise.methods.fca import FCA

    class Louder(FCA):
        def loss(self, net, batch, loc):
            return 2 * super().loss(net, batch, loc)
"""


@pytest.mark.slow
def test_copied_workers_have_the_same_bits_as_one_process_and_as_workers_started_anew(
    alone: Callable[..., str], tmp_path: Path
) -> None:
    (own := tmp_path / "own.py").write_text(textwrap.dedent(OWN))
    table = {
        "data": {"kind": "phantom", "scale": 0.004, "image_size": 16},
        "partition": {"kind": "iid", "sites": 3},
        "method": {"name": f"{own}:Louder"},
        "train": {"rounds": 2},
    }
    seen, states, metrics = json.loads(alone(RUN, json.dumps(table), tmp_path).splitlines()[-1])
    assert seen == [["Copy", "Copy"], ["Popen"]]
    assert len(set(states)) == 1
    assert metrics[0] == metrics[1] == metrics[2]


def test_what_the_collector_was_told_to_leave_alone_it_still_does(alone: Callable[..., str]) -> None:
    script = """
        import gc
        gc.unfreeze()
        def made():
            copy = Copy(lambda: None)
            copy.wait()
            return gc.get_freeze_count() > 0
        print(made())
        gc.freeze()
        print(made())
    """
    assert alone(script).split() == ["False", "True"]
