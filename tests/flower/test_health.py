"""`/health` and `/metrics`: what they say, and to whom."""

from __future__ import annotations

import http.client
import json
from pathlib import Path

import pytest

from equipoise.deploy import standing
from equipoise.deploy.health import Metric, Report, of_coordinator, of_site, prometheus, serving
from equipoise.deploy.keys import new_keys
from equipoise.deploy.processes import free_port
from equipoise.errors import ConfigError, SiteError
from equipoise.server import Journal


def get(port: int, path: str, host: str = "") -> tuple[int, str]:
    line = http.client.HTTPConnection("127.0.0.1", port, timeout=30)
    line.request("GET", path, headers={"Host": host} if host else {})
    answer = line.getresponse()
    return answer.status, answer.read().decode()


def test_well_and_not_well() -> None:
    port, state = free_port(), [Report(True, "fine", [Metric("equipoise_x", "an x", 2, {"site": 'a"b'})])]
    with serving(port, lambda: state[0]):
        status, text = get(port, "/health")
        assert status == 200 and json.loads(text)["ok"] is True and json.loads(text)["state"] == "fine"
        status, text = get(port, "/metrics")
        assert status == 200 and "equipoise_up 1\n" in text and 'equipoise_x{site="a\\"b"} 2\n' in text
        assert "# TYPE equipoise_x gauge\n" in text
        state[0] = Report(False, "gone", [])
        assert get(port, "/health")[0] == 503 and "equipoise_up 0\n" in get(port, "/metrics")[1]
        assert get(port, "/")[0] == 404
        assert get(port, "/metrics", "evil.example.org:80")[0] == 403
        assert get(port, "/metrics", f"localhost:{port}")[0] == 200
        with (
            pytest.raises(ConfigError, match="choose another --health-port"),
            serving(port, lambda: state[0]),
        ):
            pass
    with pytest.raises(OSError):
        get(port, "/health")


def test_without_a_port_nothing_listens() -> None:
    with serving(None, lambda: Report(True, "", [])):
        pass


def test_a_server_that_does_not_answer_is_not_well(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def silent(folder: Path) -> None:
        raise SiteError("the server does not answer")

    monkeypatch.setattr(standing, "standing", silent)
    port = free_port()
    with serving(port, lambda: of_coordinator(tmp_path)):
        status, text = get(port, "/health")
    assert status == 503 and "does not answer" in text


def test_the_coordinator_names_sites_and_rounds(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    new_keys(tmp_path, [], ["north"])
    run = {"run": 17, "name": "fca", "status": "running", "round": 3, "rounds": 20}
    sites = {"north": {"status": "online"}, "south": {"status": "offline"}}
    monkeypatch.setattr(standing, "standing", lambda folder: {"sites": sites, "runs": [run]})
    found = of_coordinator(tmp_path)
    text = prometheus(found.metrics)
    assert found.well and found.state == "1 of 2 sites online"
    assert 'equipoise_site_online{site="north"} 1\n' in text
    assert 'equipoise_site_online{site="south"} 0\n' in text
    assert 'equipoise_run_round{run="17",name="fca"} 3\n' in text
    assert 'equipoise_certificate_expires_seconds{file="server.crt"} ' in text


def test_a_site_counts_what_its_journal_says(tmp_path: Path) -> None:
    new_keys(tmp_path, [], [])
    book = Journal(tmp_path / "journal.jsonl")
    for event in ("answered", "refused", "answered"):
        book.write(event)
    book.close()
    with open(tmp_path / "journal.jsonl", "ab") as file:
        file.write(b'{"event": "answ')
    found = of_site(tmp_path, tmp_path / "keys" / "ca.crt", online=False)
    text = prometheus(found.metrics)
    assert not found.well and "equipoise_site_online 0\n" in text
    assert 'equipoise_journal_lines_total{event="answered"} 2\n' in text
    assert "# TYPE equipoise_journal_lines_total counter\n" in text
