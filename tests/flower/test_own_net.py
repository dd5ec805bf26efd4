"""A network of one's own across hospitals: each approves it by its fingerprint, and the bits are the same."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from equipoise.config import Config
from equipoise.deploy.rehearse import rehearse
from equipoise.errors import SiteError
from equipoise.locate import Code
from equipoise.running import run

NET = """
from torch import nn


class Mine(nn.Module):
    def __init__(self, channels, width=6):
        super().__init__()
        self.conv, self.norm = nn.Conv2d(channels, width, 3), nn.BatchNorm2d(width)

    def forward(self, x):
        return self.norm(self.conv(x)).relu()
"""


@pytest.fixture
def config(tiny: Callable[..., Config], tmp_path: Path) -> Config:
    (tmp_path / "mine.py").write_text(NET)
    return tiny("fedavg", net={"name": f"{tmp_path}/mine.py:Mine", "width": 7, "batch_norm": "local"})


def test_an_approved_network_gives_the_bits_of_the_simulation(
    config: Config, town: Callable[..., Any], tmp_path: Path
) -> None:
    name = config.net.name
    parts = {"parts": {name: Code(name, tmp_path, "x").approval}}
    made = town(config, {f"site-{i:02d}": parts for i in range(3)})
    assert made.go().state_hash == run(config, tmp_path / "here").state_hash


def test_a_network_that_no_site_has_approved_is_not_run(
    config: Config, town: Callable[..., Any], tmp_path: Path
) -> None:
    made = town(config)
    with pytest.raises(SiteError, match="only 0 of 3 sites joined"):
        made.go()
    told = (made.run / "journal.jsonl").read_text()
    assert f"policy rule 'parts': '{config.net.name}' is not approved at this site" in told


def test_a_network_of_an_installed_package_is_approved_like_any_other(
    tiny: Callable[..., Config], town: Callable[..., Any]
) -> None:
    """Nothing of the package is looked up before the site's policy was asked."""
    name = "monai:DenseNet121"
    options = {"name": name, "init_features": 8, "growth_rate": 4}
    config = tiny("fedavg", data={"image_size": 32}, net=options, train={"rounds": 1})
    made = town(config)
    with pytest.raises(SiteError, match="only 0 of 3 sites joined"):
        made.go()
    told = (made.run / "journal.jsonl").read_text()
    assert f"policy rule 'parts': '{name}' is not approved at this site" in told


@pytest.mark.hospitals
def test_a_rehearsal_with_real_processes_gives_the_bits_of_the_simulation(
    config: Config, tmp_path: Path
) -> None:
    found = rehearse(config.with_engine(patience=1800.0, deadline=1800.0), tmp_path / "run")
    assert found["same"]
