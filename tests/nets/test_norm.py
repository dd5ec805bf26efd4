"""The four BatchNorm policies."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import nn

from equipoise.nets import Net, NetOptions, ProjectorSpec, batch_norm_names, build, state
from equipoise.nets.norm import normed, to_group_norm
from equipoise.seeds import generator


def make(policy: str, **options) -> Net:
    return build(NetOptions(name="small-cnn", batch_norm=policy), classes=3, seed=1, base=Path(), **options)


def images() -> torch.Tensor:
    return 3 + torch.randn(8, 3, 16, 16, generator=generator(0, "images"))


def test_names_are_scale_shift_mean_and_variance_of_every_layer():
    net = make("local", projector=ProjectorSpec((8, 8), batch_norm=True))
    layers = ["body.norm1", "body.norm2", "body.norm3", "projector.1"]
    parts = ["weight", "bias", "running_mean", "running_var"]
    assert sorted(batch_norm_names(net)) == sorted(f"{layer}.{part}" for layer in layers for part in parts)
    assert set(batch_norm_names(net)) <= set(state(net))


def test_names_leave_out_the_counter_of_a_plain_module():
    names = batch_norm_names(nn.Sequential(nn.BatchNorm2d(2)))
    assert names == ("0.weight", "0.bias", "0.running_mean", "0.running_var")


@pytest.mark.parametrize("policy", ["average", "local"])
def test_statistics_move_in_training(policy):
    net, x = make(policy).train(), images()
    net(x)
    mean = net.body.conv1(x).mean(dim=(0, 2, 3))
    torch.testing.assert_close(net.body.norm1.running_mean, 0.1 * mean.detach())


def test_frozen_statistics_stay_while_the_affine_part_trains():
    net, x = make("frozen"), images()
    net.train()
    assert net.body.training
    net(x).sum().backward()
    assert net.body.norm1.running_mean.eq(0).all()
    assert net.body.norm1.running_var.eq(1).all()
    assert net.body.norm1.weight.grad.abs().sum() > 0
    assert torch.equal(net(x), net.eval()(x))


def test_group_replaces_every_layer():
    net = make("group", projector=ProjectorSpec((12, 8), batch_norm=True))
    norms = {name: layer for name, layer in net.named_modules() if isinstance(layer, nn.GroupNorm)}
    assert {name: layer.num_groups for name, layer in norms.items()} == {
        "body.norm1": 8,
        "body.norm2": 8,
        "body.norm3": 8,
        "projector.1": 6,
    }
    assert batch_norm_names(net) == ()
    assert not any("running" in name for name in state(net))
    assert net.train()(images()[:1]).shape == (1, 3)


@pytest.mark.parametrize(("channels", "groups"), [(1, 1), (7, 7), (11, 1), (12, 6), (16, 8), (27, 3)])
def test_groups_are_the_largest_divisor_up_to_eight(channels, groups):
    net = nn.Sequential(nn.BatchNorm2d(channels))
    to_group_norm(net)
    assert net[0].num_groups == groups


def test_group_keeps_scale_shift_and_eps():
    net = nn.Sequential(nn.BatchNorm2d(2, eps=0.5))
    with torch.no_grad():
        net[0].weight.copy_(torch.tensor([2.0, 3.0]))
        net[0].bias.copy_(torch.tensor([5.0, 7.0]))
    to_group_norm(net)
    # One channel per group: values -1 and 1 have mean 0 and variance 1.
    x = torch.tensor([-1.0, 1.0]).expand(1, 2, 1, 2)
    unit = 1 / 1.5**0.5
    want = torch.tensor([[[[5 - 2 * unit, 5 + 2 * unit]], [[7 - 3 * unit, 7 + 3 * unit]]]])
    torch.testing.assert_close(net(x), want)


def a_pair(groups: int = 1, stride: int = 1) -> tuple[nn.Conv2d, nn.BatchNorm2d]:
    """A convolution and a BatchNorm that has seen something."""
    torch.manual_seed(3)
    conv = nn.Conv2d(4, 8, 3, stride, padding=1, groups=groups, bias=False)
    norm = nn.BatchNorm2d(8, eps=0.01)
    with torch.no_grad():
        for tensor in (norm.weight, norm.bias, norm.running_mean, norm.running_var):
            tensor.uniform_(0.5, 2.0)
    return conv, norm


@pytest.mark.parametrize(("groups", "stride"), [(1, 1), (4, 2)])
def test_without_gradients_it_is_one_convolution_with_the_same_values(groups, stride, monkeypatch):
    conv, norm = a_pair(groups, stride)
    conv, norm = conv.double(), norm.double().eval()
    x = torch.randn(2, 4, 6, 6, dtype=torch.float64)
    with torch.no_grad():
        want = norm(conv(x))
        monkeypatch.setattr(norm, "forward", lambda x: pytest.fail("BatchNorm was a pass of its own"))
        torch.testing.assert_close(normed(conv, norm, x), want, rtol=1e-12, atol=1e-12)


def test_where_something_trains_the_two_stay_two():
    conv, norm = a_pair()
    x = torch.randn(2, 4, 6, 6)
    frozen = norm.eval()
    assert normed(conv, frozen, x).equal(frozen(conv(x)))
    with torch.no_grad():
        before, batch = norm.running_mean.clone(), norm.train()
        assert normed(conv, batch, x).mean((0, 2, 3)).allclose(norm.bias, atol=1e-4)
        assert not batch.running_mean.equal(before)


def test_another_norm_is_left_alone():
    conv, _ = a_pair()
    group, x = nn.GroupNorm(2, 8).eval(), torch.randn(2, 4, 6, 6)
    with torch.no_grad():
        assert normed(conv, group, x).equal(group(conv(x)))
