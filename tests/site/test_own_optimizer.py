"""Optimisers of torch and of one's own: torch's very steps, state that can be kept by name, refusals before
the run."""

from __future__ import annotations

import runpy
import tomllib
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from equipoise.config import Config, resolve
from equipoise.deploy.policy import Policy, read_policy
from equipoise.errors import ConfigError
from equipoise.site.optimizer import make_optimizer
from equipoise.tree import flatten, unflatten

MINE = '''
import torch


class Lion(torch.optim.Optimizer):
    """Keeps a momentum and a Python number per parameter, and a counter for all."""

    def __init__(self, params, lr=1e-4, beta=0.9, weight_decay=0.0):
        super().__init__(params, {"lr": lr, "beta": beta, "weight_decay": weight_decay, "k": 0})

    @torch.no_grad()
    def step(self):
        for group in self.param_groups:
            group["k"] += 1
            for p in group["params"]:
                if p.grad is None:
                    continue
                state = self.state[p]
                if not state:
                    state.update(average=torch.zeros_like(p), steps=0, scale=1.0)
                state["steps"] += 1
                state["scale"] *= 0.99
                p.mul_(1 - group["lr"] * group["weight_decay"])
                rate = group["lr"] * state["scale"] / group["k"]
                p.add_(torch.sign(state["average"] + p.grad), alpha=-rate)
                state["average"].mul_(group["beta"]).add_(p.grad, alpha=1 - group["beta"])


class Remembers(torch.optim.SGD):
    """Keeps something that its state does not tell."""

    def __init__(self, params, lr):
        super().__init__(params, lr)
        self.count = 0

    def step(self):
        self.count += 1
        for group in self.param_groups:
            group["lr"] /= self.count
        super().step()


class Lists(torch.optim.SGD):
    def step(self):
        super().step()
        for p in self.param_groups[0]["params"]:
            self.state[p].setdefault("old", []).append(p.clone())


def factory(params, lr, power):
    return torch.optim.SGD(params, lr=lr ** power)


class NoRate(torch.optim.SGD):
    def __init__(self, params):
        super().__init__(params, lr=0.1)


def none(params, lr):
    return None


value = 3
'''


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "mine.py").write_text(MINE)
    return tmp_path


def config(folder: Path, name: str, **train: Any) -> Config:
    return resolve({"train": {"optimizer": name, **train}}, folder)


def some() -> dict[str, nn.Parameter]:
    draw = torch.Generator().manual_seed(0)
    return {
        "kernel": nn.Parameter(torch.randn(4, 3, 3, 3, generator=draw).to(memory_format=torch.channels_last)),
        "weight": nn.Parameter(torch.randn(4, 2, generator=draw)),
        "bias": nn.Parameter(torch.randn(4, generator=draw)),
    }


CASES: list[tuple[str, dict[str, Any], dict[str, Any]]] = [
    ("RMSprop", {"optimizer_options": {"alpha": 0.9}, "momentum": 0.5}, {"alpha": 0.9, "momentum": 0.5}),
    (
        "RMSprop",
        {"weight_decay": 0.1, "optimizer_options": {"centered": True}},
        {"weight_decay": 0.1, "centered": True},
    ),
    ("Adagrad", {}, {}),
    ("Adamax", {"optimizer_options": {"betas": [0.8, 0.99]}}, {"betas": (0.8, 0.99)}),
    ("NAdam", {}, {}),
    ("RAdam", {}, {}),
    ("Adadelta", {}, {}),
    ("ASGD", {}, {}),
    ("Rprop", {}, {}),
    ("SGD", {"momentum": 0.9, "nesterov": True}, {"momentum": 0.9, "nesterov": True}),
    ("Adafactor", {}, {}),
]


@pytest.mark.parametrize(("name", "train", "arguments"), CASES)
@pytest.mark.parametrize("kept", [False, True])
def test_steps_are_those_of_torch(
    folder: Path, name: str, train: dict[str, Any], arguments: dict[str, Any], kept: bool
) -> None:
    options = config(folder, f"torch.optim:{name}", persist_optimizer=kept, **train).train
    ours, theirs = some(), some()
    oracle = getattr(torch.optim, name)(list(theirs.values()), lr=0.01, **arguments)
    follow(options, ours, theirs, oracle, kept)


@pytest.mark.parametrize("kept", [False, True])
def test_steps_are_those_of_the_class(folder: Path, kept: bool) -> None:
    options = config(folder, "mine.py:Lion", persist_optimizer=kept, optimizer_options={"beta": 0.5}).train
    ours, theirs = some(), some()
    lion = runpy.run_path(str(folder / "mine.py"))["Lion"]
    follow(options, ours, theirs, lion(list(theirs.values()), lr=0.01, beta=0.5), kept)


