"""kill -9 at random moments, then resume; and nothing is ever unpickled on the way. See benchmarks/kill.py
for fifty of them."""

from __future__ import annotations

import contextlib
import json
import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import tomli_w

from equipoise.config import Config
from equipoise.running import run

MakeConfig = Callable[..., Config]
Forked = Callable[..., list[str]]
Rows = Callable[[Path], list[dict[str, Any]]]

# Says who it is when imports are done, so that moments can be drawn over the run itself.
CHILD = """
import os, sys
from equipoise.running import run
print(os.getpid(), flush=True)
run(sys.argv[1], sys.argv[2])
"""

# Any pickle loaded from anywhere ends in find_class, which Python reports to audit hooks.
AUDIT = """
import sys
from pathlib import Path
from equipoise.running import resume, run

seen = []
kinds = ("pickle.", "marshal.")
sys.addaudithook(lambda event, args: seen.append((event, args)) if event.startswith(kinds) else None)

class Stop(Exception):
    pass

def watch(event, facts):
    if event == "round" and facts["round"] == 1:
        raise Stop

try:
    run(sys.argv[1], sys.argv[2], watch=watch)
except Stop:
    pass
resume(sys.argv[2])
resume(sys.argv[2])
found = [repr(args) for event, args in seen if event == "pickle.find_class"]
import pickle
pickle.loads(b"cbuiltins\\nlen\\n.")
classes = [event for event, _ in seen].count("pickle.find_class")
assert classes == len(found) + 1, "the hook does not see pickles"
print(len(found), found[:3])
"""


def write(config: Config, path: Path) -> Path:
    path.write_text(tomli_w.dumps(config.table()))
    return path


@pytest.mark.slow
def test_killed_at_random_moments_and_resumed(
    tiny: MakeConfig, rows: Rows, forked: Forked, tmp_path: Path
) -> None:
    config = tiny("fca", train={"rounds": 6, "batch_size": 32}, evaluate={"every": 2})
    begin = time.monotonic()
    straight = run(config, tmp_path / "straight")
    duration = time.monotonic() - begin
    path, draw = write(config, tmp_path / "config.toml"), random.Random(0)
    reached: list[int] = []
    for _ in range(2):
        # Each kill hits the same run further on, until it is done.
        child = subprocess.Popen(forked(CHILD, path, tmp_path / "killed"), stdout=subprocess.PIPE)
        assert child.stdout is not None
        pid = int(child.stdout.readline())
        time.sleep(draw.uniform(0, duration / 2))
        with contextlib.suppress(ProcessLookupError):  # it was faster than the straight run
            os.kill(pid, signal.SIGKILL)
        assert child.wait() in (0, -signal.SIGKILL)
        child.stdout.close()
        head = tmp_path / "killed" / "checkpoints" / "HEAD.json"
        reached.append(json.loads(head.read_text())["round"] if head.exists() else -1)
    assert reached == sorted(reached)
    killed = run(config, tmp_path / "killed")
    assert killed.state_hash == straight.state_hash
    assert rows(tmp_path / "killed") == rows(tmp_path / "straight")


@pytest.mark.slow
def test_nothing_is_unpickled_while_a_run_is_made_resumed_and_read(tiny: MakeConfig, tmp_path: Path) -> None:
    """In a Python of its own: what is imported counts too."""
    path = write(tiny("fca"), tmp_path / "config.toml")
    done = subprocess.run(
        [sys.executable, "-c", AUDIT, str(path), str(tmp_path / "run")],
        capture_output=True,
        text=True,
        check=False,
        env=os.environ | {"OMP_NUM_THREADS": "1"},
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.split()[0] == "0", done.stdout
