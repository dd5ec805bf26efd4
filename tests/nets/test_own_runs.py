"""Whole runs with a network of the user's own: the same bits wherever they run; resumed, used, exported."""

from __future__ import annotations

import json
import tomllib
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from equipoise.cli import main
from equipoise.compare import arm_from, compare, make_plan
from equipoise.config import Config, resolve
from equipoise.errors import ConfigError, MethodError, StorageError, Untrusted
from equipoise.evaluate.scores import read_scores
from equipoise.exchange import seal
from equipoise.reproduce import find, prepare
from equipoise.running import Result, resume, run
from equipoise.setup import Material, cache_folder, make_host, material
from equipoise.use import export, formats, load

MakeConfig = Callable[..., Config]
FILE = '''
import torch
from torch import nn


class Features(nn.Module):
    """BatchNorm, dropout, a `.view`, a counter, a random order of features, and a fixed stem."""

    def __init__(self, channels, image_size, width=12):
        super().__init__()
        self.stem = nn.Conv2d(channels, 4, 1).requires_grad_(False)
        self.conv, self.norm = nn.Conv2d(4, 6, 3, stride=2, padding=1), nn.BatchNorm2d(6)
        self.drop = nn.Dropout(0.1)
        self.linear = nn.Linear(6 * (image_size // 2) ** 2, width)
        self.register_buffer("order", torch.randperm(width))
        self.register_buffer("calls", torch.zeros((), dtype=torch.int64))

    def forward(self, x):
        if self.training:
            self.calls += 1
        z = self.norm(self.conv(self.stem(x))).relu()
        z = self.linear(self.drop(z).view(x.shape[0], -1))
        return z[:, self.order] * (1 + 0.1 * self.calls) + 0.1 * torch.arange(z.shape[1])


class Ending(Features):
    """The same with a classifier."""

    def __init__(self, channels, image_size):
        super().__init__(channels, image_size)
        self.out = nn.Linear(12, 2)

    def forward(self, x):
        return self.out(super().forward(x))


class Seen(nn.Module):
    def __init__(self, channels):
        super().__init__()
        self.conv = nn.Conv2d(channels, 5, 3)

    def forward(self, x):
        return self.conv(x)
'''
OWN = {"name": "mine.py:Features", "width": 10}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    place = tmp_path_factory.mktemp("own")
    (place / "mine.py").write_text(FILE)
    return place


@pytest.fixture(scope="module")
def done(folder: Path, tiny: MakeConfig) -> Result:
    """One finished run."""
    return run(tiny("fedavg", base=folder, net=OWN), folder / "straight")


def test_serial_pool_and_a_resumed_run_give_the_same_bits(
    done: Result, folder: Path, tiny: MakeConfig, rows: Callable[[Path], Any], tmp_path: Path
) -> None:
    config = tiny("fedavg", base=folder, net=OWN, engine={"kind": "pool", "workers": 2})
    pooled = run(config, tmp_path / "pool")
    assert pooled.state_hash == done.state_hash
    assert rows(pooled.folder) == rows(done.folder)

    def stop(event: str, facts: dict[str, Any]) -> None:
        if event == "round" and facts["round"] == 1:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        run(tiny("fedavg", base=folder, net=OWN), tmp_path / "stopped", watch=stop)
    assert resume(tmp_path / "stopped").state_hash == done.state_hash
    assert rows(tmp_path / "stopped") == rows(done.folder)


def test_counters_stay_at_home_and_a_fixed_stem_stays_as_it_is(done: Result, folder: Path) -> None:
    model = done.server["model"]
    assert not [name for name in model if name.endswith(("calls", "order", "num_batches_tracked"))]
    config = resolve(tomllib.loads((done.folder / "config.toml").read_text()))
    first = make_host(config, material(config), folder / "unused").initial
    changed = {name for name in model if not torch.equal(model[name], first[name])}
    assert not {name for name in changed if "stem" in name}
    assert {"body.conv.weight", "body.norm.running_mean", "body.linear.bias", "head.fed.weight"} < changed


