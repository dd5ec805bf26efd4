"""Flower's programs as processes of ours: started with a home of their own, ended by their own id, never
outliving us."""

from __future__ import annotations

import contextlib
import ctypes
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path

from equipoise.deploy.flower import ENVIRONMENT, HOME
from equipoise.errors import SiteError
from equipoise.run_folder import private_folder

LOOPBACK = ("localhost", "127.0.0.1", "::1")
PR_SET_PDEATHSIG = 1
"""Linux: the signal a process gets when the one that started it is gone"""


def environment(home: Path) -> dict[str, str]:
    """Flower keeps its files in `home`, tells nobody that it runs, and finds its own commands."""
    return dict(os.environ) | {
        **ENVIRONMENT,
        HOME: str(home),
        "PATH": os.pathsep.join([str(Path(sys.executable).parent), os.environ.get("PATH", "")]),
        "OMP_NUM_THREADS": "1",
        "MKL_NUM_THREADS": "1",
    }


def start(command: Sequence[str], home: Path, log: Path | None = None) -> subprocess.Popen[bytes]:
    """Start a program in a session of its own, whose files are for us alone; on Linux it ends however we
    end."""
    private_folder(home)
    output = open(log, "ab", opener=_ours) if log else None
    try:
        return subprocess.Popen(
            list(command),
            env=environment(home),
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT if output else None,
            start_new_session=True,
            preexec_fn=_end_with_parent,
            umask=0o077,
        )
    finally:
        if output:
            output.close()


def _ours(path: str, flags: int) -> int:
    """Open a file that only its owner can read, also one that others could read before."""
    number = os.open(path, flags, 0o600)
    os.fchmod(number, 0o600)
    return number


def _end_with_parent() -> None:
    with contextlib.suppress(OSError, AttributeError):
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGTERM)


def stop(*started: subprocess.Popen[bytes], patience: float = 10.0) -> None:
    """End processes of ours and all that they have started: gently first, unless there is no patience; then
    what is left."""
    families = family({process.pid for process in started})
    for process in started:
        if process.poll() is None:
            process.send_signal(signal.SIGTERM if patience else signal.SIGKILL)
    end = time.monotonic() + patience
    for process in started:
        try:
            process.wait(timeout=max(0.1, end - time.monotonic()))
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
    for number, birth in families.items():
        # A number may be another's by now; the moment of birth tells.
        if _stat(number)[19:20] == [birth]:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.kill(number, signal.SIGKILL)


def family(numbers: set[int]) -> dict[int, str]:
    """The children of processes, and theirs, each with its moment of birth; none where the system does not
    say (Linux does)."""
    known = {int(path.name): _stat(int(path.name)) for path in Path("/proc").glob("[0-9]*")}
    children, grown = dict[int, str](), True
    while grown:
        parents = numbers | set(children)
        more = {n: s[19] for n, s in known.items() if s and int(s[1]) in parents and n not in children}
        children, grown = children | more, bool(more)
    return children


def _stat(number: int) -> list[str]:
    """What Linux says of a process after its name: state, parent, …"""
    try:
        return Path(f"/proc/{number}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return []


def gone(number: int) -> bool:
    """Whether there is no process of this number any more, or only its remains."""
    try:
        os.kill(number, 0)
    except ProcessLookupError:
        return True
    except PermissionError:
        return False
    return _stat(number)[:1] == ["Z"]


def no_proxy(*hosts: str) -> None:
    """Reach these hosts and our own machine directly, whatever proxy is set for the rest."""
    names = ("NO_PROXY", "no_proxy")
    known = [host.strip() for name in names for host in os.environ.get(name, "").split(",")]
    wanted = dict.fromkeys(host for host in (*known, *LOOPBACK, *hosts) if host)
    os.environ |= dict.fromkeys(names, ",".join(wanted))


def free_port() -> int:
    """A port of the loopback address nobody listens on."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def wait_for_port(host: str, port: int, process: subprocess.Popen[bytes], seconds: float, what: str) -> None:
    """Wait until a process listens."""
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        if process.poll() is not None:
            raise SiteError(f"{what} ended at once (exit {process.returncode}): see its log")
        with contextlib.suppress(OSError), socket.create_connection((host, port), timeout=1):
            return
        time.sleep(0.1)
    raise SiteError(f"{what} does not listen on {host}:{port} after {seconds:g} s: see its log")