def follow(options: Any, ours: Any, theirs: Any, oracle: Any, kept: bool) -> None:
    """Six steps, with a stop before the fourth from which a site goes on with what it stored."""
    optimizer = make_optimizer(options, 0.01, ours)
    draw = torch.Generator().manual_seed(1)
    for step in range(6):
        for name in ours:
            gradient = torch.randn(ours[name].shape, generator=draw)
            late = name == "bias" and step < 2
            ours[name].grad, theirs[name].grad = (None if late else gradient.clone() for _ in range(2))
        if kept and step in (1, 3):
            stored = {name: value.clone() for name, value in flatten(optimizer.moments).items()}
            optimizer = make_optimizer(options, 0.01, ours)
            optimizer.restore(unflatten(stored))
        optimizer.step()
        oracle.step()
        for name in ours:
            assert torch.equal(ours[name], theirs[name]), (step, name)
    optimizer.zero()
    assert all(p.grad is None for p in ours.values())


def test_the_learning_rate_is_the_rounds(folder: Path) -> None:
    options = config(folder, "mine.py:factory", optimizer_options={"power": 2}).train
    optimizer = make_optimizer(options, 0.1, some())
    assert optimizer.torch.param_groups[0]["lr"] == pytest.approx(0.01)


REFUSED: list[tuple[str, dict[str, Any], str]] = [
    ("rmsprop", {}, "unknown optimiser 'rmsprop'.*torch.optim:Class or FILE.py:Class"),
    ("adm", {}, "did you mean 'adam'"),
    ("torch.optim:RMSProp", {}, "did you mean 'RMSprop'"),
    ("torch.optim:Optimizer", {}, "unknown class of torch.optim 'Optimizer'"),
    ("torch.optim:LBFGS", {}, "cannot take a step: TypeError.*closure"),
    ("torch.optim:SparseAdam", {}, "cannot take a step"),
    ("torch.optim:RMSprop", {"optimizer_options": {"alpa": 1}}, "'alpa': did you mean 'alpha'"),
    ("torch.optim:RMSprop", {"optimizer_options": {"alpha": -1}}, "cannot take a step: ValueError"),
    ("torch.optim:RMSprop", {"optimizer_options": {"lr": 1}}, "the learning rate is train.lr"),
    ("torch.optim:Rprop", {"weight_decay": 0.1}, "unknown option of train.optimizer 'torch.optim:Rprop'"),
    ("adam", {"optimizer_options": {"eps": 1}}, "'adam' has its options in"),
    ("mine.py:factory", {}, "needs the option 'power'"),
    ("mine.py:NoRate", {}, "has no argument 'lr'"),
    ("mine.py:none", {}, "cannot take a step"),
    ("mine.py:value", {}, "is not a class of optimisers"),
    ("mine.py:nowhere", {}, "has no 'nowhere'"),
    ("mine.py:Remembers", {"persist_optimizer": True}, "keeps more than its state_dict tells"),
    ("mine.py:Lists", {"persist_optimizer": True}, "keeps 'old', a list, which cannot be stored"),
]


@pytest.mark.parametrize(("name", "train", "why"), REFUSED, ids=[name for name, *_ in REFUSED])
def test_what_cannot_be_used_is_refused_before_the_run(
    folder: Path, name: str, train: dict[str, Any], why: str
) -> None:
    with pytest.raises(ConfigError, match=why) as refused:
        config(folder, name, **train)
    assert "\n" not in str(refused.value) and "train." in str(refused.value)


def test_without_keeping_it_anything_may_be_remembered(folder: Path) -> None:
    assert config(folder, "mine.py:Remembers").train.own_optimizer is not None
    assert config(folder, "mine.py:Lists").train.own_optimizer is not None


def test_the_config_keeps_the_name(folder: Path) -> None:
    for name in ("mine.py:Lion", "torch.optim:RMSprop"):
        one = config(folder, name, optimizer_options={"weight_decay": 0.1})
        assert resolve(one.table()).digest == one.digest
        assert one.table()["train"]["optimizer"] == name
        assert one.train.model_copy(update={"seed": 5}).own_optimizer is one.train.own_optimizer
    assert config(folder, "torch.optim:RMSprop").marks == {}  # torch is what Equipoise itself runs on


def test_a_policy_names_it_exactly(folder: Path) -> None:
    def objections(**policy: Any) -> list[str]:
        run = config(folder, "torch.optim:RMSprop")
        return [text for text in Policy(**policy).terms(run) if "optimizers" in text]

    assert objections() == ["policy rule 'optimizers': this site does not train with 'torch.optim:RMSprop'"]
    assert objections(optimizers=["torch.optim:Rprop"])
    assert not objections(optimizers=["adam", "torch.optim:RMSprop"])
    path = folder / "policy.toml"
    path.write_text('optimizers = ["adam", "adamm"]')
    with pytest.raises(ConfigError, match="did you mean 'adam'"):
        read_policy(path)
    path.write_text('optimizers = ["mine.py:Lion"]')
    assert read_policy(path).optimizers == tuple(tomllib.loads(path.read_text())["optimizers"])
