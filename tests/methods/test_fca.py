"""FCA: gradients of its loss in double precision, the roles of its heads, and what leaves a site."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from safetensors.torch import load_file
from torch import Tensor

from equipoise.losses import make_objective, parse_objective
from equipoise.methods.fca import FCA, released_consistency
from equipoise.nets import Net
from equipoise.running import run
from equipoise.seeds import generator
from equipoise.site import Batch
from equipoise.testing import Bench

SIZES = {"north": 9, "south": 6, "west": 14}
COUNTS = torch.tensor([6.0, 3.0, 1.0])


def place(counts: Tensor = COUNTS, site: str = "north") -> Any:
    """As much of a `Loc` as the loss looks at."""
    objective = make_objective(
        parse_objective("balanced_softmax"), counts=counts, total=int(counts.sum()), task="single"
    )
    return SimpleNamespace(
        objective=objective, scratch={}, generator=lambda *purpose: generator(0, site, *purpose)
    )


@pytest.fixture
def net(double_net: Callable[..., Net]) -> Net:
    return double_net("fed", "own")


@pytest.fixture
def batch() -> Batch:
    x = torch.randn(6, 3, 16, 16, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    return Batch(views=(x,), y=torch.tensor([0, 1, 0, 1, 1, 0]), index=torch.arange(6))


def gradients(net: Net, loss: Tensor) -> dict[str, Tensor]:
    found = torch.autograd.grad(loss, list(net.parameters()), allow_unused=True)
    return {
        n: torch.zeros_like(p) if g is None else g
        for (n, p), g in zip(net.named_parameters(), found, strict=True)
    }


def part(found: dict[str, Tensor], prefix: str) -> Tensor:
    return torch.cat([g.flatten() for name, g in found.items() if name.startswith(prefix)])


def logits(seed: int) -> Tensor:
    return torch.randn(4, 5, generator=torch.Generator().manual_seed(seed), dtype=torch.float64).mul_(2)


# The loss ---------------------------------------------------------------------------------------------------


def test_loss_is_the_sum_of_equation_5(net: Net, batch: Batch) -> None:
    shift = torch.log(COUNTS.double() / COUNTS.sum())
    z = net.features(batch.x)
    fed, own = net.head["fed"](z), net.head["own"](z)
    q, p = own.softmax(1), fed.softmax(1)
    guide = (q * (q / p).log()).sum() / len(batch)
    expected = 2 * F.cross_entropy(fed + shift, batch.y) + 3 * F.cross_entropy(own + shift, batch.y) + guide
    torch.testing.assert_close(
        FCA(lambda_fed=2, lambda_own=3).loss(net, batch, place()), expected, rtol=1e-6, atol=1e-9
    )


@pytest.mark.parametrize("variant", ["paper", "released"])
def test_guidance_reaches_the_body_and_not_the_personal_head(net: Net, batch: Batch, variant: Any) -> None:
    guided = gradients(net, FCA(variant=variant).loss(net, batch, place()))
    alone = gradients(net, FCA(variant=variant, consistency=False).loss(net, batch, place()))
    torch.testing.assert_close(part(guided, "head.own"), part(alone, "head.own"), rtol=1e-12, atol=1e-15)
    assert part(alone, "head.own").norm() > 1e-3
    assert (part(guided, "body") - part(alone, "body")).norm() > 1e-4
    assert (part(guided, "head.fed") - part(alone, "head.fed")).norm() > 1e-4


def test_guidance_vanishes_when_the_heads_agree(net: Net, batch: Batch) -> None:
    net.head["own"].load_state_dict(net.head["fed"].state_dict())
    only = FCA(lambda_fed=0, lambda_own=0)
    loss = only.loss(net, batch, place())
    assert abs(loss.item()) < 1e-12
    assert part(gradients(net, loss), "").norm() < 1e-12


def test_released_guidance_is_neither_zero_nor_least_when_the_heads_agree(net: Net, batch: Batch) -> None:
    net.head["own"].load_state_dict(net.head["fed"].state_dict())
    loss = FCA(lambda_fed=0, lambda_own=0, variant="released").loss(net, batch, place())
    assert abs(loss.item()) > 0.1
    assert part(gradients(net, loss), "head.fed").norm() > 1e-3
    teacher = logits(0)
    sharper = F.one_hot(teacher.argmax(1), 5).double() * 50
    assert released_consistency(teacher, sharper) < released_consistency(teacher, teacher)


def test_released_guidance_and_its_gradient_by_formula() -> None:
    teacher, student = logits(0), logits(1).requires_grad_()
    q, p = teacher.softmax(1), student.softmax(1)
    loss = released_consistency(teacher, student)
    torch.testing.assert_close(loss, (q * q.log()).mean() - (q * p).sum() / q.numel(), rtol=1e-8, atol=1e-9)
    (found,) = torch.autograd.grad(loss, student)
    inner = (p * q).sum(1, keepdim=True)
    torch.testing.assert_close(found, (-p * (q - inner) / q.numel()).detach(), rtol=1e-8, atol=1e-10)


@pytest.mark.parametrize(
    ("direction", "moves"), [("personal", {"fed"}), ("federated", {"own"}), ("mutual", {"fed", "own"})]
)
def test_who_guides_does_not_learn_from_it(net: Net, batch: Batch, direction: Any, moves: set[str]) -> None:
    only = FCA(lambda_fed=0, lambda_own=0, direction=direction)
    found = gradients(net, only.loss(net, batch, place()))
    z = net.features(batch.x)
    p = {name: net.head[name](z).softmax(1) for name in ("fed", "own")}
    for name, other in (("fed", "own"), ("own", "fed")):
        # d KL(q‖p) / d logits of p = (p − q) / B
        expected = (
            (p[name] - p[other]).T @ z / len(batch)
            if name in moves
            else torch.zeros(3, 64, dtype=torch.float64)
        )
        torch.testing.assert_close(found[f"head.{name}.weight"], expected, rtol=1e-9, atol=1e-12)


def test_missing_class_gives_finite_losses_and_no_gradient(net: Net, batch: Batch) -> None:
    loc = place(torch.tensor([6.0, 4.0, 0.0]))
    for variant in ("paper", "released"):
        assert torch.isfinite(FCA(variant=variant).loss(net, batch, loc))
    found = gradients(net, FCA(consistency=False).loss(net, batch, loc))
    for head in ("fed", "own"):
        assert float(found[f"head.{head}.bias"][2].abs()) < 1e-6
        assert float(found[f"head.{head}.bias"][0].abs()) > 1e-3


# The heads --------------------------------------------------------------------------------------------------


def test_personal_heads_start_as_copies(net: Net) -> None:
    FCA().init_site(net, place())
    assert torch.equal(net.head["own"].weight, net.head["fed"].weight)
    assert torch.equal(net.head["own"].bias, net.head["fed"].bias)


def test_personal_heads_start_as_draws_of_their_own(net: Net) -> None:
    found = []
    for site in ("north", "north", "south"):
        FCA(own_init="draw").init_site(net, place(site=site))
        found.append(net.head["own"].weight.detach().clone())
    assert torch.equal(found[0], found[1])
    assert not torch.equal(found[0], found[2])
    assert 0.1 < float(found[0].abs().max()) <= 64**-0.5


@pytest.mark.parametrize(
    ("variant", "pooled", "own"),
    [("paper", ["fed"], ["own", "fed"]), ("released", ["own_mean", "fed"], ["fed", "own"])],
)
def test_predictor_that_counts_comes_first(
    net: Net, batch: Batch, variant: Any, pooled: list[str], own: list[str]
) -> None:
    method = FCA(variant=variant)
    server = method.init(net, {})
    mean = {"weight": torch.ones(3, 64), "bias": torch.tensor([1.0, 2.0, 3.0])}
    server |= {"own": mean} if variant == "released" else {}
    union, site = (method.predict(net, batch.x, mine, server) for mine in (None, {}))
    assert list(union) == pooled
    assert list(site) == own
    z = net.features(batch.x)
    torch.testing.assert_close(site["own"], net.head["own"](z))
    torch.testing.assert_close(site["fed"], net.head["fed"](z))
    if variant == "released":
        torch.testing.assert_close(union["own_mean"], z.sum(1, keepdim=True) + mean["bias"].double())


@pytest.mark.parametrize(
    ("variant", "union", "own"),
    [("paper", "global.fed", "own.own"), ("released", "global.own_mean", "own.fed")],
)
def test_reported_metrics_are_of_the_predictor_that_counts(
    make_config: Callable[..., Any], tmp_path: Path, variant: str, union: str, own: str
) -> None:
    # The heads are far apart: personal ones learn, the federated one does not.
    method = {"name": "fca", "variant": variant, "lambda_fed": 0.0, "consistency": False, "own_init": "draw"}
    test = run(make_config(method, rounds=1, epochs=3), tmp_path / "run").metrics["test"]
    roles = test["roles"]
    assert roles["own.own"]["ece"] != roles["own.fed"]["ece"]
    for summary, role in (("generalisation", union), ("specialisation", own)):
        for metric in ("accuracy", "macro_auc", "ece"):
            assert test[summary][metric] == pytest.approx(roles[role][metric], abs=1e-12), (summary, metric)


# The exchange -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("preset", "leaves"), [("paper", {"delta", "loss"}), ("released", {"delta", "loss", "own"})]
)
def test_what_leaves_in_training(preset: str, leaves: set[str]) -> None:
    bench = Bench("fca", {"preset": preset})
    with bench.own_cache():
        line = bench.ordinary.ledger().line("train", 0)
    assert line is not None
    assert {entry.leaf for entry in line.up} == leaves
    assert not [entry.name for entry in line.up if "head.own" in entry.name]
    assert {entry.kind for entry in line.up} == {"mean"}


def test_released_server_head_is_the_mean_of_the_personal_heads(
    make_config: Callable[..., Any], tmp_path: Path
) -> None:
    server = run(make_config({"name": "fca", "preset": "released"}), tmp_path / "run").server
    kept = {site: load_file(tmp_path / "run" / "sites" / site / "1.0.safetensors") for site in SIZES}
    for name in ("weight", "bias"):
        mean = sum(
            n / sum(SIZES.values()) * kept[site][f"net/head.own.{name}"].double() for site, n in SIZES.items()
        )
        torch.testing.assert_close(server["own"][name].double(), mean, rtol=0, atol=1e-6)


def test_paper_server_knows_no_personal_head(make_config: Callable[..., Any], tmp_path: Path) -> None:
    server = run(make_config({"name": "fca"}, rounds=1), tmp_path / "run").server
    assert set(server) == {"model"}
    assert not [name for name in server["model"] if name.startswith("head.own")]
