"""Local training against arithmetic by hand: one step, momentum, kept moments, frozen parts, order of
batches."""

from __future__ import annotations

import copy
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from equipoise.data.samples import Samples
from equipoise.losses import make_objective, parse_objective
from equipoise.nets import Net, state
from equipoise.partition import Holding
from equipoise.seeds import generator
from equipoise.site import Batch, Loc, SiteData, TrainOptions
from equipoise.site.views import ViewOptions, make_view

CPU = torch.device("cpu")
VIEWS = {name: make_view(name, ViewOptions(), (0.0,), (1.0,)) for name in ("eval", "weak")}


def data(n: int) -> SiteData:
    draw = np.random.default_rng(3)
    images = draw.integers(0, 256, (n + 3, 2, 2, 1), dtype=np.uint8)
    samples = Samples(
        images, np.arange(n + 3) % 3, ("a", "b", "c"), "single", np.arange(n + 3).astype(str), ""
    )
    return SiteData(samples, Holding("north", np.arange(n), np.arange(0), np.arange(n, n + 3)), CPU)


def make_loc(n: int = 7, round: int = 0, down: dict[str, Any] | None = None, **options: Any) -> Loc:
    site = data(n)
    chosen = TrainOptions(**{"optimizer": "sgd", "lr": 0.5, "batch_size": 100, **options})
    objective = make_objective(
        parse_objective("cross_entropy"),
        counts=site.counts,
        total=n,
        task="single",
        labelled=None,
        round=round,
        rounds=9,
    )
    return Loc(
        data=site,
        options=chosen,
        objective=objective,
        views=VIEWS,
        wanted=("eval",),
        round=round,
        question="train",
        down=down or {},
        private=(),
        frozen={},
        cache={},
        device=CPU,
    )


def linear() -> Net:
    net = Net("toy", nn.Flatten(), 4, 3, {"fed": nn.Linear(4, 3)})
    draw = torch.Generator().manual_seed(1)
    for p in net.parameters():
        p.data.copy_(torch.randn(p.shape, generator=draw))
    return net


def loss(net: Net, batch: Batch, loc: Loc) -> Tensor:
    return loc.objective(net(batch.x), batch.y)


def gradients(
    weight: np.ndarray, bias: np.ndarray, x: np.ndarray, y: np.ndarray
) -> tuple[np.ndarray, np.ndarray, float]:
    """Softmax regression by hand: gradients of weight and bias, and the loss."""
    z = x @ weight.T + bias
    p = np.exp(z) / np.exp(z).sum(1, keepdims=True)
    error = (p - np.eye(3)[y]) / len(y)
    return error.T @ x, error.sum(0), float(-np.log(p[np.arange(len(y)), y]).mean())


def by_hand(net: Net, loc: Loc) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    rows = loc.train
    x = rows.images[rows.index].reshape(len(rows), 4).astype(np.float64) / 255
    weight, bias = (state(net)[f"head.fed.{name}"].double().numpy().copy() for name in ("weight", "bias"))
    return weight, bias, x, rows.labels.numpy()


def test_one_step_of_gradient_descent() -> None:
    net, loc = linear(), make_loc()
    weight, bias, x, y = by_hand(net, loc)
    dw, db, expected = gradients(weight, bias, x, y)
    assert loc.fit(net, loss) == pytest.approx(expected, abs=1e-6)
    np.testing.assert_allclose(net.head["fed"].weight.detach(), weight - 0.5 * dw, atol=1e-6)
    np.testing.assert_allclose(net.head["fed"].bias.detach(), bias - 0.5 * db, atol=1e-6)
    assert not net.training
    assert all(p.requires_grad and p.grad is None for p in net.parameters())


def test_momentum_and_weight_decay_over_three_epochs() -> None:
    net, loc = linear(), make_loc(momentum=0.9, weight_decay=0.01, epochs=3)
    weight, bias, x, y = by_hand(net, loc)
    vw, vb, losses = np.zeros_like(weight), np.zeros_like(bias), []
    for _ in range(3):
        dw, db, value = gradients(weight, bias, x, y)
        vw, vb = 0.9 * vw + dw + 0.01 * weight, 0.9 * vb + db + 0.01 * bias
        weight, bias = weight - 0.5 * vw, bias - 0.5 * vb
        losses.append(value)
    assert loc.fit(net, loss) == pytest.approx(np.mean(losses), abs=1e-6)
    np.testing.assert_allclose(net.head["fed"].weight.detach(), weight, atol=1e-5)
    np.testing.assert_allclose(net.head["fed"].bias.detach(), bias, atol=1e-5)


def test_a_long_gradient_is_clipped() -> None:
    net, loc = linear(), make_loc(clip_norm=1e-3)
    weight, bias, x, y = by_hand(net, loc)
    dw, db, _ = gradients(weight, bias, x, y)
    norm = np.sqrt((dw**2).sum() + (db**2).sum())
    loc.fit(net, loss)
    np.testing.assert_allclose(net.head["fed"].weight.detach(), weight - 0.5 * dw * 1e-3 / norm, atol=1e-6)


def continuous(net: Net, locs: list[Loc], kind: str, **options: Any) -> None:
    """One torch optimiser over the batches of several rounds."""
    optimizer = getattr(torch.optim, kind)(net.parameters(), **options)
    net.train()
    for loc in locs:
        for batch in loc.batches(0):
            optimizer.zero_grad()
            loss(net, batch, loc).backward()
            optimizer.step()


