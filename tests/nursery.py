"""Processes in no time: one process imports torch once, and others are forked from it.

A worker of the pool takes seconds to import what it needs, and the suite starts hundreds. `tests/conftest.py`
lets the engines start `python nursery.py worker SOCKET MODULE` instead of `python -m MODULE`: a process that
does nothing but hand its pipes to a fork of the nursery, where the same module runs, and wait for it. Tests
that are about processes use real ones (`@pytest.mark.real_workers`). The processes that run tests side by
side begin the same way, as `python nursery.py tester SOCKET -u -c CODE` instead of `python -u -c CODE`.
"""

from __future__ import annotations

import _socket
import os
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


def enter(address: str, kind: str, what: str) -> int:
    """Send our pipes, folder and environment to the nursery, and end as the fork ends.

    Hundreds of processes do this and nothing else: they import so little that they take half the time.
    """
    line = _socket.socket(_socket.AF_UNIX)
    _reach(line, address)
    letter = [kind, what, os.getcwd(), *(f"{name}={text}" for name, text in os.environ.items())]
    pipes = b"".join(pipe.to_bytes(4, sys.byteorder) for pipe in (0, 1, 2))
    rights = [(_socket.SOL_SOCKET, _socket.SCM_RIGHTS, pipes)]
    data = os.fsencode("\0".join(letter))
    sent = line.sendmsg([data[:BOX]], rights)
    while sent < len(data):
        sent += line.send(data[sent:])
    line.shutdown(_socket.SHUT_WR)
    for pipe in (0, 1):  # held by the fork alone, so that each end sees when the other is gone
        os.close(pipe)
    code = int(line.recv(16) or b"1")
    line.close()
    if code < 0:
        os.kill(os.getpid(), -code)
    return code


def _reach(line: _socket.socket, address: str) -> None:
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
    import contextlib
    import gc
    import importlib
    import select
    import signal
    import socket
    from pathlib import Path

    import equipoise.compare.worker
    import equipoise.testing
    import equipoise.worker  # noqa: F401
    from equipoise import running
    from equipoise.report.page import _templates

    for module in HEAVY:
        with contextlib.suppress(ImportError):  # whoever needs it says so
            importlib.import_module(module)

    for name in _templates().list_templates(extensions=["j2"]):
        _templates().get_template(name)  # compiled once for all
    ledgers = importlib.import_module("ledgers")  # beside this file
    running.probe = ledgers.remembering(Path(address).parent)
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


def _attend(line: _socket.socket) -> None:
    """Fork once more; the child does what was asked for, and we tell how it ended."""
    import array
    import contextlib
    import socket

    letter, rights, _, _ = line.recvmsg(BOX, socket.CMSG_SPACE(3 * 4))
    while more := line.recv(BOX):
        letter += more
    pipes = array.array("i")
    pipes.frombytes(rights[0][2][: 3 * pipes.itemsize])
    kind, *asked = os.fsdecode(letter).split("\0")
    child = os.fork()
    if child == 0:
        _live(kind, asked, list(pipes))
    for pipe in pipes:
        os.close(pipe)
    if kind == "worker" and sys.platform == "linux":
        _watch(child, line)
    status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    with contextlib.suppress(BrokenPipeError):
        line.sendall(str(status).encode())
    os._exit(0)


def _watch(child: int, line: _socket.socket) -> None:
    """Until the worker has ended; where the process that stands for it is killed, so is the worker."""
    import select
    import signal

    ended, seen = os.pidfd_open(child), select.poll()
    seen.register(ended, select.POLLIN)
    seen.register(line, 0)  # nothing but that the other end is gone
    if ended not in dict(seen.poll()):
        os.kill(child, signal.SIGKILL)


def _live(kind: str, asked: list[str], pipes: list[int]) -> None:
    import runpy

    code = 1
    try:
        os.setsid()
        for number, pipe in enumerate(pipes):
            os.dup2(pipe, number)
            os.close(pipe)
        what, folder, *environment = asked
        os.environ.clear()
        os.environ.update(one.split("=", 1) for one in environment)
        os.chdir(folder)
        if kind == "tester":
            sys.argv = ["-c"]
            sys.path[0] = ""
            exec(what, sys.modules["__main__"].__dict__)  # noqa: S102
        else:
            sys.modules.pop(what, None)
            runpy.run_module(what, run_name="__main__")
        code = 0
    except SystemExit as end:
        code = int(end.code or 0)
    except BaseException:
        import traceback

        traceback.print_exc()
    finally:
        os._exit(code)


if __name__ == "__main__":
    if sys.argv[1] == "nursery":
        nursery(sys.argv[2])
    else:
        sys.exit(enter(sys.argv[2], sys.argv[1], sys.argv[-1]))
