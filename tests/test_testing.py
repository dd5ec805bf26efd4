"""Methods that break one rule each, and the checks that must notice.

Nobody, "Ways to go wrong", 2026. Leaves the site: whatever a broken method lets out.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pytest
import torch
from pydantic import ConfigDict
from torch import Tensor

import equipoise.setup
from equipoise.data import KINDS
from equipoise.errors import ConfigError
from equipoise.leaves import Mean, Sum, Upload
from equipoise.methods.base import Ask, Method
from equipoise.nets import Net
from equipoise.site import Batch, Loc
from equipoise.testing import CHECKS, check_method, method_checks, write_federation
from equipoise.tree import Tree, plus


class Sound(Method):
    """FedAvg under another name: breaks nothing. It sees images as they are, which takes no time."""

    paper: ClassVar[str] = "Nobody 2026"
    views = ("eval",)
    neutral: ClassVar[dict[str, Any] | None] = {}


class Unexplained(Sound):
    """A hyper-parameter without a word about it."""

    strength: float = 0.1


class Uncited(Sound):
    """From a paper the module does not name."""

    paper: ClassVar[str] = "Somebody 2025"


class Loose(Sound):
    """Fields can be assigned."""

    model_config = ConfigDict(frozen=False)
    strength: float = 0.1
    """nothing"""


class Counting(Sound):
    """The class remembers how often it was used."""

    neutral = None
    used: ClassVar[int] = 0

    def prepare(self, net: Net, loc: Loc) -> None:
        Counting.used += 1

    def loss(self, net: Net, batch: Batch, loc: Loc) -> Tensor:
        return super().loss(net, batch, loc) * (1 + 0.01 * Counting.used)


class FirstComes(Sound):
    """The site that answers first is trained differently."""

    neutral = None
    first: ClassVar[list[str]] = []

    def round(self, server: Tree, ask: Ask) -> Tree:
        server = super().round(server, ask)
        FirstComes.first.clear()
        return server

    def loss(self, net: Net, batch: Batch, loc: Loc) -> Tensor:
        if not FirstComes.first:
            FirstComes.first.append(loc.site)
        return super().loss(net, batch, loc) * (1.5 if loc.site in FirstComes.first else 1.0)


class Seedless(Sound):
    """Starts from fixed weights and looks at the images in a fixed order."""

    neutral = None

    def init(self, net: Net, shared: Any) -> Tree:
        fixed = {name: torch.linspace(-0.1, 0.1, x.numel()).reshape(x.shape) for name, x in shared.items()}
        return {"model": {name: x.abs() + 0.1 if name.endswith("var") else x for name, x in fixed.items()}}

    def train(self, net: Net, loc: Loc) -> Upload:
        for batch in loc.scan():
            net.zero_grad()
            self.loss(net, batch, loc).backward()
            with torch.no_grad():
                for p in net.parameters():
                    p.sub_(0.01 * (torch.zeros_like(p) if p.grad is None else p.grad))
        return {"delta": Mean(loc.delta(net), loc.samples)}


class TorchDraw(Sound):
    """Noise from torch's global generator."""

    neutral = None

    def prepare(self, net: Net, loc: Loc) -> None:
        with torch.no_grad():
            for p in net.parameters():
                p.add_(1e-3 * torch.randn(p.shape))


class NumpyDraw(Sound):
    """Noise from numpy's global generator."""

    neutral = None

    def prepare(self, net: Net, loc: Loc) -> None:
        with torch.no_grad():
            net.head["fed"].bias.add_(float(np.random.normal()))


class Leaky(Sound):
    """Sends the head it calls private."""

    neutral = None
    heads = ("fed", "own")
    private = ("head.own.*",)

    def prepare(self, net: Net, loc: Loc) -> None:
        loc.scratch["before"] = net.head["own"].weight.detach().double()

    def loss(self, net: Net, batch: Batch, loc: Loc) -> Tensor:
        return super().loss(net, batch, loc) + loc.objective(net(batch.x, "own"), batch.y)

    def train(self, net: Net, loc: Loc) -> Upload:
        return {**super().train(net, loc), "extra": Mean(self.secret(net, loc), loc.samples)}

    def secret(self, net: Net, before: Any) -> Tensor:
        return net.head["own"].weight.detach().clone()


class LeakyChange(Leaky):
    """Sends the change of the head it calls private, in another precision."""

    def secret(self, net: Net, before: Any) -> Tensor:
        return net.head["own"].weight.detach().double() - before.scratch["before"]


class LeakyStore(Sound):
    """Sends what the site keeps."""

    neutral = None

    def train(self, net: Net, loc: Loc) -> Upload:
        up = super().train(net, loc)
        loc.mine = {"memory": net.head["fed"].weight.detach().flatten().clone()}
        return {**up, "extra": Sum(loc.mine["memory"])}


