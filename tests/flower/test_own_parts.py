"""One file with a network, a view and a loss of one's own: the same bits in one process, in workers, killed
and resumed, across Flower's messages and between real processes; and a model that loads and exports."""

from __future__ import annotations

import signal
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import tomli_w
import torch

from equipoise.config import Config, read_folder
from equipoise.deploy.policy import marks_of
from equipoise.deploy.rehearse import rehearse
from equipoise.errors import SiteError
from equipoise.running import Result, resume, run
from equipoise.use import export, load

MINE = '''
import torch
import torch.nn.functional as F
from torch import nn


class Tiny(nn.Module):
    def __init__(self, channels, width=6):
        super().__init__()
        self.conv, self.norm = nn.Conv2d(channels, width, 3), nn.BatchNorm2d(width)
        self.drop = nn.Dropout(0.2)

    def forward(self, x):
        return self.drop(self.norm(self.conv(x)).relu())


def noisy(images, generator):
    """A view."""
    return (images + 0.1 * torch.randn(images.shape, generator=generator)).clamp(0, 1)


def focal(logits, labels, counts, gamma=2.0):
    """A loss."""
    ce = F.cross_entropy(logits, labels, reduction="none")
    return (1 - torch.exp(-ce)) ** gamma * ce / counts[labels].clamp(min=1)
'''


@pytest.fixture(scope="module")
def config(tiny: Callable[..., Config], tmp_path_factory: pytest.TempPathFactory) -> Config:
    file = tmp_path_factory.mktemp("own") / "mine.py"
    file.write_text(MINE)
    train = {"views": [f"{file}:noisy"], "objective": {"name": f"{file}:focal", "gamma": 1.5}, "rounds": 3}
    return tiny("fedavg", net={"name": f"{file}:Tiny", "width": 7, "batch_norm": "local"}, train=train)


@pytest.fixture(scope="module")
def plain(config: Config, tmp_path_factory: pytest.TempPathFactory) -> Result:
    """The run in one process."""
    return run(config, tmp_path_factory.mktemp("own") / "plain")


def approval(config: Config) -> dict[str, dict[str, str]]:
    return {"parts": {name: mark for name, mark in marks_of(config).items() if name != config.method_name}}


def test_workers_give_the_same_bits(config: Config, plain: Result, tmp_path: Path) -> None:
    assert run(config.with_engine(kind="pool"), tmp_path / "pool").state_hash == plain.state_hash


# Gone in the second round.
CHILD = """
import os, signal, sys
from equipoise.running import run

def watch(event, facts):
    if event == "round" and facts["round"] == 2:
        os.kill(os.getpid(), signal.SIGKILL)

run(sys.argv[1], sys.argv[2], watch=watch)
"""


def test_a_killed_run_is_resumed_to_the_same_bits(
    config: Config, plain: Result, forked: Callable[..., list[str]], tmp_path: Path
) -> None:
    file, folder = tmp_path / "run.toml", tmp_path / "killed"
    file.write_text(tomli_w.dumps(config.table()))
    assert subprocess.run(forked(CHILD, file, folder), check=False).returncode == -signal.SIGKILL
    assert (folder / "checkpoints" / "round-000001.safetensors").exists()
    assert not (folder / "result.json").exists()
    assert resume(folder).state_hash == plain.state_hash


def test_sites_that_approve_give_the_same_bits(
    config: Config, plain: Result, town: Callable[..., Any], tmp_path: Path
) -> None:
    made = town(config, {f"site-{i:02d}": approval(config) for i in range(3)})
    assert made.go().state_hash == plain.state_hash


def test_a_site_runs_nothing_that_it_has_not_approved(config: Config, town: Callable[..., Any]) -> None:
    given = approval(config)["parts"]
    less = {"parts": {name: mark for name, mark in given.items() if not name.endswith("focal")}}
    made = town(config, {f"site-{i:02d}": less for i in range(3)})
    with pytest.raises(SiteError, match="only 0 of 3 sites joined"):
        made.go()
    assert "focal' is not approved at this site" in (made.run / "journal.jsonl").read_text()


def test_the_model_loads_and_is_exported(config: Config, plain: Result, tmp_path: Path) -> None:
    model = load(plain.folder, "site-00")
    assert export(model, tmp_path / "x.onnx", "onnx") < 1e-4
    again = load(plain.folder, "site-00")
    x = torch.rand(2, *model.blueprint.input.shape)
    assert torch.equal(model(x), again(x))
    assert read_folder(plain.folder).digest == config.digest


@pytest.mark.hospitals
def test_real_processes_give_the_same_bits(config: Config, tmp_path: Path) -> None:
    assert rehearse(config.with_engine(patience=1800.0, deadline=1800.0), tmp_path / "run")["same"]