def test_the_loaded_model_answers_as_the_run_did(done: Result) -> None:
    model = load(done.folder)
    config = resolve(tomllib.loads((done.folder / "config.toml").read_text()))
    samples = config.data.load(cache=cache_folder(), base=config.base)
    scores = read_scores(done.folder / "scores", done.rounds)
    assert scores is not None
    places = {name: i for i, name in enumerate(samples.ids.tolist())}
    pixels = np.stack([samples.images[places[name]] for name in scores.ids.tolist()])
    with torch.no_grad():
        torch.testing.assert_close(model.logits(model.see(pixels)), scores.logits[0], atol=1e-4, rtol=1e-4)


def test_it_is_exported_to_onnx_and_not_to_safetensors(done: Result, tmp_path: Path) -> None:
    model = load(done.folder)
    assert export(model, tmp_path / "x.onnx", "onnx") < 1e-4
    with pytest.raises(
        ConfigError, match=r"cannot bring the code of 'mine\.py:Features' with it: use --to onnx"
    ):
        export(model, tmp_path / "x.safetensors", "safetensors")
    header = formats._header(model)
    for name in ("mine.py:Features", "monai:DenseNet121"):
        header["blueprint"]["net"]["name"] = name
        (tmp_path / "evil.safetensors").write_bytes(seal(header, {"net/x": torch.zeros(1)}))
        with pytest.raises(StorageError, match=f"cannot be used: .*'{name}' is not one of Equipoise's own"):
            load(tmp_path / "evil.safetensors")


