"""One file with a view, a loss, a metric, a partition, an optimiser and a data kind of one's own: the same
bits serial, in worker processes and after a stop, and a model that loads and exports."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import tomli_w
import torch

from equipoise import load, resume, run
from equipoise.cli import main
from equipoise.config import Config, resolve
from equipoise.errors import ConfigError, DataError, SiteError, Untrusted
from equipoise.setup import material
from equipoise.use.formats import export

MINE = '''
import hashlib
import numpy as np
import torch
import torch.nn.functional as F

from equipoise.data import DataOptions, Samples
from equipoise.data.samples import fingerprint


class Squares(DataOptions):
    """Squares in one of three corners; two hospitals that differ in brightness."""

    images: int = 72

    def load(self, *, cache, base, progress=None):
        draw = np.random.default_rng(0)
        labels = draw.permutation(np.arange(self.images) % 3)
        site = np.where(np.arange(self.images) % 2, "east", "west")
        shape = (self.images, self.image_size, self.image_size, self.channels)
        pixels = draw.integers(0, 60, shape, np.uint8)
        half = self.image_size // 2
        for image, label in zip(pixels, labels, strict=True):
            image[half * (label // 2) :][:half, half * (label % 2) :][:, :half] += 150
        classes, digest = ("top left", "top right", "below"), hashlib.sha256(pixels.tobytes()).hexdigest()
        return Samples(
            images=pixels,
            labels=labels,
            classes=classes,
            task="single",
            ids=np.array([f"image {i}" for i in range(self.images)]),
            fingerprint=fingerprint(digest, labels, classes, {"site": site}),
            site=site,
        )


def noisy(images, generator):
    return (images + 0.1 * torch.randn(images.shape, generator=generator)).clamp(0, 1)


def drawn(image):
    """Per image, from the global generators."""
    return image.flip(2) if np.random.rand() < 0.5 else image * torch.rand(1)


def focal(logits, labels, counts, gamma=2.0):
    """Weighs classes, and adds noise from numpy's global generator."""
    ce = F.cross_entropy(logits, labels, reduction="none")
    noise = 0.01 * np.random.rand() * logits.square().mean(1)
    return (1 - torch.exp(-ce)) ** gamma * ce / counts[labels] + noise


def right(scores, labels):
    return float((scores.argmax(1) == labels).mean())


def dealt(labels, sites, generator, uneven=0):
    owner = generator.permutation(len(labels)) % (sites + uneven)
    return {f"site {i}": np.flatnonzero(owner % sites == i) for i in range(sites)}


class Signs(torch.optim.Optimizer):
    def __init__(self, params, lr, beta=0.9):
        super().__init__(params, {"lr": lr, "beta": beta})

    @torch.no_grad()
    def step(self):
        for group in self.param_groups:
            for p in group["params"]:
                if p.grad is not None:
                    average = self.state[p].setdefault("average", torch.zeros_like(p))
                    average.lerp_(p.grad, 1 - group["beta"])
                    p.add_(average.sign(), alpha=-group["lr"])
