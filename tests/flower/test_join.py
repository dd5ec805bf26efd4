"""A site's process: when it reports that it is online, and how it goes on after a message that was lost."""

from __future__ import annotations

import contextlib
import os
import socket
import ssl
import threading
from pathlib import Path
from typing import Any
from urllib.request import proxy_bypass

import pytest
from tests.flower.outdated import DATED, redate

from equipoise.deploy import flower, join
from equipoise.deploy.contact import Contact
from equipoise.deploy.join import distrusted
from equipoise.deploy.keys import new_keys
from equipoise.deploy.processes import free_port, no_proxy


class Journal:
    def __init__(self) -> None:
        self.lines = list[tuple[str, dict[str, Any]]]()

    def write(self, event: str, **facts: Any) -> None:
        self.lines.append((event, facts))


class Desk:
    def __init__(self) -> None:
        self.journal = Journal()


class Messages:
    """A node whose messages go wrong in these ways, one after the other."""

    def __init__(self, *ends: Any) -> None:
        self.ends = list(ends)

    def receive(self) -> None:
        end = self.ends.pop(0)
        if end is not None:
            raise end


@pytest.mark.parametrize("end", [flower.NotListed("412"), flower.OtherVersion("1.99")])
def test_a_message_that_is_lost_does_not_hold_up_those_after_it(
    end: Exception, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is noted; only a site that is turned away ends."""
    monkeypatch.setattr(join, "IDLE", 0.0)
    desk: Any = Desk()
    node: Any = Messages(flower.RunEnded("403"), None, flower.MessageLost("half"), ValueError("odd"), end)
    with pytest.raises(type(end)):
        join.serve(desk, node, Contact())
    assert [event for event, _ in desk.journal.lines] == ["lost"] * 3
    assert desk.journal.lines[1][1]["reason"] == "MessageLost: half"


def test_a_server_that_lets_nobody_wait_is_not_asked_all_the_time(monkeypatch: pytest.MonkeyPatch) -> None:
    waits = list[float]()
    contact: Any = Contact()
    contact.wait = waits.append
    node: Any = Messages(None, None, flower.NotListed())
    with pytest.raises(flower.NotListed):
        join.serve(Desk(), node, contact)  # type: ignore[arg-type]
    assert len(waits) == 2 and all(0 < seconds <= join.IDLE for seconds in waits)


@pytest.mark.parametrize("when", [*DATED, "soon"])
def test_why_a_server_is_not_trusted(when: str, tmp_path: Path) -> None:
    """Its dates, if it is them; another authority otherwise. The server is asked for its certificate."""
    new_keys(tmp_path, [], [])
    said = redate(tmp_path / "keys", "server", when)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(tmp_path / "keys" / "server.crt", tmp_path / "keys" / "server.key")
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def show() -> None:
            visitor, _ = listener.accept()
            with contextlib.suppress(OSError), context.wrap_socket(visitor, server_side=True) as line:
                line.recv(1)

        thread = threading.Thread(target=show)
        thread.start()
        found = distrusted(f"127.0.0.1:{listener.getsockname()[1]}", "ca.crt")
        thread.join()
    if when in DATED:
        assert found.startswith(f"the server's certificate {said}") and "`equipoise keys renew`" in found
    else:
        assert found == "the server is not one that ca.crt vouches for"


def test_a_server_that_is_gone_is_not_judged_by_its_dates() -> None:
    assert distrusted(f"127.0.0.1:{free_port()}", "ca.crt") == "the server is not one that ca.crt vouches for"


def test_a_change_is_reported_once_and_a_loss_not_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    reports = list[bool]()
    contact = Contact(reports.append)
    contact.report()
    contact.note(False)
    contact.report()
    assert not contact.online() and reports == []
    contact.note(True)
    contact.report()
    contact.report()
    assert contact.online() and reports == [True]
    contact.note(False)
    contact.report()
    assert not contact.online() and reports == [True]  # it may be back in a moment
    monkeypatch.setattr("equipoise.deploy.contact.DOUBT", 0.0)
    contact.wait(0.0)
    assert reports == [True, False]
    contact.note(True)
    contact.wait(0.01)
    assert reports == [True, False, True]


def test_our_own_machine_is_never_reached_through_a_proxy(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HTTP_PROXY", "http://proxy.example.org:3128")
    monkeypatch.setenv("HTTPS_PROXY", "http://proxy.example.org:3128")
    monkeypatch.setenv("NO_PROXY", "intranet.example.org")
    monkeypatch.delenv("no_proxy", raising=False)
    no_proxy("10.0.0.7")
    assert all(proxy_bypass(host) for host in ("127.0.0.1", "localhost", "10.0.0.7", "intranet.example.org"))
    assert not proxy_bypass("fl.example.org")
    before = os.environ["NO_PROXY"]
    no_proxy("10.0.0.7")
    assert os.environ["NO_PROXY"] == os.environ["no_proxy"] == before
