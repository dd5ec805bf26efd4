"""Parts a method brings: heads of its own kind, and a classifier behind the projector."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import nn

from equipoise.methods.parts.bank import Bottleneck
from equipoise.nets import Cosine, Net, NetOptions, ProjectorSpec, build, load, state


def make(projector=None, make_head=None, seed: int = 1, **options) -> Net:
    chosen = NetOptions(name="small-cnn", **options)
    return build(chosen, classes=4, projector=projector, make_head=make_head, seed=seed, base=Path())


@pytest.mark.parametrize(("last", "inputs"), [(24, 24), (0, 64)])
def test_free_classifier_reads_the_projector(last, inputs):
    net = make(ProjectorSpec((0, last), batch_norm=True, activation=True, classifier=True))
    assert isinstance(net.free, nn.Linear)
    assert net.free.weight.shape == (4, inputs)
    assert net.free(net.projector(net.body(torch.zeros(2, 3, 16, 16)))).shape == (2, 4)
    assert {"free.weight", "free.bias"} < set(state(net))


def test_free_classifier_only_on_request():
    assert make().free is None
    assert make(ProjectorSpec((0, 24))).free is None
    assert not [name for name in state(make(ProjectorSpec((0, 24)))) if name.startswith("free")]


def test_free_classifier_changes_nothing_else_and_follows_the_seed():
    without, with_free = (make(ProjectorSpec((0, 24), classifier=free)) for free in (False, True))
    assert all(torch.equal(tensor, state(with_free)[name]) for name, tensor in state(without).items())
    again, other = (make(ProjectorSpec((0, 24), classifier=True), seed=seed) for seed in (1, 2))
    assert torch.equal(again.free.weight, with_free.free.weight)
    assert not torch.equal(other.free.weight, with_free.free.weight)


def test_free_classifier_is_not_part_of_the_answer():
    net = make(ProjectorSpec((0, 24), classifier=True)).eval()
    x = torch.randn(2, 3, 16, 16)
    before = net(x)
    load(net, {"free.weight": torch.ones(4, 24), "free.bias": torch.ones(4)})
    assert torch.equal(net(x), before)


def test_free_classifier_is_of_the_kind_the_config_names():
    net = make(ProjectorSpec((0, 24), classifier=True), head="cosine", scale=8.0)
    z = torch.randn(3, 24, generator=torch.Generator().manual_seed(0))
    expected = 8 * torch.cosine_similarity(z[:, None], net.free.weight[None], dim=2)
    torch.testing.assert_close(net.free(z), expected)
    assert isinstance(net.head["fed"], Cosine) and net.head["fed"].scale == 8.0


def test_method_may_bring_its_own_head():
    seen = []

    def bring(width: int, classes: int) -> nn.Module:
        seen.append((width, classes))
        return Bottleneck(width, classes, 0.2)

    net = make(make_head=bring)
    assert seen == [(64, 4)]
    assert isinstance(net.head["fed"], Bottleneck)
    assert {"head.fed.down.weight", "head.fed.up.bias", "head.fed.units"} < set(state(net))
    assert all(
        torch.equal(tensor, state(make())[name])
        for name, tensor in state(net).items()
        if name.startswith("body.")
    )
    assert torch.equal(make(make_head=bring).head["fed"].down.weight, net.head["fed"].down.weight)


@pytest.mark.parametrize(("head", "kind"), [("linear", nn.Linear), ("cosine", Cosine)])
def test_method_without_a_head_of_its_own_takes_the_one_of_the_config(head, kind):
    def decline(width: int, classes: int) -> None:
        return None

    net, plain = make(make_head=decline, head=head), make(head=head)
    assert isinstance(net.head["fed"], kind)
    assert torch.equal(net.head["fed"].weight, plain.head["fed"].weight)
