"""FedProc: the loss and the prototypes by explicit loops, its ramp, its first round."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from equipoise.leaves import Sum
from equipoise.losses import masked_bce
from equipoise.methods.base import Method
from equipoise.methods.fedproc import FedProc
from equipoise.methods.moon import project
from equipoise.nets import Net, NetOptions, build
from equipoise.running import run
from equipoise.site import Batch

NAME = "fedproc"
METHOD = FedProc(size=8, ramp=4)


class SameHead(Method):
    """FedAvg with FedProc's head."""

    def make_head(self, width: int, classes: int) -> nn.Sequential:
        return FedProc().make_head(width, classes)


@pytest.fixture
def net() -> Net:
    options = {"classes": 3, "image_size": 16, "base": Path.cwd()}
    return build(NetOptions(name="small-cnn"), make_head=METHOD.make_head, seed=5, **options).double().eval()  # type: ignore[arg-type]


def batch(y: Tensor) -> Batch:
    x = torch.randn(len(y), 3, 16, 16, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    return Batch(views=(x,), y=y, index=torch.arange(len(y)))


def place(given: Batch, round: int = 1, **down: Tensor) -> Any:
    single = given.y.dim() == 1
    return SimpleNamespace(
        objective=F.cross_entropy if single else masked_bce,
        task="single" if single else "multi",
        classes=("a", "b", "c"),
        train=SimpleNamespace(labels=given.y),
        scan=lambda: [given],
        round=round,
        rounds=200,
        down=down,
    )


def drawn(*shape: int) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(7), dtype=torch.float64)


def unit(v: list[float]) -> list[float]:
    norm = math.sqrt(sum(x * x for x in v))
    return [x / norm for x in v] if norm else v


def dot(a: list[float], b: list[float]) -> float:
    return sum(x * y for x, y in zip(a, b, strict=True))


def test_projection_is_normalised_before_the_classifier(net: Net) -> None:
    q, logits = project(net, batch(torch.tensor([0, 1, 2])).x)
    torch.testing.assert_close(q.norm(dim=1), torch.ones(3).double())
    torch.testing.assert_close(logits, net(batch(torch.tensor([0, 1, 2])).x))


@pytest.mark.parametrize("round", [1, 3])
def test_loss_by_hand(net: Net, round: int) -> None:
    given, prototypes = batch(torch.tensor([0, 1, 2, 1])), drawn(3, 8)
    prototypes[2] = 0  # a class nobody has shown yet
    q, logits = project(net, given.x)
    centres = [unit(c) for c in prototypes.tolist()]
    near = 0.0
    for v, y in zip(q.tolist(), given.y.tolist(), strict=True):
        scores = [dot(v, c) for c in centres]
        near += math.log(sum(map(math.exp, scores))) - scores[y]
    alpha = round / 4
    expected = alpha * F.cross_entropy(logits, given.y).item() + (1 - alpha) * near / 4
    loss = METHOD.loss(net, given, place(given, round, prototypes=prototypes))
    assert loss.item() == pytest.approx(expected, rel=1e-12)


def test_two_prototypes_per_label_by_hand(net: Net) -> None:
    y = torch.tensor([[1.0, 0.0, 0.0], [0.0, 1.0, 0.0]], dtype=torch.float64)
    y[:, 2] = torch.nan  # the third is not annotated
    given, prototypes = batch(y), drawn(3, 2, 8)
    q, logits = project(net, given.x)
    near = 0.0
    for v, row in zip(q.tolist(), y.tolist(), strict=True):
        for c in (0, 1):
            scores = [dot(v, unit(prototypes[c, side].tolist())) for side in (0, 1)]
            near += math.log(sum(map(math.exp, scores))) - scores[int(row[c])]
    expected = 0.25 * F.binary_cross_entropy_with_logits(logits[:, :2], y[:, :2]).item() + 0.75 * near / 4
    loc = place(given, 1, prototypes=prototypes)
    assert METHOD.loss(net, given, loc).item() == pytest.approx(expected, rel=1e-12)


def test_first_round_and_the_end_of_the_ramp_are_the_base_loss(net: Net) -> None:
    given = batch(torch.tensor([0, 1, 2, 1]))
    base = F.cross_entropy(net(given.x), given.y)
    assert torch.equal(METHOD.loss(net, given, place(given, 0)), base)
    for round in (4, 9):
        assert torch.equal(METHOD.loss(net, given, place(given, round, prototypes=drawn(3, 8))), base)


def test_ramp() -> None:
    assert [FedProc().alpha(r, 200) for r in (0, 50, 100, 150)] == [0, 0.5, 1, 1]
    assert [FedProc().alpha(r, 30) for r in (0, 15, 29)] == [0, 0.5, 29 / 30]
    assert FedProc(ramp=10).alpha(5, 200) == 0.5


def test_sums_and_counts_by_hand(net: Net) -> None:
    single = batch(torch.tensor([0, 2, 2, 0, 0]))
    q = project(net, single.x)[0].detach()
    up = METHOD._describe(net, place(single))
    assert all(isinstance(leaf, Sum) for leaf in up.values())
    assert up["counts"].value.tolist() == [3, 0, 2]  # type: ignore[union-attr]
    torch.testing.assert_close(up["sums"].value, torch.stack([q[0] + q[3] + q[4], 0 * q[0], q[1] + q[2]]))
    y = torch.tensor([[1.0, 0, 0], [1, 1, 0], [0, 1, 0]], dtype=torch.float64)
    y[:, 2] = torch.nan
    many = batch(y)
    q = project(net, many.x)[0].detach()
    up = METHOD._describe(net, place(many, 1))
    assert up["counts"].value.tolist() == [[1, 2], [1, 2], [0, 0]]  # type: ignore[union-attr]
    sides = [[q[2], q[0] + q[1]], [q[0], q[1] + q[2]], [0 * q[0], 0 * q[0]]]
    torch.testing.assert_close(up["sums"].value, torch.stack([torch.stack(pair) for pair in sides]))


def test_a_class_nobody_shows_keeps_its_prototype() -> None:
    answers = [
        {"delta": {}, "sums": torch.tensor([[2.0, 4.0], [0.0, 0.0]]), "counts": torch.tensor([2.0, 0.0])},
        {"delta": {}, "sums": torch.tensor([[0.0, 0.0], [3.0, 0.0]]), "counts": torch.tensor([0.0, 3.0])},
    ]
    server: Any = {"model": {}}
    found = []
    for answer in answers:
        server = FedProc().round(server, lambda question, answer=answer, **down: answer)
        found.append(server["prototypes"].tolist())
    assert found == [[[1, 2], [0, 0]], [[1, 2], [1, 0]]]


def test_first_round_is_fedavg_with_the_same_head(make_config: Callable[..., Any], tmp_path: Path) -> None:
    for rounds, same in ((1, True), (2, False)):
        config = make_config({"name": NAME}, rounds=rounds)
        plain = replace(config, method=SameHead(), method_name=f"{Path(__file__)}:SameHead")
        mine = run(config, tmp_path / f"mine-{rounds}").server
        theirs = run(plain, tmp_path / f"plain-{rounds}").server["model"]
        assert all(torch.equal(mine["model"][n], theirs[n]) for n in theirs) == same
        assert mine["prototypes"].shape == (3, 256)
        assert (mine["prototypes"].norm(dim=1) <= 1).all()


def test_hidden_labels_never_enter(make_findings: Callable[..., Any], tmp_path: Path) -> None:
    found = [
        run(make_findings({"name": NAME}, spoilt=kind), tmp_path / str(kind)).state_hash
        for kind in (False, True)
    ]
    assert found[0] == found[1]
