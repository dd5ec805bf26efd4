"""FedIIC: every term against explicit loops in double precision, prototypes against plain gradient descent,
and its round."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from safetensors.torch import load_file
from torch import Tensor

from equipoise.engine import Engine, Question
from equipoise.exchange import unpack
from equipoise.losses import make_objective, parse_objective
from equipoise.methods.fediic import FedIIC, intra, spread_apart
from equipoise.nets import Net, NetOptions, build, load
from equipoise.running import run
from equipoise.site import Batch

COUNTS = torch.tensor([12.0, 6.0, 2.0])
DIFFICULTY = torch.tensor([0.3, 1.1, 2.4], dtype=torch.float64)
SIZES = {"north": 9, "south": 6, "west": 14}


def draw(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def place(counts: Tensor = COUNTS, difficulty: Tensor = DIFFICULTY) -> Any:
    """As much of a `Loc` as the loss looks at."""
    objective = make_objective(
        parse_objective("cross_entropy"), counts=counts, total=int(counts.sum()), task="single"
    )
    down = {"difficulty": difficulty, "prototypes": F.normalize(draw(3, 1024, seed=9))}
    return SimpleNamespace(prior=counts.double() / counts.sum(), objective=objective, down=down)


@pytest.fixture
def net() -> Net:
    options = NetOptions(name="small-cnn")
    return (
        build(options, classes=3, projector=FedIIC().projection(), image_size=16, seed=5, base=Path.cwd())
        .double()
        .eval()
    )


@pytest.fixture
def batch() -> Batch:
    views = (draw(5, 3, 16, 16, seed=1), draw(5, 3, 16, 16, seed=2))
    return Batch(views=views, y=torch.tensor([0, 1, 0, 2, 1]), index=torch.arange(5))


def single(batch: Batch) -> Batch:
    """The same batch in single precision."""
    return Batch(tuple(x.float() for x in batch.views), batch.y, batch.index)


# The three terms, written out -------------------------------------------------------------------------------


def slow_dala(z: Tensor, y: Tensor, loc: Any, q: float = 0.25) -> float:
    """−log of the target's share, classes weighted by π_c / (ℓ_c^q + 1e-5)."""
    total = 0.0
    for row, label in zip(z.tolist(), y.tolist(), strict=True):
        share = [
            float(p) / (float(d) ** q + 1e-5) * math.exp(v)
            for p, d, v in zip(loc.prior, loc.down["difficulty"], row, strict=True)
        ]
        total -= math.log(share[label] / sum(share))
    return total / len(y)


def slow_intra(unit: Tensor, y: Sequence[int], temperature: Callable[[int, int], float]) -> float:
    n, total = len(y), 0.0
    for i in range(n):
        similar = {a: float(unit[i] @ unit[a]) / temperature(y[i], y[a]) for a in range(n) if a != i}
        top = max(similar.values())
        bottom = top + math.log(sum(math.exp(s - top) for s in similar.values()))
        positive = [a for a in similar if y[a] == y[i]]
        total -= sum(similar[a] - bottom for a in positive) / len(positive)
    return total / n


def slow_inter(unit: Tensor, y: Sequence[int], prototypes: Tensor) -> float:
    total = 0.0
    for row, label in zip(unit, y, strict=True):
        similar = [float(row @ v) / 0.1 for v in prototypes]
        total -= similar[label] - math.log(sum(math.exp(s) for s in similar))
    return total / len(y)


def parts(net: Net, batch: Batch, loc: Any) -> tuple[float, float, float]:
    """DALA on view 1, intra and inter on both views."""
    p = loc.prior.tolist()
    units = torch.cat([F.normalize(net.projector(net.body(x))) for x in batch.views])
    y = [*batch.y.tolist(), *batch.y.tolist()]
    return (
        slow_dala(net(batch.views[0]), batch.y, loc),
        slow_intra(units, y, lambda a, b: max(math.sqrt(p[a] * p[b]), 0.07)),
        slow_inter(units, y, loc.down["prototypes"]),
    )


@torch.no_grad()
def test_loss_is_the_sum_of_equation_7(net: Net, batch: Batch) -> None:
    loc = place()
    dala, within, across = parts(net, batch, loc)
    assert float(FedIIC(k_intra=0, k_inter=0).loss(net, batch, loc)) == pytest.approx(dala, rel=1e-9)
    assert float(FedIIC().loss(net, batch, loc)) == pytest.approx(dala + 2 * within + 2 * across, rel=1e-9)
    assert float(FedIIC(k_intra=3, k_inter=0).loss(net, batch, loc)) == pytest.approx(
        dala + 3 * within, rel=1e-9
    )
    assert float(FedIIC(k_intra=0, k_inter=5).loss(net, batch, loc)) == pytest.approx(
        dala + 5 * across, rel=1e-9
    )