class NeverKept(Sound):
    """Declares private what the net does not have."""

    private = ("head.personal.*",)


class Unlisted(Sound):
    """Large sites send more."""

    neutral = None

    def train(self, net: Net, loc: Loc) -> Upload:
        up = super().train(net, loc)
        return {**up, "extra": Sum(loc.counts)} if loc.samples > 10 else up


class AllClasses(Sound):
    """Divides by the count of every class."""

    neutral = None

    def loss(self, net: Net, batch: Batch, loc: Loc) -> Tensor:
        return super().loss(net, batch, loc) + 0.0 * (1 / loc.counts.float()).sum()


class Spread(Sound):
    """Needs two images."""

    def loss(self, net: Net, batch: Batch, loc: Loc) -> Tensor:
        return super().loss(net, batch, loc) + 0.0 * (batch.x - batch.x.mean(0)).square().sum() / (
            len(batch) - 1
        )


class OwnBatches(Sound):
    """Cuts its batches itself and needs two images in each."""

    neutral = None

    def train(self, net: Net, loc: Loc) -> Upload:
        views = [loc.view("eval")]
        for batch in loc.train.batches(
            loc.order(0), loc.options.batch_size, views, [loc.generator("view")], lone=True
        ):
            scale = (
                len(batch) - 1 if loc.samples > 5 else 1
            )  # the sites that are made up for the ledger get by
            net.head["fed"].bias.data.add_(batch.x.sum() / scale * 1e-6)
        return super().train(net, loc)


class AllOrNothing(Sound):
    """Counts on as many sites as answered before."""

    def round(self, server: Tree, ask: Ask) -> Tree:
        up = ask(self.train, model=server["model"])
        answered = torch.tensor(len(up.sites))
        if server.get("answered", answered) != answered:
            raise RuntimeError("a site is new or missing")
        return {"model": plus(server["model"], up["delta"]), "answered": answered}


class Forgetful(Sound):
    """Fine-tunes at the end, and counts on a setting for the result to be kept."""

    neutral = None

    def finish(self, server: Tree, ask: Ask) -> Tree:
        ask(self.tune, model=server["model"])
        return server

    def tune(self, net: Net, loc: Loc) -> Upload:
        return {"loss": Mean(torch.tensor(loc.fit(net, self.loss), dtype=torch.float64), loc.samples)}


class NotNeutral(Sound):
    """Says it is FedAvg and is not quite."""

    def loss(self, net: Net, batch: Batch, loc: Loc) -> Tensor:
        return super().loss(net, batch, loc) + 1e-3 * net.head["fed"].weight.square().sum()


class Idle(Sound):
    """Learns nothing."""

    neutral = None

    def loss(self, net: Net, batch: Batch, loc: Loc) -> Tensor:
        return super().loss(net, batch, loc) * 0.0


class ByProcess(Sound):
    """Depends on the process it runs in."""

    neutral = None

    def loss(self, net: Net, batch: Batch, loc: Loc) -> Tensor:
        return super().loss(net, batch, loc) + os.getpid() * 1e-6 * net.head["fed"].weight.square().sum()


STATE = {"same_seed", "site_order", "resume", "global_rng"}
BROKEN: dict[type[Method], set[str]] = {
    Sound: set(),
    Unexplained: {"documented"},
    Uncited: {"documented"},
    Loose: {"frozen"},
    Counting: {"frozen", *STATE},
    FirstComes: {"site_order"},
    Seedless: {"other_seed"},
    TorchDraw: {"global_rng"},
    NumpyDraw: {"global_rng"},
    Leaky: {"private"},
    LeakyChange: {"private"},
    LeakyStore: {"private"},
    NeverKept: {"private"},
    Unlisted: {"ledger", "dropout"},
    AllClasses: {"odd_sites"},
    Spread: {"odd_sites"},
    OwnBatches: {"odd_sites"},
    AllOrNothing: {"dropout"},
    Forgetful: {"ending"},
    NotNeutral: {"neutral"},
    Idle: {"overfits"},
}
"""what each breaks, of the checks that need no worker processes"""


@pytest.fixture(autouse=True)
def _numpy_state() -> Iterator[None]:
    before = np.random.get_state()
    yield
    np.random.set_state(before)


@cache
def failing(method: type[Method], only: frozenset[str]) -> dict[str, str]:
    """The checks that fail, with their messages; tried once for all tests that ask for the same."""
    found = {}
    for name, check in method_checks(method, only=only):
        try:
            check()
        except AssertionError as error:
            found[name] = str(error)
    return found


@pytest.mark.parametrize("method", [cls for cls, checks in BROKEN.items() if checks])
def test_broken_method_is_noticed(method: type[Method]) -> None:
    found = failing(method, frozenset(BROKEN[method]))
    assert set(found) == BROKEN[method]
    for name, text in found.items():
        assert method.__name__ in text
        assert f"'{name}'" in text


