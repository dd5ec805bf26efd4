"""A site's day: this process dials the coordinator as a node of Flower's, and answers what it is asked.

Nothing listens here, and no code that comes with a run is fetched, let alone executed: what answers is the
Equipoise installed here, which keeps network and images between questions.
"""

from __future__ import annotations

import contextlib
import signal
import ssl
import time
from collections.abc import Callable
from pathlib import Path
from types import FrameType

from cryptography import x509

from equipoise.deploy import flower, processes
from equipoise.deploy.apps import respond
from equipoise.deploy.contact import Contact
from equipoise.deploy.health import of_site, serving
from equipoise.deploy.keys import NEW_AUTHORITY, check_dates, outdated, own_key
from equipoise.deploy.policy import read_policy
from equipoise.deploy.site import SiteClient, SiteOptions, read_site
from equipoise.errors import ConfigError, SiteError

PATIENCE, AGAIN = 150.0, 10.0
"""a site that was cut off is still there in Flower's books for a minute, and is not let in twice"""
TURNED_AWAY = (flower.NotListed, flower.NotTrusted, flower.OtherVersion, flower.StillOnline)
IDLE = 1.0
"""seconds that two looks for messages are apart at least, when there was none"""
ANSWER = 10.0
"""seconds for the server to show its certificate"""
UNKNOWN = "the coordinator does not list this site's key: send it the .pub file (or our clock is wrong)"
TWICE = (
    "the coordinator believes that this site is online: it was cut off less than a minute ago, or is running "
    "twice"
)


def join(
    folder: Path,
    patience: float = PATIENCE,
    say: Callable[[str], None] = lambda text: None,
    health_port: int | None = None,
) -> None:
    """Take part until told to stop (SIGTERM or Ctrl-C), or until the coordinator has turned us away for
    `patience` seconds. `say` is called when the coordinator is reached and when it no longer is."""
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
    read_policy(folder / "policy.toml")  # one that cannot be read is noticed before we dial
    before = signal.signal(signal.SIGTERM, _stop)
    desk = SiteClient(folder)
    contact = Contact(_reports(desk, say))
    try:
        with serving(health_port, lambda: of_site(folder, certificate, contact.online())):
            reason = _take_part(desk, options, contact, patience, say)
        desk.journal.write("turned away", coordinator=options.superlink, reason=reason)
        raise SiteError(f"this site was not let in: {reason}")
    except KeyboardInterrupt:
        desk.journal.write("offline")
    finally:
        signal.signal(signal.SIGTERM, before)
        desk.close()


def _reports(desk: SiteClient, say: Callable[[str], None]) -> Callable[[bool], None]:
    """What is done when the coordinator is reached, and when it no longer is."""
    address = desk.options.superlink

    def changed(online: bool) -> None:
        desk.journal.write("online" if online else "cut off", coordinator=address)
        say(
            f"online at {address}: what it asks is answered as far as policy.toml allows"
            if online
            else f"{address} is not reached: trying again until it is"
        )

    return changed


def _take_part(
    desk: SiteClient, options: SiteOptions, contact: Contact, patience: float, say: Callable[[str], None]
) -> str:
    """Serve until the coordinator has turned us away for `patience` seconds; why it did."""
    address, certificate = options.superlink, desk.folder / options.certificate
    try:
        key = flower.read_key(desk.folder / options.key)
    except ValueError as error:
        raise ConfigError(f"{desk.folder / options.key} is not a site's private key: {error}") from error
    end = time.monotonic() + patience
    while True:
        node = flower.Node(address, certificate.read_bytes(), key, contact.note, contact.wait)
        desk.journal.write("dialled", coordinator=address)
        try:
            node.activate()
            end = time.monotonic() + patience
            serve(desk, node, contact)
        except flower.NotTrusted:
            return distrusted(address, certificate.name)
        except flower.OtherVersion as error:
            return f"the coordinator has another version of Flower, install the same: {error}"
        except flower.NotListed:
            reason = UNKNOWN
        except flower.StillOnline:
            reason = TWICE
        finally:
            node.leave()
        contact.note(False)
        if time.monotonic() > end:
            return reason
        say(f"not let in yet: {reason}; trying again for {max(0, end - time.monotonic()):.0f} s")
        contact.wait(AGAIN)


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


def serve(desk: SiteClient, node: flower.Node, contact: Contact) -> None:
    """Answer what the coordinator asks, one message after the other, until it turns us away."""
    while True:
        contact.report()
        began = time.monotonic()
        try:
            answered = answer(desk, node)
        except TURNED_AWAY:
            raise
        except Exception as error:  # whatever it is, it is about this message only
            desk.journal.write("lost", reason=f"{type(error).__name__}: {error}")
            answered = False
        if not answered:  # a server that does not let us wait is not asked all the time
            contact.wait(max(0.0, IDLE - (time.monotonic() - began)))


def answer(desk: SiteClient, node: flower.Node) -> bool:
    """Answer the next message; whether there was one."""
    message = node.receive()
    if message is None:
        return False
    began = time.monotonic()
    reply = respond(message, desk)
    del message  # a question may be as large as a model
    node.send(reply, time.monotonic() - began)
    return True