def test_a_network_for_one_number_of_images_is_not_exported(
    done: Result, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    model = load(done.folder)
    monkeypatch.setattr(type(model.net.body), "forward", lambda self, x: torch.zeros(len(x), 10))
    with pytest.raises(MethodError, match=r"the onnx export does not work .*x\.shape\[0\], where len\(x\)"):
        export(model, tmp_path / "x.onnx", "onnx")
    assert not list(tmp_path.iterdir())


def test_a_changed_file_is_refused(tiny: MakeConfig, tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text(FILE)
    made = run(tiny("fedavg", base=tmp_path, net=OWN, train={"rounds": 1}), tmp_path / "run")
    assert list(json.loads((made.folder / "code.json").read_text())["code"]) == ["mine.py:Features"]
    (tmp_path / "mine.py").write_text(FILE + "# changed\n")
    with pytest.raises(StorageError, match=r"the code of 'mine\.py:Features' has changed since the run"):
        run(tiny("fedavg", base=tmp_path, net=OWN, train={"rounds": 1}), tmp_path / "run")
    (tmp_path / "mine.py").write_text(FILE + "# changed once more\n")
    with pytest.raises(Untrusted, match=r"which you have not run before.*the run was made with"):
        load(made.folder)


@pytest.mark.parametrize(
    ("method", "sections"),
    [
        ("fedavg", {"net": {"batch_norm": "local"}}),
        ("fedavg", {"net": {"batch_norm": "frozen", "dropout": 0.2}}),
        ("fedavg", {"net": {"batch_norm": "group", "head": "cosine"}, "train": {"precision": "bf16"}}),
        ("fedavg", {"net": {"name": "mine.py:Ending", "features": "linear"}}),
        ("fediic", {}),
        *(pytest.param(name, {}, marks=pytest.mark.sweep) for name in ("moon", "fedsdc", "fedrep")),
        ("fedmas", {"method": {"target": "mine.py:Seen"}}),
        ("fedavg", {"method": {"crt": 1}}),
    ],
)
def test_everything_that_is_for_networks_works(
    method: str, sections: dict[str, Any], folder: Path, tiny: MakeConfig, tmp_path: Path
) -> None:
    """One round, then used: heads, projectors, copies, private parts, frozen networks."""
    given = {**sections}
    net = given.pop("net", {})
    net = net if "name" in net else OWN | net
    train = {"rounds": 1, **given.pop("train", {})}
    table = tiny(base=folder, net=net, train=train).table()
    made = run(resolve(table | {"method": {"name": method, **given.get("method", {})}}), tmp_path / "run")
    assert made.rounds
    model = load(made.folder, "site-00")
    assert export(model, tmp_path / "x.onnx", "onnx") < 1e-4


def test_a_model_whose_frozen_network_is_ones_own_is_no_safetensors_file(
    folder: Path, tiny: MakeConfig, tmp_path: Path
) -> None:
    method = {"name": "fedmas", "target": "mine.py:Seen"}
    table = tiny(base=folder, train={"rounds": 1}).table() | {"method": method}
    model = load(run(table, tmp_path / "run").folder)
    with pytest.raises(ConfigError, match=r"cannot bring the code of 'mine\.py:Seen' with it"):
        export(model, tmp_path / "x.safetensors", "safetensors")


def test_the_verbs(done: Result, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "own.toml"
    path.write_text((done.folder / "config.toml").read_text())

    def cli(*words: object) -> str:
        with pytest.raises(SystemExit) as ended:
            main([str(word) for word in words])
        told = capsys.readouterr()
        assert ended.value.code == 0, told.err
        return told.out

    assert "mine.py:Features" in cli("check", path)
    assert json.loads(cli("ledger", path, "--json"))["leaves"]
    cli("report", done.folder)
    assert "mine.py:Features" in (done.folder / "report.html").read_text()
    cli("export", done.folder, "--to", "onnx", "--out", tmp_path / "m.onnx")
    assert (tmp_path / "m.onnx").is_file()
    cli("verify", done.folder)


def test_a_site_without_test_images_is_evaluated_by_a_network_that_takes_no_empty_batch(
    folder: Path, tiny: MakeConfig, tmp_path: Path
) -> None:
    config = tiny("fedavg", base=folder, net={"name": "mine.py:Features", "width": 9}, train={"rounds": 1})

    def change(dataset: Material) -> Material:
        first, *others = dataset.holdings
        bare = replace(first, test=first.test[:0], validation=first.validation[:0])
        return Material(dataset.samples, [bare, *others])

    assert run(config, tmp_path / "run", change=change).metrics["test"]


def test_networks_are_compared(folder: Path, tiny: MakeConfig, tmp_path: Path) -> None:
    table = tiny("fedavg", base=folder, train={"rounds": 1}).table()
    arms = [
        arm_from("ours: net.name=small-cnn"),
        arm_from("mine: net.name=mine.py:Features net.width=9"),
        arm_from("cut: net.name=mine.py:Ending net.features=linear"),
    ]
    facts = compare(make_plan(table, arms=arms, base=folder), tmp_path / "table", 2)
    assert not facts["failures"]
    alone = resolve({**table, "net": {"name": "mine.py:Features", "width": 9}})
    found = json.loads((tmp_path / "table" / "mine" / "0" / "result.json").read_text())
    assert found["state_hash"] == run(alone, tmp_path / "alone").state_hash


def test_a_papers_table_with_another_network(folder: Path, tmp_path: Path) -> None:
    (tmp_path / "phantom.toml").write_text('[data]\nkind = "phantom"\nscale = 0.004\nimage_size = 16\n')
    changes = ("net.name=mine.py:Features", "net.width=9", "train.rounds=1")
    task = prepare(
        find("fca-table4"), tmp_path / "phantom.toml", scale="small", overrides=changes, base=folder
    )
    assert {job.config.net.name for job in task.plan.jobs} == {"mine.py:Features"}
    assert all(job.config.net.own and set(job.config.codes) == {"mine.py:Features"} for job in task.plan.jobs)
    assert any("mine.py:Features on images of 16 pixels" in remark for remark in task.remarks)
