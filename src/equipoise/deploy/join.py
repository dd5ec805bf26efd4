"""A site's day: Flower's SuperNode dials out, and this process answers what it brings.

The SuperNode runs as Flower's "process" isolation has it: it starts no app by itself. So no code that comes
with a run is ever executed at a site: what answers is the Equipoise installed here, in one process that keeps
network and images between questions.
"""

from __future__ import annotations

import contextlib
import os
import secrets
import signal
import ssl
import subprocess
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from types import FrameType
from typing import Any

import httpx
from cryptography import x509
from flwr.common.constant import SubStatus
from flwr.proto.message_pb2 import PullObjectRequest, PullObjectResponse
from flwr.proto.runtime_pb2 import AcquireTaskRequest, SendTaskHeartbeatRequest
from flwr.supercore.constant import TaskType
from flwr.supercore.heartbeat import HeartbeatSender
from flwr.supercore.interceptors import (
    RuntimeTokenHttpInterceptor,
    RuntimeVersionHttpInterceptor,
    SuperExecAuthHttpInterceptor,
)
from flwr.supercore.runtime import RuntimeHttpClient
from flwr.supernode.runtime.run_clientapp import pull_task_input, push_message, push_task_output

from equipoise.deploy import processes
from equipoise.deploy.apps import respond
from equipoise.deploy.health import of_site, serving
from equipoise.deploy.keys import NEW_AUTHORITY, check_dates, outdated, own_key
from equipoise.deploy.node_log import Log
from equipoise.deploy.policy import read_policy
from equipoise.deploy.site import SiteClient, read_site
from equipoise.errors import ConfigError, SiteError
from equipoise.run_folder import private_folder

HOME, LOG = "flower", "node.log"
POLL, LAZY = 0.2, 1.0
"""seconds between two looks for work: the longer there was none, the more"""
UP = 300.0
PATIENCE, AGAIN = 150.0, 10.0
"""a site that was cut off is still there in Flower's books for a minute, and is not let in twice"""
ANSWER = 10.0
"""seconds for the server to show its certificate"""
UNKNOWN = "the coordinator does not list this site's key: send it the .pub file (or our clock is wrong)"
ASTRAY = "Flower's SuperNode is out of step"
CLAIM = "/flwr.proto.Runtime/AcquireTask"