@torch.no_grad()
def test_without_its_own_terms_the_loss_is_the_base_loss_of_the_first_view(net: Net, batch: Batch) -> None:
    method = FedIIC(**(FedIIC.neutral or {}))
    torch.testing.assert_close(
        method.loss(net, batch, place()), F.cross_entropy(net(batch.views[0]), batch.y)
    )


def test_intra_by_hand() -> None:
    # Four unit vectors on two axes: similarities are 1 within and 0 across, so each anchor's share is e^2 /
    # (e^2 + 2).
    unit = torch.tensor([[1.0, 0], [0, 1], [1, 0], [0, 1]], dtype=torch.float64)
    y = torch.tensor([0, 1, 0, 1])
    found = intra(unit, y, torch.full((4, 4), 0.5, dtype=torch.float64))
    assert float(found) == pytest.approx(-math.log(math.exp(2) / (math.exp(2) + 2)), rel=1e-12)


@torch.no_grad()
def test_equal_shares_and_difficulties_make_dala_plain_cross_entropy(net: Net, batch: Batch) -> None:
    loc = place(torch.ones(3), torch.full((3,), 0.7, dtype=torch.float64))
    found = FedIIC(k_intra=0, k_inter=0).loss(net, batch, loc)
    torch.testing.assert_close(found, F.cross_entropy(net(batch.x), batch.y), rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("views", [1, 2])
def test_missing_class_gets_exactly_no_gradient_from_dala(net: Net, batch: Batch, views: int) -> None:
    present = Batch(batch.views[:views], torch.tensor([0, 1, 0, 1, 1]), batch.index)
    loss = FedIIC(k_intra=0, k_inter=0).loss(net, present, place(torch.tensor([3.0, 2.0, 0.0])))
    loss.backward()
    head = net.head["fed"]
    assert torch.isfinite(loss)
    assert not head.weight.grad[2].any()
    assert not head.bias.grad[2].any()
    assert head.bias.grad[:2].all()


def test_missing_class_leaves_the_whole_loss_finite(net: Net, batch: Batch) -> None:
    present = Batch(batch.views, torch.tensor([0, 1, 0, 1, 1]), batch.index)
    loss = FedIIC().loss(net, present, place(torch.tensor([3.0, 2.0, 0.0]), torch.tensor([0.3, 1.0, 0.0])))
    loss.backward()
    assert all(torch.isfinite(p.grad).all() for p in net.parameters() if p.grad is not None)
    assert not net.head["fed"].bias.grad[2].any()


def test_site_of_one_class_learns_nothing_from_dala(net: Net, batch: Batch) -> None:
    alone = Batch(batch.views, torch.ones(5, dtype=torch.int64), batch.index)
    FedIIC(k_intra=0, k_inter=0).loss(net, alone, place(torch.tensor([0.0, 5.0, 0.0]))).backward()
    for name, parameter in net.named_parameters():
        assert parameter.grad is None or not parameter.grad.any(), name


def test_pair_temperature() -> None:
    y = torch.tensor([0, 1])
    half, tiny = (
        torch.tensor([0.5, 0.5], dtype=torch.float64),
        torch.tensor([0.001, 0.002], dtype=torch.float64),
    )
    assert FedIIC().pair_temperature(half, y).tolist() == [[0.5, 0.5], [0.5, 0.5]]
    assert FedIIC().pair_temperature(tiny, y).unique().tolist() == [0.07]
    mixed = FedIIC().pair_temperature(torch.tensor([0.9, 0.1], dtype=torch.float64), y)
    torch.testing.assert_close(mixed, torch.tensor([[0.9, 0.3], [0.3, 0.1]], dtype=torch.float64))
    assert FedIIC(**FedIIC.presets["t=0"]).pair_temperature(tiny, y).unique().tolist() == [1.0]
    assert FedIIC(**FedIIC.presets["paper-t=0"]).pair_temperature(tiny, y).unique().tolist() == [0.1]


def test_temperature_of_the_paper_is_equation_3_without_a_floor() -> None:
    # Class shares of a site as they are: under a floor of 0.07 every pair would have the same temperature.
    share = [0.55, 0.3, 0.1, 0.04, 0.01]
    y = torch.arange(5)
    for t, tau in ((0.5, 0.1), (0.5, 0.2), (1.0, 0.1)):
        found = FedIIC(temperature="paper", t=t, tau=tau).pair_temperature(
            torch.tensor(share, dtype=torch.float64), y
        )
        expected = [[(a * b) ** t * tau for b in share] for a in share]
        torch.testing.assert_close(found, torch.tensor(expected, dtype=torch.float64), rtol=1e-12, atol=0)
        assert len(found.unique()) > 10


@pytest.mark.parametrize("t", [0.0, 0.5, 1.0])
@torch.no_grad()
def test_loss_with_the_temperature_of_equation_3(net: Net, batch: Batch, t: float) -> None:
    loc = place(torch.tensor([900.0, 90.0, 10.0]))
    p = loc.prior.tolist()
    units = torch.cat([F.normalize(net.projector(net.body(x))) for x in batch.views])
    within = slow_intra(units, [*batch.y.tolist()] * 2, lambda a, b: (p[a] * p[b]) ** t * 0.1)
    both = FedIIC(temperature="paper", t=t, k_inter=0).loss(net, batch, loc)
    alone = FedIIC(k_intra=0, k_inter=0).loss(net, batch, loc)
    assert float(both - alone) == pytest.approx(2 * within, rel=1e-9)


def test_rare_pairs_at_the_temperature_of_equation_3_have_finite_gradients(net: Net, batch: Batch) -> None:
    FedIIC(temperature="paper").loss(
        net.float(), single(batch), place(torch.tensor([99_998.0, 1.0, 1.0]))
    ).backward()
    assert all(torch.isfinite(p.grad).all() for p in net.parameters() if p.grad is not None)


REFERENCE: dict[str, dict[str, Any]] = {
    "dala": FedIIC.neutral or {},
    "dala+intra": FedIIC.presets["dala"],
    "dala+inter": FedIIC.presets["dala"],
    "paper-t=0": {"temperature": "paper"},
}
"""the row each preset is compared with; the whole method for those not named"""


@pytest.mark.parametrize("preset", FedIIC.presets)
def test_every_preset_changes_one_thing_against_its_reference(preset: str) -> None:
    row, reference = FedIIC(**FedIIC.presets[preset]), FedIIC(**REFERENCE.get(preset, {}))
    changed = [name for name in FedIIC.model_fields if getattr(row, name) != getattr(reference, name)]
    assert len(changed) == 1, changed


# Prototypes -------------------------------------------------------------------------------------------------


def crowded(classes: int, width: int = 64) -> Tensor:
    """Vectors that mostly point the same way."""
    return draw(1, width, seed=3) * 1.6 + draw(classes, width, seed=4)


def descend(v: Tensor, steps: int, stop_at_zero: bool) -> Tensor:
    """Plain gradient descent by autograd on the raw vectors."""
    v = v.clone().requires_grad_()
    own = torch.eye(len(v), dtype=torch.bool)
    for _ in range(steps):
        unit = F.normalize(v)
        cosine = (unit @ unit.T).masked_fill(own, 0.0 if stop_at_zero else -math.inf)
        (slope,) = torch.autograd.grad(cosine.max(1).values.sum(), v)
        v = (v - 0.1 * slope).detach().requires_grad_()
    return v.detach()


def cosines(v: Tensor) -> Tensor:
    unit = F.normalize(v)
    return (unit @ unit.T)[~torch.eye(len(v), dtype=torch.bool)]


@pytest.mark.parametrize("stop_at_zero", [False, True])
@pytest.mark.parametrize("classes", [2, 3, 5, 8])
def test_spreading_is_gradient_descent_on_the_raw_vectors(classes: int, stop_at_zero: bool) -> None:
    v = crowded(classes)
    found, expected = spread_apart(v, 200, stop_at_zero), descend(v, 200, stop_at_zero)
    assert float((expected - v).norm() / v.norm()) > 0.05
    assert float((found - expected).norm() / expected.norm()) < 1e-6


@pytest.mark.parametrize("classes", [2, 3, 5, 8])
def test_spreading_reaches_a_simplex_or_stops_at_zero(classes: int) -> None:
    v = F.normalize(crowded(classes)) * 0.6
    assert float(cosines(v).min()) > 0.5
    released, paper = spread_apart(v, 1000, stop_at_zero=True), spread_apart(v, 1000, stop_at_zero=False)
    assert float(cosines(released).max()) <= 1e-9
    assert float((cosines(paper) + 1 / (classes - 1)).abs().max()) < 0.05
    if classes > 2:
        assert float((cosines(released) + 1 / (classes - 1)).abs().max()) > 0.05


def test_spreading_one_class_or_no_steps_changes_nothing() -> None:
    for v, steps in ((crowded(1), 10), (crowded(4), 0)):
        torch.testing.assert_close(spread_apart(v, steps, stop_at_zero=False), v, rtol=1e-12, atol=0)


@pytest.mark.parametrize("relu", [False, True])
def test_prototypes_are_the_classifier_rows_through_the_projector(relu: bool) -> None:
    method = FedIIC(relu=relu, spread="none")
    net = build(
        NetOptions(name="small-cnn"),
        classes=3,
        projector=method.projection(),
        image_size=16,
        seed=5,
        base=Path.cwd(),
    )
    model = {name: tensor.detach() for name, tensor in net.state_dict().items()}
    assert net.projector is not None
    expected = F.normalize(net.projector(net.head["fed"].weight)).detach()
    torch.testing.assert_close(method.prototypes(model), expected)
    spread = FedIIC(relu=relu).prototypes(model)
    torch.testing.assert_close(spread.norm(dim=1), torch.ones(3))
    assert float((cosines(spread) + 0.5).abs().max()) < 0.05


# The round --------------------------------------------------------------------------------------------------


class Listener:
    """Keeps every question that passes."""

    def __init__(self, engine: Engine) -> None:
        self.engine, self.heard = engine, list[Question]()

    def ask(self, question: Question, sites: Sequence[str]) -> Iterator[tuple[str, bytes]]:
        self.heard.append(question)
        yield from self.engine.ask(question, sites)

    def close(self) -> None:
        self.engine.close()


def test_difficulty_is_the_pooled_mean_loss_of_each_class(
    make_config: Callable[..., Any], bare: Callable[..., Any], tmp_path: Path
) -> None:
    config = make_config({"name": "fediic"}, rounds=1, views=["eval", "eval"])
    listeners = list[Listener]()

    def listen(engine: Engine) -> Engine:
        listeners.append(Listener(engine))
        return listeners[0]

    run(config, tmp_path / "run", wrap=listen)
    (asked,) = (question for question in listeners[0].heard if question.name == "train")
    down = unpack(asked.payload)[1]
    plain = bare(config)
    load(plain.net, plain.first)
    rows = [plain.rows(site, "train") for site in SIZES]
    x, y = (torch.cat(column) for column in zip(*rows, strict=True))
    with torch.no_grad():
        loss = F.cross_entropy(plain.net(x), y, reduction="none").double()
    for c in range(3):
        n = int((y == c).sum())
        assert float(down["difficulty"][c]) == pytest.approx(float(loss[y == c].sum()) / (1e-5 + n), rel=1e-5)
        assert float(down["difficulty"][c]) == pytest.approx(float(loss[y == c].mean()), rel=2e-5)
    torch.testing.assert_close(down["prototypes"], FedIIC().prototypes(plain.first))


def test_every_preset_changes_the_model_and_no_two_are_alike(
    make_config: Callable[..., Any], tmp_path: Path
) -> None:
    hashes = {
        preset: run(
            make_config(
                {"name": "fediic", "spread_steps": 100} | ({"preset": preset} if preset else {}),
                ["south"],
                rounds=1,
                views=["weak"] * 2,
            ),
            tmp_path / (preset or "default"),
        ).state_hash
        for preset in ("", *FedIIC.presets)
    }
    assert len(set(hashes.values())) == len(hashes), hashes


@torch.no_grad()
def test_presets_leave_out_what_their_names_say(net: Net, batch: Batch) -> None:
    loc = place()
    dala, within, across = parts(net, batch, loc)
    p, units = loc.prior.tolist(), torch.cat([F.normalize(net.projector(net.body(x))) for x in batch.views])
    constant = slow_intra(units, [*batch.y.tolist()] * 2, lambda a, b: 1.0)
    no_difficulty = slow_dala(net(batch.x), batch.y, loc, q=0)
    assert len(set(p)) == 3
    expected = {
        "dala": dala,
        "dala+intra": dala + 2 * within,
        "dala+inter": dala + 2 * across,
        "t=0": dala + 2 * constant + 2 * across,
        "q=0": no_difficulty + 2 * within + 2 * across,
    }
    for preset, value in expected.items():
        assert float(FedIIC(**FedIIC.presets[preset]).loss(net, batch, loc)) == pytest.approx(
            value, rel=1e-9
        ), preset
    model = {name: tensor.detach().float() for name, tensor in net.state_dict().items()}
    model["head.fed.weight"] = model["head.fed.weight"] * 0.1 + 0.2  # rows that point the same way
    largest = {
        preset: float(cosines(FedIIC(**FedIIC.presets[preset]).prototypes(model)).max())
        for preset in FedIIC.presets
    }
    assert largest["no-orthogonalisation"] > 0.3
    assert -0.4 < largest["released"] <= 1e-6
    assert largest["dala"] == pytest.approx(-0.5, abs=0.05)


def test_one_site_without_extra_terms_is_local_training(
    make_config: Callable[..., Any], tmp_path: Path
) -> None:
    train = {"rounds": 2, "optimizer": "sgd", "objective": "cross_entropy"}
    run(make_config({"name": "local"}, ["west"], **train), tmp_path / "local")
    model = run(
        make_config({"name": "fediic", **(FedIIC.neutral or {})}, ["west"], **train), tmp_path / "run"
    ).server["model"]
    alone = load_file(tmp_path / "local" / "sites" / "west" / "1.0.safetensors")
    for name in ("head.fed.weight", "body.conv1.weight"):
        torch.testing.assert_close(model[name], alone[f"net/{name}"], rtol=0, atol=1e-6)