'''

TABLE: dict[str, Any] = {
    "data": {"kind": "mine.py:Squares", "image_size": 16, "channels": 3},
    "partition": {"kind": "mine.py:dealt", "sites": 3, "uneven": 1},
    "method": {"name": "fedprox"},
    "train": {
        "rounds": 2,
        "batch_size": 8,
        "views": ["mine.py:noisy"],
        "objective": ["fedrs", {"name": "mine.py:focal", "gamma": 1.5}],
        "optimizer": "mine.py:Signs",
        "optimizer_options": {"beta": 0.8},
        "persist_optimizer": True,
        "clip_norm": 1.0,
        "schedule": "cosine",
        "lr": 0.003,
    },
    "evaluate": {"metrics": ["mine.py:right"]},
    "engine": {"device": "cpu"},
}


class Stopped(Exception):
    """Stands for a crash."""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "mine.py").write_text(MINE)
    return tmp_path


def config(folder: Path, **train: Any) -> Config:
    return resolve({**TABLE, "train": {**TABLE["train"], **train}}, folder)


def test_the_same_bits_however_it_runs(folder: Path, rows: Callable[[Path], list[dict[str, Any]]]) -> None:
    one = config(folder)
    assert resolve(one.table()).digest == one.digest
    assert set(one.marks) == {
        f"mine.py:{name}" for name in ("Squares", "dealt", "noisy", "focal", "Signs", "right")
    }
    serial = run(one, folder / "serial")
    pool = run(one.with_engine(kind="pool", workers=2), folder / "pool")

    def stop(event: str, facts: dict[str, Any]) -> None:
        if event == "round" and facts["round"] == 1:
            raise Stopped

    with pytest.raises(Stopped):
        run(one, folder / "stopped", watch=stop)
    resumed = resume(folder / "stopped")
    assert serial.state_hash == pool.state_hash == resumed.state_hash
    assert rows(folder / "serial") == rows(folder / "pool") == rows(folder / "stopped")
    test = serial.metrics["test"]["generalisation"]
    assert test["right"] == pytest.approx(test["accuracy"])
    model = load(folder / "serial")
    for kind in ("safetensors", "onnx"):
        assert export(model, folder / f"model.{kind}", kind) < 1e-5
    x = torch.rand(4, 3, 16, 16, generator=torch.Generator().manual_seed(0))
    assert torch.equal(load(folder / "model.safetensors")(x), model(x))


@pytest.fixture(scope="module")
def plain(tmp_path_factory: pytest.TempPathFactory) -> str:
    """What one round of it ends with."""
    folder = tmp_path_factory.mktemp("plain")
    (folder / "mine.py").write_text(MINE)
    return run(config(folder, rounds=1), folder / "run").state_hash


@pytest.mark.parametrize(
    "change",
    [
        {"views": ["weak"]},
        {"views": ["mine.py:drawn"]},
        {"objective": "fedrs+mine.py:focal"},
        {"optimizer_options": {"beta": 0.5}},
        {"optimizer": "torch.optim:RMSprop", "optimizer_options": {}},
    ],
    ids=str,
)
def test_every_part_counts(folder: Path, plain: str, change: dict[str, Any]) -> None:
    assert run(config(folder, **change, rounds=1)).state_hash != plain


def test_a_method_that_trains_parts_of_the_net(folder: Path) -> None:
    train = {**TABLE["train"], "rounds": 1}
    one = resolve({**TABLE, "train": train, "method": {"name": "fedrep"}}, folder)
    assert run(one).state_hash == run(one.with_engine(kind="pool", workers=2)).state_hash


def test_a_comparison_of_own_parts(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (folder / "it.toml").write_text(tomli_w.dumps(config(folder, rounds=1).table()))
    words = ["--methods", "fedavg,fedprox", "--seeds", "0", "--out", str(folder / "all")]
    with pytest.raises(SystemExit) as ended:
        main(["compare", str(folder / "it.toml"), *words])
    assert ended.value.code == 0, capsys.readouterr().err
    facts = json.loads((folder / "all" / "comparison.json").read_text())
    assert facts["arms"]["fedavg"]["figures"]["generalisation"]["right"]["mean"] > 0


def test_the_code_of_a_folder_is_asked_about(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    done = run(config(folder, rounds=1), folder / "out")
    (folder / "mine.py").write_text(MINE + "\n# another\n")
    with pytest.raises(Untrusted, match="which you have not run before"):
        load(done.folder)
    assert load(done.folder, trust=True).classes == ("top left", "top right", "below")


def test_a_data_kind_is_a_class(folder: Path) -> None:
    with pytest.raises(ConfigError, match=r"'mine\.py:noisy' is not a class that builds on DataOptions"):
        resolve({"data": {"kind": "mine.py:noisy"}}, folder)
    with pytest.raises(ConfigError, match=r"unknown key 'data\.imges': did you mean 'images'"):
        resolve({"data": {"kind": "mine.py:Squares", "imges": 3}}, folder)
    (folder / "empty.py").write_text(
        "from equipoise.data import DataOptions\nclass Empty(DataOptions):\n    pass\n"
    )
    with pytest.raises(ConfigError, match=r"^data\.kind: the class 'empty\.py:Empty' has no 'load'"):
        resolve({"data": {"kind": "empty.py:Empty"}}, folder)


@pytest.mark.parametrize(
    ("old", "new", "why"),
    [
        ("draw = np", "draw = mp", "fails: NameError: name 'mp' is not defined"),
        ("return Samples(", "return dict(", "must load Samples, and loaded a dict"),
        ("images=pixels", "images=pixels / 255", r"images must be uint8 \[72, 16, 16, 3\], and are float64"),
        ("images=pixels", "images=pixels[:, 1:]", r"and are uint8 \[72, 15, 16, 3\]"),
        ("labels=labels", "labels=labels + 1", "labels must be 0 to 2, and are 1 to 3"),
        ("labels=labels", "labels=labels * 1.0", r"labels must be int64 \[72\], and are float64 \[72\]"),
        ('task="single"', 'task="multi"', r"labels must be float32 \[72, 3\]"),
        ("site=site,", "site=site[1:],", "'site' has 71 entries for 72 images"),
        ("fingerprint=finger", 'fingerprint="" and finger', "fingerprint must be a digest"),
    ],
)
def test_what_a_data_kind_loads_is_looked_at(folder: Path, old: str, new: str, why: str) -> None:
    assert old in MINE
    (folder / "mine.py").write_text(MINE.replace(old, new))
    with pytest.raises(DataError, match=rf"^data\.kind 'mine\.py:Squares'.*{why}") as refused:
        material(config(folder))
    assert "\n" not in str(refused.value)


def test_a_loss_that_fails_at_a_site_is_one_sentence(folder: Path) -> None:
    (folder / "mine.py").write_text(MINE.replace("ce / counts[labels]", "ce / counts[labels + 5]"))
    with pytest.raises(SiteError, match=r"failed in round 1 at 'train': IndexError") as failed:
        run(config(folder))
    assert "\n" not in str(failed.value)