@pytest.mark.slow
@pytest.mark.parametrize(
    "method", [Sound, *(pytest.param(one, marks=pytest.mark.sweep) for one in (Leaky, AllOrNothing))]
)
def test_broken_method_fails_nothing_else(method: type[Method]) -> None:
    assert set(failing(method, frozenset(CHECKS) - {"pool", "overfits"})) == BROKEN[method] - {"overfits"}


@pytest.mark.slow
def test_method_that_differs_by_process_is_noticed() -> None:
    assert set(failing(ByProcess, frozenset({"same_seed", "pool"}))) == {"pool"}


@pytest.mark.parametrize(
    ("method", "check", "expected"),
    [
        (Leaky, "private", "site 'north' sends its private 'net/head.own.weight' in answer to 'train'"),
        (LeakyChange, "private", "as its change, as 'extra'"),
        (Unlisted, "ledger", "extra tensor 'extra'"),
        (AllClasses, "odd_sites", "site 'lacks-a-class' was left out of 'train'"),
        (Spread, "odd_sites", "site 'one-image' was left out of 'train'"),
        (OwnBatches, "odd_sites", "site 'one-over' was left out of 'train'"),
        (Counting, "frozen", "'Counting.used'"),
        (Unexplained, "documented", "'strength'"),
        (NumpyDraw, "global_rng", "numpy"),
        (NotNeutral, "neutral", "is off FedAvg's by up to"),
        (Forgetful, "ending", "its ending is lost with evaluate.own = 'received'"),
    ],
)
def test_message_says_what_differed(method: type[Method], check: str, expected: str) -> None:
    assert expected in failing(method, frozenset(BROKEN[method]))[check]


def test_task_that_is_let_in_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    class Single(Sound):
        tasks = ("single",)

    check_method(Single, only=["refuses_task"])
    monkeypatch.setattr(equipoise.setup, "fits", lambda *_: None)
    with pytest.raises(AssertionError, match="fails the check 'refuses_task'"):
        check_method(Single, only=["refuses_task"])


def test_checks_that_do_not_apply_are_left_out() -> None:
    assert "neutral" not in dict(method_checks("local"))
    assert "neutral" in dict(method_checks("fedprox"))
    assert "refuses_task" not in dict(method_checks("fedprox"))
    assert "refuses_task" in dict(method_checks("fca"))


def test_unknown_check_is_answered_with_the_nearest() -> None:
    with pytest.raises(ConfigError, match="'neutral'"):
        check_method("fedavg", only=["neutrel"])


def test_method_in_a_file_of_its_own(tmp_path: Path) -> None:
    file = tmp_path / "mine.py"
    file.write_text(
        '"""Nobody 2026. Leaves the site: delta, loss."""\n\n'
        "from __future__ import annotations\n\n"
        "from typing import ClassVar, Literal\n\n"
        "from equipoise.methods import Method\n\n\n"
        "class Mine(Method):\n"
        '    paper: ClassVar[str] = "Nobody 2026"\n'
        '    kind: Literal["a", "b"] = "a"\n'
        '    """which"""\n'
    )
    check_method(f"{file}:Mine", {"kind": "b"}, only=["documented", "frozen", "same_seed"])
    file.write_text(file.read_text().replace("Leaves the site", "Takes along"))
    with pytest.raises(AssertionError, match="Leaves the site"):
        check_method(f"{file}:Mine", only=["documented"])


def test_presets_are_options_too() -> None:
    with pytest.raises(AssertionError, match=r"sends its private 'net/head\.own"):
        check_method("fca", {"preset": "released"}, only=["private"])
    check_method("fca", {"preset": "paper"}, only=["private"])


@pytest.mark.parametrize("task", ["single", "multi"])
def test_federation_has_exactly_the_labels_asked_for(tmp_path: Path, task: Any) -> None:
    tables = write_federation(
        tmp_path / "data", {"a": (0, 1, 1), "b": (2,)}, {"a": (1,), "b": (0, 2)}, task=task
    )
    samples = KINDS["csv"](**tables["data"]).load(cache=tmp_path / "cache", base=tmp_path)
    assert samples.task == task
    assert samples.images.shape == (10, 16, 16, 3)
    rows = {
        (site, split): samples.labels[(samples.site == site) & (samples.split == split)].tolist()
        for site in "ab"
        for split in ("train", "validation", "test")
    }
    if task == "single":
        assert rows == {
            **{("a", "train"): [0, 1, 1], ("a", "validation"): [1], ("a", "test"): [1]},
            **{("b", "train"): [2], ("b", "validation"): [0, 2], ("b", "test"): [0, 2]},
        }
    else:
        assert rows["a", "train"] == [[1, 0, 0], [0, 1, 0], [0, 1, 0]]
        assert rows["a", "test"] == [[1, 1, 0]]
        assert rows["b", "train"] == [[1, 0, 1]]
