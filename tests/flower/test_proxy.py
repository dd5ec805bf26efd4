"""Sites behind a forward proxy, as hospitals have one: a real one (tinyproxy), where it is installed."""

from __future__ import annotations

import re
import shutil
import socket
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from equipoise.config import Config
from equipoise.deploy import link, processes
from equipoise.deploy.coordinator import federated
from equipoise.deploy.keys import renew
from equipoise.deploy.rehearse import allowed, stage
from equipoise.running import run

MakeConfig = Callable[..., Config]
TINYPROXY = shutil.which("tinyproxy") or ""
pytestmark = [
    pytest.mark.slow,
    pytest.mark.hospitals,
    pytest.mark.skipif(not TINYPROXY, reason="tinyproxy is not installed"),
]


@pytest.fixture
def proxy(tmp_path: Path) -> Iterator[tuple[int, Path]]:
    """A forward proxy on loopback that lets nobody through but to the coordinator: its port, and its log."""
    port, log = processes.free_port(), tmp_path / "proxy.log"
    settings = f'Port {port}\nListen 127.0.0.1\nAllow 127.0.0.1\nLogFile "{log}"\nLogLevel Connect\n'
    (tmp_path / "proxy.conf").write_text(settings + "MaxClients 50\nTimeout 600\n")
    process = subprocess.Popen([TINYPROXY, "-d", "-c", str(tmp_path / "proxy.conf")])
    try:
        processes.wait_for_port("127.0.0.1", port, process, 30, "tinyproxy")
        yield port, log
    finally:
        process.terminate()
        process.wait()


def own_address() -> str:
    """An address of this machine that is not loopback: what is on loopback never goes through a proxy."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        probe.connect(("192.0.2.1", 9))  # nothing is sent
        return str(probe.getsockname()[0])


def test_sites_reach_the_coordinator_through_a_proxy(
    tiny: MakeConfig, tmp_path: Path, proxy: tuple[int, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    port, log = proxy
    config = federated(tiny("fca", train={"rounds": 2})).with_engine(deadline=900.0, patience=900.0)
    expected, address = run(config, tmp_path / "here").state_hash, own_address()
    for name in ("HTTP_PROXY", "HTTPS_PROXY", "http_proxy", "https_proxy"):
        monkeypatch.setenv(name, f"http://127.0.0.1:{port}")
    for name in ("NO_PROXY", "no_proxy"):
        monkeypatch.setenv(name, "")
    with stage(config, tmp_path / "town", {"each": allowed(config)}) as made:
        renew(made.coordinator, [address])
        names = sorted(path.name for path in (tmp_path / "town" / "sites").iterdir())
        for name in names:
            path = made.site(name) / "site.toml"
            path.write_text(path.read_text().replace(f"127.0.0.1:{made.port}", f"{address}:{made.port}"))
        made.server = link.start(made.coordinator, "0.0.0.0", made.port)
        made.join_all()
        found = made.perform(config, tmp_path / "run")
    assert found["state_hash"] == expected
    asked = set(re.findall(r"CONNECT (\S+) HTTP", log.read_text()))
    assert asked == {f"{address}:{made.port}"}
    assert len(re.findall(r"Established connection to host", log.read_text())) >= len(names)