@pytest.mark.parametrize(
    ("kind", "given", "expected"),
    [
        ("Adam", {"optimizer": "adam", "lr": 0.01}, {"lr": 0.01}),
        ("AdamW", {"optimizer": "adamw", "lr": 0.01, "weight_decay": 0.1}, {"lr": 0.01, "weight_decay": 0.1}),
        ("SGD", {"optimizer": "sgd", "lr": 0.1, "momentum": 0.9}, {"lr": 0.1, "momentum": 0.9}),
    ],
)
def test_kept_moments_make_rounds_one_optimisation(
    kind: str, given: dict[str, Any], expected: dict[str, Any]
) -> None:
    first, whole = linear(), linear()
    forgets = linear()
    locs = [make_loc(round=r, batch_size=3, persist_optimizer=True, **given) for r in range(3)]
    for before, loc in zip([None, *locs], locs, strict=False):
        loc.moments = {} if before is None else before.moments
        loc.fit(first, loss)
        make_loc(round=loc.round, batch_size=3, **given).fit(forgets, loss)
    continuous(whole, locs, kind, **expected)
    for a, b, c in zip(first.parameters(), whole.parameters(), forgets.parameters(), strict=True):
        torch.testing.assert_close(a, b, rtol=1e-6, atol=1e-7)
        assert not torch.allclose(a, c, atol=1e-5)


def test_moments_are_not_kept_unless_asked() -> None:
    loc = make_loc(optimizer="adam")
    loc.fit(linear(), loss)
    assert not loc.moments


def test_only_what_is_chosen_trains() -> None:
    net, loc = linear(), make_loc()
    before = copy.deepcopy(net.state_dict())
    loc.fit(net, loss, only=lambda name: name.endswith("bias"))
    assert torch.equal(net.head["fed"].weight, before["head.fed.weight"])
    assert not torch.equal(net.head["fed"].bias, before["head.fed.bias"])
    assert all(p.requires_grad for p in net.parameters())


def test_a_sampler_of_the_methods_own_and_a_look_after_each_step() -> None:
    loc, seen, nets = make_loc(batch_size=2), list[int](), list[Tensor]()

    def watch(net: Net, batch: Batch, loc: Loc) -> Tensor:
        seen.extend(batch.index.tolist())
        return loss(net, batch, loc)

    net = linear()
    loc.fit(
        net,
        watch,
        epochs=range(3, 5),
        order=lambda epoch: torch.tensor([epoch, epoch, 0, 1]),
        after=lambda net: nets.append(net.head["fed"].weight.detach().clone()),
    )
    assert seen == [3, 3, 0, 1, 4, 4, 0, 1]
    assert len(nets) == 4
    assert torch.equal(nets[-1], net.head["fed"].weight)
    assert not torch.equal(nets[0], nets[1])


def test_what_does_not_train_stays_in_eval_mode() -> None:
    net = linear()
    net.body = nn.Sequential(net.body, nn.BatchNorm1d(net.width))
    modes = list[tuple[bool, bool]]()

    def watch(net: Net, batch: Batch, loc: Loc) -> Tensor:
        modes.append((net.body[1].training, net.head["fed"].training))
        return loss(net, batch, loc)

    make_loc().fit(net, watch, epochs=1, only=lambda name: name.startswith("head."))
    make_loc().fit(net, watch, epochs=1)
    assert modes == [(False, True), (True, True)]


def test_no_epochs_change_nothing() -> None:
    net = linear()
    before = copy.deepcopy(net.state_dict())
    assert make_loc(epochs=0).fit(net, loss) == 0.0
    assert all(torch.equal(value, before[name]) for name, value in net.state_dict().items())


def test_a_single_image_trains_without_batch_statistics() -> None:
    net = Net("toy", nn.Sequential(nn.BatchNorm2d(1), nn.Flatten()), 4, 3, {"fed": nn.Linear(4, 3)})
    make_loc(n=1).fit(net, loss)
    assert net.body[0].running_mean.tolist() == [0.0]
    assert torch.isfinite(net.head["fed"].weight).all()
    make_loc(n=2).fit(net, loss)
    assert net.body[0].running_mean.tolist() != [0.0]


def test_the_delta_is_what_training_changed() -> None:
    net = linear()
    received = {name: tensor.clone() for name, tensor in state(net).items()}
    loc = make_loc(down={"model": received})
    loc.fit(net, loss)
    delta = loc.delta(net)
    assert delta.keys() == received.keys()
    assert all(torch.equal(delta[name], state(net)[name] - received[name]) for name in received)
    loc.receive(net)
    assert all(torch.equal(state(net)[name], received[name]) for name in received)


def test_an_epoch_is_a_permutation_of_its_own() -> None:
    loc = make_loc(n=30, batch_size=8)
    orders = [torch.cat([batch.index for batch in loc.batches(epoch)]).tolist() for epoch in (0, 1, 0)]
    assert sorted(orders[0]) == list(range(30))
    assert orders[0] == orders[2] != orders[1]
    expected = torch.randperm(30, generator=generator(0, 0, "north", "train", "shuffle", 0)).tolist()
    assert orders[0] == expected
    other = make_loc(n=30, round=1)
    assert other.order(0).tolist() != orders[0]


def test_a_scan_shows_every_row_in_order() -> None:
    loc = make_loc(n=7)
    assert torch.cat([batch.index for batch in loc.scan("test")]).tolist() == [0, 1, 2]
    assert torch.cat([batch.y for batch in loc.scan()]).tolist() == [0, 1, 2, 0, 1, 2, 0]
    (empty,) = loc.scan("validation")
    assert linear().eval()(empty.x).shape == (0, 3)


def test_priors_and_notes() -> None:
    loc = make_loc(n=7)
    assert loc.prior.tolist() == pytest.approx([3 / 7, 2 / 7, 2 / 7])
    loc.note("x", 3.0)
    assert loc.notes == {"x": 3.0}
    assert loc.view("weak") is VIEWS["weak"]
