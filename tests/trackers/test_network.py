"""No tracker reaches for a network: neither its Python, nor the process that W&B starts beside it."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path

import pytest
import tomli_w

from equipoise.config import Config

pytestmark = pytest.mark.slow
SCRIPT = """
import json, sys
for name in [name for name in sys.modules if name.startswith(THEIRS)]:
    del sys.modules[name]
reached = []
sys.addaudithook(lambda event, given: reached.append([event, repr(given)]) if event in EVENTS else None)
import equipoise
equipoise.run(sys.argv[1], sys.argv[2])
json.dump(reached, open(sys.argv[3], "w"))
""".replace("EVENTS", '("socket.connect", "socket.getaddrinfo", "socket.gethostbyname", "socket.sendto")')
THEIRS = ("tensorboard", "torch.utils.tensorboard", "mlflow", "wandb", "pytest", "_pytest")
SCRIPT = SCRIPT.replace("THEIRS", repr(THEIRS))
TESTING = ("CI", "GITHUB_ACTIONS", "PYTEST", "MLFLOW", "WANDB", "DO_NOT_TRACK", "BUILD", "JENKINS")
"""what packages look for to be quiet of themselves"""


@pytest.mark.parametrize("new", [False, pytest.param(True, marks=pytest.mark.sweep)])
def test_nothing_is_reached(
    tiny: Callable[..., Config],
    tmp_path: Path,
    with_store: Callable[[Path], Path],
    forked: Callable[..., list[str]],
    new: bool,
) -> None:
    """In a new process, or one that has imported our package and forgotten all of theirs."""
    table = tiny(train={"rounds": 1}, evaluate={"trackers": ["tensorboard", "mlflow", "wandb"]}).table()
    (tmp_path / "run.toml").write_text(tomli_w.dumps(table))
    callers: list[bytes] = []
    with socket.create_server(("127.0.0.1", 0)) as server:
        server.settimeout(0.2)
        over = threading.Event()

        def listen() -> None:
            while not over.is_set():
                try:
                    caller, _ = server.accept()
                except TimeoutError:
                    continue
                with caller:
                    caller.settimeout(1)
                    callers.append(caller.recv(200))

        thread = threading.Thread(target=listen)
        thread.start()
        here = f"http://127.0.0.1:{server.getsockname()[1]}"
        proxies = dict.fromkeys(("http_proxy", "https_proxy", "HTTP_PROXY", "HTTPS_PROXY"), here)
        clean = {key: text for key, text in os.environ.items() if not key.startswith(TESTING)}
        environment = clean | proxies | {"WANDB_BASE_URL": here, "WANDB_API_KEY": "0" * 40, "no_proxy": ""}
        with_store(tmp_path / "run")
        words = ["run.toml", "run", "reached.json"]
        command = [sys.executable, "-c", SCRIPT, *words] if new else forked(SCRIPT, *words)
        try:
            done = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True)
        finally:
            over.set()
            thread.join()
    assert done.returncode == 0, done.stderr
    assert "left out" not in done.stderr
    for name in ("tensorboard", "mlflow", "wandb"):
        assert any((tmp_path / "run" / name).iterdir())
    assert callers == []
    reached = json.loads((tmp_path / "reached.json").read_text())
    assert [one for one in reached if f"family={int(socket.AF_UNIX)}" not in one[1]] == []
