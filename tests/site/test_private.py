"""Private steps: gradients of single images, clipped, summed with noise; and what cannot be taken so."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from tests.site.test_loc import linear, loss, make_loc
from torch import Tensor, nn

from equipoise.errors import ConfigError, MethodError
from equipoise.nets import NetOptions, build, state
from equipoise.site import Batch, Loc, PrivacyOptions
from equipoise.site.accounting import Spent
from equipoise.site.noise import Seeded
from equipoise.site.privacy import COUNTS, Mechanism, check_net, steps_of
from equipoise.site.private import clipping, noisy_gradient, private_steps

HUGE = 1e9


def private(n: int = 7, clip: float = 1.0, noise: float = 1.0, **options: Any) -> Loc:
    loc = make_loc(n, **options)
    loc.mechanism = Mechanism(clip, noise)
    return loc


def single(loc: Loc) -> Iterator[Batch]:
    """Every training image by itself."""
    rows = loc.data.splits["train"]
    return (rows.take(place, *loc.seen(0, None)) for place in torch.arange(len(rows)).split(1))


def test_without_clipping_and_noise_it_is_plain_training() -> None:
    """All images in one step: the gradient is that of the batch, and so are three steps of Adam."""
    for options in ({}, {"optimizer": "adam", "lr": 0.01, "epochs": 3}):
        plain, noisy = linear(), linear()
        make_loc(**options).fit(plain, loss)
        assert private(clip=HUGE, noise=0.0, **options).fit(noisy, loss) == 0.0
        for name, tensor in state(plain).items():
            torch.testing.assert_close(state(noisy)[name], tensor, atol=1e-6, rtol=1e-5)


@pytest.mark.parametrize("clip", [1e-3, 0.1, 1.0, 50.0])
def test_no_image_counts_for_more_than_the_clip(clip: float) -> None:
    loc, net = private(40, clip, 0.0), linear()
    net.head["fed"].weight.data *= 100
    named = dict(net.named_parameters())
    norms = []
    for batch in single(loc):
        noisy_gradient(loc, net, loss, named, iter([batch]), Seeded(loc.generator()), 1.0)
        norms.append(math.hypot(*(float(p.grad.double().norm()) for p in named.values())))
    assert max(norms) <= clip * (1 + 1e-6)
    assert clip > 1 or max(norms) >= clip * (1 - 1e-6)


def test_clipping_leaves_small_gradients_alone_and_drops_what_is_no_number() -> None:
    assert clipping([torch.tensor([3.0]), torch.tensor([4.0])], 10.0) == 1.0
    assert clipping([torch.tensor([3.0]), torch.tensor([4.0])], 1.0) == pytest.approx(0.2)
    for bad in (math.nan, math.inf):
        assert clipping([torch.tensor([1.0]), torch.tensor([bad])], 1.0) == 0.0


def test_an_image_without_a_finite_gradient_moves_nothing() -> None:
    loc, net = private(noise=0.0), linear()
    named = dict(net.named_parameters())

    def broken(net: Any, batch: Batch, loc: Loc) -> Tensor:
        return loss(net, batch, loc) * math.nan

    noisy_gradient(loc, net, broken, named, single(loc), Seeded(loc.generator()), 7.0)
    assert all(not p.grad.any() for p in named.values())


def test_the_noise_is_as_wide_as_said() -> None:
    """A step without any image: noise alone, of standard deviation noise · clip over the images expected."""
    loc, net = private(clip=0.5, noise=3.0), nn.Linear(1000, 1000)
    noisy_gradient(loc, net, loss, dict(net.named_parameters()), iter(()), Seeded(loc.generator()), 6.0)
    assert net.weight.grad is not None
    assert float(net.weight.grad.std()) == pytest.approx(3.0 * 0.5 / 6.0, rel=0.02)


def test_images_are_drawn_alike_and_by_chance() -> None:
    """Every image is in a step with the same chance; a step may be empty."""
    loc, net, sizes, drawn = private(40, batch_size=2, epochs=30), linear(), [0], torch.zeros(40)

    def counting(net: Any, batch: Batch, loc: Loc) -> Tensor:
        if batch.x.shape[0] == 1 and torch.is_grad_enabled():
            drawn[batch.index] += 1
            sizes[-1] += 1
        return loss(net, batch, loc)

    for _ in private_steps(loc, net, counting, dict(net.named_parameters()), range(30), None):
        sizes.append(0)
    steps = 30 * 20
    assert len(sizes) == steps + 1 and min(sizes[:-1]) == 0
    assert float(drawn.sum()) == pytest.approx(2 * steps, rel=0.05)
    assert np.abs(drawn.numpy() / steps - 0.05).max() < 0.025


def test_steps_of_a_site() -> None:
    assert steps_of(100, 8, 3, 1.0) == Spent(noise=1.0, rate=0.08, steps=39)
    assert steps_of(5, 8, 2, 1.0) == Spent(noise=1.0, rate=1.0, steps=2)
    assert steps_of(0, 8, 2, 1.0).steps == 0


def test_what_is_spent_is_told_before_anything_is_computed() -> None:
    told: list[Spent] = []

    def refuse(spent: Spent) -> None:
        told.append(spent)
        raise ConfigError("spent")

    loc, net = private(7, batch_size=2, epochs=2), linear()
    loc.mechanism = replace(loc.mechanism, spend=refuse)
    before = {name: tensor.clone() for name, tensor in state(net).items()}
    with pytest.raises(ConfigError, match="spent"):
        loc.fit(net, loss)
    assert told == [Spent(noise=1.0, rate=2 / 7, steps=8)]
    assert all(torch.equal(before[name], tensor) for name, tensor in state(net).items())


def test_two_stretches_of_training_have_noise_of_their_own() -> None:
    loc = private(clip=1.0, noise=1.0, lr=1.0)
    moved = []
    for _ in range(2):
        net = linear()
        before = state(net)["head.fed.weight"].clone()
        loc.fit(net, loss)
        moved.append(state(net)["head.fed.weight"] - before)
    assert not torch.allclose(moved[0], moved[1])
    assert loc.trace.passes == 2


def test_what_else_an_answer_is_computed_from_is_noted() -> None:
    loc = private()
    loc.fit(linear(), loss)
    assert loc.trace.reads == set()
    list(loc.scan("test"))
    assert loc.trace.reads == {"test images"}
    assert len(loc.prior) and loc.trace.reads == {"test images", COUNTS}


# What is refused --------------------------------------------------------------------------------------------


def test_a_loss_over_a_batch_is_refused() -> None:
    def contrast(net: Any, batch: Batch, loc: Loc) -> Tensor:
        z = net(batch.x)
        return loss(net, batch, loc) + torch.cdist(z, z).sum()

    with pytest.raises(MethodError, match=r"not the mean of its images' losses"):
        private().fit(linear(), contrast)


def test_a_mean_weighed_by_the_batch_is_refused() -> None:
    def weighed(net: Any, batch: Batch, loc: Loc) -> Tensor:
        weight = 1.0 + batch.y.float()
        each = nn.functional.cross_entropy(net(batch.x), batch.y, reduction="none")
        return (weight * each).sum() / weight.sum()

    with pytest.raises(MethodError, match="weighs one by the others"):
        private().fit(linear(), weighed)


def test_a_loss_that_keeps_notes_is_refused() -> None:
    loc = private()
    loc.scratch["seen"] = torch.zeros(3)

    def noting(net: Any, batch: Batch, loc: Loc) -> Tensor:
        loc.scratch["seen"] += torch.bincount(batch.y, minlength=3)
        return loss(net, batch, loc)

    with pytest.raises(MethodError, match="keeps notes"):
        loc.fit(linear(), noting)
    assert not loc.scratch["seen"].any()


def test_an_order_of_the_methods_own_is_refused() -> None:
    loc = private()
    with pytest.raises(MethodError, match="rule of its own"):
        loc.fit(linear(), loss, order=loc.order)


def test_a_penalty_on_the_weights_is_no_loss_over_a_batch() -> None:
    """FedProx's term is the same for every image: it is clipped with each."""

    def pulled(net: Any, batch: Batch, loc: Loc) -> Tensor:
        return loss(net, batch, loc) + sum(p.square().sum() for p in net.parameters())

    plain, noisy = linear(), linear()
    make_loc().fit(plain, pulled)
    private(clip=HUGE, noise=0.0).fit(noisy, pulled)
    for name, tensor in state(plain).items():
        torch.testing.assert_close(state(noisy)[name], tensor, atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize(("policy", "refused"), [("average", True), ("local", True), ("frozen", False)])
def test_batch_norm_is_refused_unless_it_is_still(policy: Any, refused: bool) -> None:
    options = NetOptions(name="small-cnn", batch_norm=policy)
    net = build(options, classes=3, image_size=16, seed=0, base=Path())
    if not refused:
        check_net(net)
        return
    with pytest.raises(ConfigError, match=r'set net.batch_norm = "group", or "frozen"'):
        check_net(net)


def test_a_network_that_measures_its_images_is_refused() -> None:
    class Measuring(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.register_buffer("mean", torch.zeros(4))

        def forward(self, z: Tensor) -> Tensor:
            if self.training:
                self.mean = z.detach().mean(0)
            return z

    net = linear()
    net.body = nn.Sequential(nn.Flatten(), Measuring())
    with pytest.raises(MethodError, match="measures its images"):
        private().fit(net, loss)


def test_the_options() -> None:
    for table in ({}, {"epsilon": 8.0, "noise": 1.0}):
        with pytest.raises(ConfigError, match="either epsilon"):
            PrivacyOptions(**table)
    options = PrivacyOptions(noise=1.0, delta=1e-3)
    options.check_images("north", 999)
    with pytest.raises(ConfigError, match=r"not below 1/1000, and 'north'"):
        options.check_images("north", 1000)
    assert options.noise_of(100, 8, 3) == 1.0


@pytest.mark.sweep
@pytest.mark.filterwarnings("ignore")
def test_gradients_are_those_of_opacus() -> None:
    """Where it is right: convolutions on images laid out channels first, and nothing in place."""
    from opacus import GradSampleModule

    torch.manual_seed(0)
    conv, head = nn.Conv2d(1, 4, 2, padding=1), nn.Linear(4, 3)
    net = nn.Sequential(conv, nn.GroupNorm(2, 4), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten(), head)
    loc = private(9, HUGE, 0.0)
    named, batches = dict(net.named_parameters()), list(single(loc))
    found = []
    for batch in batches:
        noisy_gradient(loc, net, loss, named, iter([batch]), Seeded(loc.generator()), 1.0)
        found.append([p.grad.clone() for p in named.values()])
    whole = Batch((torch.cat([b.x for b in batches]),), torch.cat([b.y for b in batches]), torch.arange(9))
    GradSampleModule(net, loss_reduction="mean")
    loss(net, whole, loc).backward()
    for i, p in enumerate(named.values()):
        torch.testing.assert_close(p.grad_sample, torch.stack([one[i] for one in found]))
