"""For whoever watches a server or a site: `/health` and, for Prometheus, `/metrics`, at a port of this
machine's own.

Plain HTTP on the loopback address only. What is there can be read by every account of the machine: names and
states, no key and nothing of the data.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread
from typing import Any, NamedTuple

from cryptography import x509

from equipoise.errors import ConfigError, EquipoiseError
from equipoise.version import __version__

HOST = "127.0.0.1"
OURS = (HOST, "localhost", "")
"""names a request may be for: a page in a browser that has another name point here gets nothing"""


class Metric(NamedTuple):
    """One number for Prometheus."""

    name: str
    about: str
    value: float
    labels: Mapping[str, str] = {}


class Report(NamedTuple):
    """How things are: well or not, in a word; and the numbers."""

    well: bool
    state: str
    metrics: list[Metric]


Look = Callable[[], Report]


@contextmanager
def serving(port: int | None, look: Look) -> Iterator[None]:
    """Answer at a port as long as this lasts; without a port nothing listens."""
    if port is None:
        yield
        return
    try:
        server = ThreadingHTTPServer((HOST, port), _handler(look))
    except OSError as error:
        raise ConfigError(
            f"nothing can listen on {HOST}:{port}: {error.strerror}; choose another --health-port"
        ) from error
    Thread(target=server.serve_forever, daemon=True).start()
    try:
        yield
    finally:
        server.shutdown()
        server.server_close()


def _handler(look: Look) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        timeout = 10

        def do_GET(self) -> None:
            if (self.headers.get("Host") or "").rpartition(":")[0] not in OURS:
                self._send(403, "text/plain", "only for this machine\n")
                return
            report = _report(look)
            if self.path == "/health":
                facts = {"ok": report.well, "state": report.state, "version": __version__}
                self._send(200 if report.well else 503, "application/json", json.dumps(facts) + "\n")
            elif self.path == "/metrics":
                self._send(200, "text/plain; version=0.0.4; charset=utf-8", prometheus(report.metrics))
            else:
                self._send(404, "text/plain", "there are /health and /metrics\n")

        def _send(self, status: int, kind: str, text: str) -> None:
            data = text.encode()
            self.send_response(status)
            self.send_header("Content-Type", kind)
            self.send_header("Content-Length", str(len(data)))
            self.end_headers()
            self.wfile.write(data)

        def log_message(self, format: str, *args: Any) -> None:
            pass  # a line for every look of Prometheus is of no use

    return Handler


def _report(look: Look) -> Report:
    """What `look` finds, or that it finds nothing."""
    try:
        report = look()
    except (EquipoiseError, OSError) as error:
        report = Report(False, str(error), [])
    common = [
        Metric("equipoise_up", "whether all is well, as /health says it", float(report.well)),
        Metric("equipoise_info", "the version of Equipoise", 1, {"version": __version__}),
    ]
    return report._replace(metrics=common + report.metrics)


def prometheus(metrics: list[Metric]) -> str:
    """Numbers in Prometheus' text format, those of one name together."""
    lines, seen = list[str](), dict[str, list[Metric]]()
    for metric in metrics:
        seen.setdefault(metric.name, []).append(metric)
    for name, group in seen.items():
        kind = "counter" if name.endswith("_total") else "gauge"
        lines += [f"# HELP {name} {group[0].about}", f"# TYPE {name} {kind}"]
        for metric in group:
            inside = ",".join(f'{key}="{_quoted(value)}"' for key, value in metric.labels.items())
            lines.append(f"{name}{'{' + inside + '}' if inside else ''} {metric.value:.15g}")
    return "\n".join(lines) + "\n"


def _quoted(text: str) -> str:
    return text.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")


def expiry(path: Path) -> Metric:
    """When a certificate expires."""
    last = x509.load_pem_x509_certificate(path.read_bytes()).not_valid_after_utc
    about = "when a certificate expires, in seconds since 1970"
    return Metric("equipoise_certificate_expires_seconds", about, last.timestamp(), {"file": path.name})


def of_coordinator(folder: Path) -> Report:
    """A server: does it answer, who is online, how far the runs are."""
    from equipoise.deploy.standing import standing

    facts = standing(folder)
    online = {site: one["status"] == "online" for site, one in facts["sites"].items()}
    metrics = [expiry(folder / "keys" / name) for name in ("ca.crt", "server.crt")]
    for site, here in online.items():
        metrics.append(Metric("equipoise_site_online", "whether a site is online", here, {"site": site}))
    for run in facts["runs"]:
        named = {"run": str(run["run"]), "name": run["name"]}
        going = run["status"] == "running"
        metrics.append(Metric("equipoise_run_running", "whether a run is going on", going, named))
        if run["rounds"]:
            metrics.append(Metric("equipoise_run_round", "rounds a run has finished", run["round"], named))
            metrics.append(Metric("equipoise_run_rounds", "rounds a run has in all", run["rounds"], named))
    return Report(True, f"{sum(online.values())} of {len(online)} sites online", metrics)


def of_site(folder: Path, certificate: Path, online: bool) -> Report:
    """A site: does it reach the coordinator, and what its journal counts."""
    counts, last = Counter[str](), 0.0
    path = folder / "journal.jsonl"
    with open(path, "rb") as file:
        for raw in file:
            counts[str(_event(raw))] += 1
        last = path.stat().st_mtime
    events = [
        Metric("equipoise_journal_lines_total", "lines in the site's journal", n, {"event": event})
        for event, n in sorted(counts.items())
    ]
    return Report(
        online,
        "online" if online else "the coordinator is not reached",
        [
            expiry(certificate),
            Metric("equipoise_site_online", "whether the coordinator is reached", online),
            Metric("equipoise_journal_written_seconds", "when the journal was last written to", last),
            *events,
        ],
    )


def _event(raw: bytes) -> Any:
    """The event of a line of a journal; one that is being written has none yet."""
    try:
        return json.loads(raw)["event"]
    except (ValueError, KeyError, TypeError):
        return "unfinished"