def join(
    folder: Path,
    patience: float = PATIENCE,
    say: Callable[[str], None] = lambda text: None,
    health_port: int | None = None,
) -> None:
    """Take part until told to stop (SIGTERM or Ctrl-C), or until the coordinator has turned us away for
    `patience` seconds. `say` is told when the coordinator is reached and when it no longer is."""
    options = read_site(folder)
    key, certificate = folder / options.key, folder / options.certificate
    if not options.superlink:
        raise ConfigError(f"{folder / 'site.toml'}: 'superlink' is missing: set the coordinator's host:port")
    for path in (key, certificate):
        if not path.is_file():
            raise ConfigError(
                f"there is no {path}: put what the coordinator gave you there (see `equipoise site init`)"
            )
    check_dates(certificate, NEW_AUTHORITY)
    own_key(key)
    processes.no_proxy()
    read_policy(folder / "policy.toml")  # one that cannot be read is noticed before the coordinator dials in
    home = private_folder(folder / HOME)
    secret = secrets.token_bytes(32)
    secret_file = home / "secret"
    with os.fdopen(os.open(secret_file, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "wb") as file:
        file.write(secret)
    port = processes.free_port()
    command = [
        *(processes.program("flower-supernode"), "--superlink", options.superlink),
        *("--root-certificates", str(certificate), "--auth-supernode-private-key", str(key)),
        *("--isolation", "process", "--host", "127.0.0.1", "--port", str(port)),
        *("--superexec-auth-secret-file", str(secret_file)),
    ]
    before = signal.signal(signal.SIGTERM, _stop)
    desk, end = SiteClient(folder), time.monotonic() + patience
    log = Log(folder / LOG, _reports(desk, say))
    try:
        with serving(health_port, lambda: of_site(folder, certificate, log.online())):
            while True:
                reason = _once(desk, command, f"127.0.0.1:{port}", secret, log)
                if reason == ASTRAY:
                    end = time.monotonic() + patience
                    continue
                if reason != UNKNOWN or time.monotonic() > end:
                    break
                say(f"not let in yet: {reason}; trying again for {max(0, end - time.monotonic()):.0f} s")
                time.sleep(AGAIN)
        desk.journal.write("turned away", coordinator=options.superlink, reason=reason)
        raise SiteError(f"this site was not let in: {reason}; {folder / LOG} says more")
    except KeyboardInterrupt:
        desk.journal.write("offline")
    finally:
        signal.signal(signal.SIGTERM, before)
        secret_file.unlink(missing_ok=True)
        desk.close()


def _reports(desk: SiteClient, say: Callable[[str], None]) -> Callable[[bool], None]:
    """What is done when the coordinator is reached, and when it no longer is."""
    address = desk.options.superlink

    def tell(online: bool) -> None:
        desk.journal.write("online" if online else "cut off", coordinator=address)
        say(
            f"online at {address}: what it asks is answered as far as policy.toml allows"
            if online
            else f"{address} is not reached: trying again until it is"
        )

    return tell


def _once(desk: SiteClient, command: Sequence[str], address: str, secret: bytes, log: Log) -> str:
    """Serve as long as one SuperNode runs and keeps in step; why it ended."""
    log.begin()
    node = processes.start(command, desk.folder / HOME, log.path)
    try:
        host, port = address.split(":")
        processes.wait_for_port(host, int(port), node, UP, "Flower's SuperNode")
        desk.journal.write("dialled", coordinator=desk.options.superlink)
        serve(desk, address, secret, node, log)
        runs = node.poll() is None
    finally:
        processes.stop(node)
    if "CERTIFICATE_VERIFY_FAILED" in log.text():
        return distrusted(desk.options.superlink, Path(desk.options.certificate).name)
    if "activate" in log.text():
        return UNKNOWN
    return ASTRAY if runs else "Flower's SuperNode ended"


def distrusted(address: str, certificate: str) -> str:
    """Why the server at an address is not to be trusted: its dates, if it is them, or else its signature."""
    host, _, port = address.rpartition(":")
    reason = ""
    with contextlib.suppress(OSError, ValueError):
        shown = ssl.get_server_certificate((host.strip("[]"), int(port)), timeout=ANSWER)
        reason = outdated(x509.load_pem_x509_certificate(shown.encode()))
    if reason:
        return (
            f"the server's certificate {reason}: ask the coordinator to run `equipoise keys renew` and "
            f"restart it"
        )
    return f"the server is not one that {certificate} vouches for"


def _stop(number: int, frame: FrameType | None) -> None:
    raise KeyboardInterrupt


def serve(desk: SiteClient, address: str, secret: bytes, node: subprocess.Popen[bytes], log: Log) -> None:
    """Answer what the SuperNode holds for us, one message after the other, as long as it runs and keeps in
    step."""
    claim = SuperExecAuthHttpInterceptor(master_secret=secret, protected_methods={CLAIM})
    tasks, idle = _client(address, "SuperExec", claim), time.monotonic()
    wanted = AcquireTaskRequest(supported_task_types=[TaskType.CLIENT_APP])
    try:
        while node.poll() is None and not log.astray():
            log.report()
            try:
                found = tasks.AcquireTask(wanted)
            except httpx.HTTPError:
                found = None  # the SuperNode is starting or ending; the next turn shows which
            if found is not None and found.HasField("task") and found.token:
                _answer(
                    desk,
                    Task(_client(address, "flwr-clientapp", RuntimeTokenHttpInterceptor(found.token)), log),
                )
                idle = time.monotonic()
            else:
                time.sleep(min(LAZY, max(POLL, (time.monotonic() - idle) / 10)))
    finally:
        tasks.close()


class Task:
    """A conversation with the SuperNode about one message. Tensors that are still on their way are waited
    for, unless they never come."""

    def __init__(self, client: RuntimeHttpClient, log: Log) -> None:
        self._client, self._log = client, log

    def __getattr__(self, name: str) -> Any:
        return getattr(self._client, name)

    def PullObject(self, request: PullObjectRequest) -> PullObjectResponse:  # noqa: N802
        found = self._client.PullObject(request)
        if found.object_found and not found.object_available and self._log.astray():
            raise RuntimeError("the run was stopped before the whole question was here")
        return found


def _answer(desk: SiteClient, task: Any) -> None:
    """One message, from the SuperNode and back to it."""
    beat = HeartbeatSender(_alive(task))
    beat.start()
    try:
        message, context, _, _ = pull_task_input(task)
        push_message(task, respond(message, desk), context)
        push_task_output(task, context, SubStatus.COMPLETED, "")
    except Exception as error:  # whatever it is, it is about this message only
        desk.journal.write("lost", reason=f"{type(error).__name__}: {error}")
    finally:
        beat.stop()
        task.close()


def _alive(client: Any) -> Callable[[], bool]:
    def send() -> bool:
        try:
            client.SendTaskHeartbeat(SendTaskHeartbeatRequest())
        except httpx.HTTPError:
            return False
        return True

    return send


def _client(address: str, name: str, *more: object) -> RuntimeHttpClient:
    return RuntimeHttpClient.from_server_address(
        server_address=address,
        insecure=True,  # both ends are on this machine, and the secret is a file only we can read
        root_certificates=None,
        interceptors=[RuntimeVersionHttpInterceptor(component_name=name), *more],  # type: ignore[list-item]
    )
