"""Processes in no time: one process imports torch once, and others are forked from it.

A worker of the pool takes seconds to import what it needs, and the suite starts hundreds. `tests/conftest.py`
lets the engines start `python nursery.py worker SOCKET MODULE` instead of `python -m MODULE`: a process that
does nothing but hand its pipes to a fork of the nursery, where the same module runs, and wait for it. Tests
that are about processes use real ones (`@pytest.mark.real_workers`). The processes that run tests side by
side begin the same way, as `python nursery.py tester SOCKET -u -c CODE` instead of `python -u -c CODE`.
"""

from __future__ import annotations

import array
import contextlib
import gc
import importlib
import json
import os
import select
import signal
import socket
import sys
import time

BOX = 2**20
HEAVY = (
    *("scipy.stats", "sklearn.linear_model", "sklearn.metrics", "sklearn.mixture", "pandas"),
    *("kornia", "monai.networks.nets", "monai.transforms", "onnxruntime", "torch.onnx", "torch._dynamo"),
    *("PIL.Image", "pydicom", "nibabel", "equipoise.deploy.coordinator", "equipoise.deploy.site"),
    *("equipoise.cli.app", "equipoise.api.verbs", "equipoise.reproduce", "equipoise.verify", "pytest"),
)
"""what tests import sooner or later, each in every process that runs tests"""


def enter(address: str, **what: str) -> int:
    """Send our pipes, folder and environment to the nursery, and end as the fork ends."""
    with socket.socket(socket.AF_UNIX) as line:
        _reach(line, address)
        letter = json.dumps({**what, "folder": os.getcwd(), "environment": dict(os.environ)}).encode()
        line.sendmsg([letter], [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", [0, 1, 2]))])
        line.shutdown(socket.SHUT_WR)
        for pipe in (0, 1):  # held by the fork alone, so that each end sees when the other is gone
            os.close(pipe)
        code = int(line.recv(16) or b"1")
    if code < 0:
        os.kill(os.getpid(), -code)
    return code


def _reach(line: socket.socket, address: str) -> None:
    """Connect to the nursery, which may still be importing."""
    end = time.monotonic() + 300
    while True:
        try:
            return line.connect(address)
        except (FileNotFoundError, ConnectionRefusedError):
            if time.monotonic() > end:
                raise
            time.sleep(0.05)


def nursery(address: str) -> None:
    """Fork a process for everyone who asks, until our input ends."""
    import equipoise.compare.worker
    import equipoise.testing
    import equipoise.worker  # noqa: F401
    from equipoise.report.page import _templates

    for module in HEAVY:
        with contextlib.suppress(ImportError):  # whoever needs it says so
            importlib.import_module(module)

    for name in _templates().list_templates(extensions=["j2"]):
        _templates().get_template(name)  # compiled once for all
    gc.collect()
    gc.freeze()

    signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    with socket.socket(socket.AF_UNIX) as door:
        door.bind(address)
        door.listen(64)
        while True:
            ready, _, _ = select.select([door, 0], [], [])
            if 0 in ready:
                return
            line, _ = door.accept()
            if os.fork() == 0:
                door.close()
                signal.signal(signal.SIGCHLD, signal.SIG_DFL)
                _attend(line)
            line.close()


def _attend(line: socket.socket) -> None:
    """Fork once more; the child does what was asked for, and we tell how it ended."""
    letter, rights, _, _ = line.recvmsg(BOX, socket.CMSG_SPACE(3 * 4))
    while more := line.recv(BOX):
        letter += more
    pipes = array.array("i")
    pipes.frombytes(rights[0][2][: 3 * pipes.itemsize])
    asked = json.loads(letter)
    child = os.fork()
    if child == 0:
        _live(asked, list(pipes))
    for pipe in pipes:
        os.close(pipe)
    if "module" in asked and sys.platform == "linux":
        _watch(child, line)
    status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    with contextlib.suppress(BrokenPipeError):
        line.sendall(str(status).encode())
    os._exit(0)


def _watch(child: int, line: socket.socket) -> None:
    """Until the worker has ended; where the process that stands for it is killed, so is the worker."""
    ended, seen = os.pidfd_open(child), select.poll()
    seen.register(ended, select.POLLIN)
    seen.register(line, 0)  # nothing but that the other end is gone
    if ended not in dict(seen.poll()):
        os.kill(child, signal.SIGKILL)


def _live(letter: dict[str, object], pipes: list[int]) -> None:
    import runpy

    code = 1
    try:
        os.setsid()
        for number, pipe in enumerate(pipes):
            os.dup2(pipe, number)
            os.close(pipe)
        os.environ.clear()
        os.environ.update(letter["environment"])  # type: ignore[arg-type, call-overload]
        os.chdir(str(letter["folder"]))
        if "code" in letter:
            sys.argv = ["-c"]
            sys.path[0] = ""
            exec(str(letter["code"]), sys.modules["__main__"].__dict__)  # noqa: S102
        else:
            module = str(letter["module"])
            sys.modules.pop(module, None)
            runpy.run_module(module, run_name="__main__")
        code = 0
    except SystemExit as end:
        code = int(end.code or 0)
    except BaseException:
        import traceback

        traceback.print_exc()
    finally:
        os._exit(code)


if __name__ == "__main__":
    if sys.argv[1] == "worker":
        sys.exit(enter(sys.argv[2], module=sys.argv[3]))
    if sys.argv[1] == "tester":
        sys.exit(enter(sys.argv[2], code=sys.argv[-1]))
    nursery(sys.argv[2])
