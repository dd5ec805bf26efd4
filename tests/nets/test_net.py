"""Net, its heads and projector, and reading and writing its state."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from sklearn.metrics.pairwise import cosine_similarity
from torch import nn

from equipoise.errors import WeightsError
from equipoise.nets import Cosine, Net, ProjectorSpec, load, state
from equipoise.nets.small import SmallCNN
from equipoise.seeds import generator


def make(**options) -> Net:
    return Net("small-cnn", SmallCNN(), 64, 5, {"fed": nn.Linear(64, 5), "own": nn.Linear(64, 5)}, **options)


def images(count: int = 4) -> torch.Tensor:
    return torch.randn(count, 3, 16, 16, generator=generator(0, "images"))


def test_each_head_reads_the_same_features():
    net, x = make().eval(), images()
    z = net.body(x)
    assert torch.equal(net.features(x), z)
    assert torch.equal(net(x), net.head["fed"](z))
    assert torch.equal(net(x, head="own"), net.head["own"](z))
    assert not torch.equal(net(x), net(x, head="own"))


def test_dropout_acts_on_features_in_training_only():
    net, x = make(dropout=0.25), images(32)
    net.body = nn.Flatten()
    assert torch.equal(net.eval().features(x), x.flatten(1))
    z = net.train().features(x)
    assert (z == 0).float().mean().item() == pytest.approx(0.25, abs=0.02)
    torch.testing.assert_close(z[z != 0], x.flatten(1)[z != 0] / 0.75)


def test_names_start_with_their_part():
    net = make(projector=ProjectorSpec((8,)).make(64))
    assert {name.split(".")[0] for name in state(net)} == {"body", "head", "projector"}
    assert {"body.norm1.running_var", "head.fed.weight", "head.own.bias", "projector.0.weight"} <= set(
        state(net)
    )


def test_state_is_all_there_is_and_all_float():
    net = make()
    assert set(state(net)) == {name for name, _ in [*net.named_parameters(), *net.named_buffers()]}
    assert all(tensor.dtype == torch.float32 and not tensor.requires_grad for tensor in state(net).values())


def test_state_is_live():
    net = make()
    state(net)["head.fed.bias"].fill_(7)
    assert net.head["fed"].bias.tolist() == [7] * 5


def test_load_gives_back_what_state_held():
    first, second, x = make(), make().to(memory_format=torch.channels_last), images()
    first.train()(x)
    load(second, state(first))
    assert torch.equal(second.body.norm2.running_mean, first.body.norm2.running_mean)
    torch.testing.assert_close(second.eval()(x), first.eval()(x))
    assert second.body.conv2.weight.is_contiguous(memory_format=torch.channels_last)


def test_load_takes_a_part_and_leaves_the_rest():
    net = make()
    before = {name: tensor.clone() for name, tensor in state(net).items()}
    load(net, {"head.own.bias": torch.arange(5.0)})
    changed = [name for name, tensor in state(net).items() if not torch.equal(tensor, before[name])]
    assert changed == ["head.own.bias"]
    load(net, {})


def test_load_refuses_before_copying_anything():
    net = make()
    bias = net.head["fed"].bias.clone()
    with pytest.raises(
        WeightsError, match=r"no tensor 'head\.fed\.wieght'; did you mean 'head\.fed\.weight'"
    ):
        load(net, {"head.fed.bias": torch.zeros(5), "head.fed.wieght": torch.zeros(5, 64)})
    with pytest.raises(WeightsError, match=r"'head\.own\.bias' has shape \[1\], but the net needs \[5\]"):
        load(net, {"head.fed.bias": torch.zeros(5), "head.own.bias": torch.zeros(1)})
    assert torch.equal(net.head["fed"].bias, bias)


def test_cosine_head_answers_with_cosines():
    head = Cosine(64, 5)
    z = torch.randn(3, 64, generator=generator(0, "z"))
    want = cosine_similarity(z.numpy(), head.weight.detach().numpy())
    np.testing.assert_allclose(head(z).detach().numpy(), want, atol=1e-6)
    assert [name for name, _ in head.named_parameters()] == ["weight"]


def test_cosine_head_has_a_scale():
    head, z = Cosine(64, 5, 30.0), torch.randn(3, 64, generator=generator(0, "z"))
    want = 30 * cosine_similarity(z.numpy(), head.weight.detach().numpy())
    np.testing.assert_allclose(head(z).detach().numpy(), want, rtol=1e-5, atol=1e-5)


def test_cosine_head_survives_features_of_zero():
    assert Cosine(64, 5)(torch.zeros(1, 64)).tolist() == [[0] * 5]


def test_projector_of_fediic_is_two_linear_layers():
    layers = list(ProjectorSpec((0, 1024)).make(64))
    assert [type(layer) for layer in layers] == [nn.Linear, nn.Linear]
    assert [layer.weight.shape for layer in layers] == [(64, 64), (1024, 64)]


def test_projector_of_fedmas_has_norm_and_relu_between():
    layers = list(ProjectorSpec((512, 2048), batch_norm=True, activation=True).make(64))
    assert [type(layer) for layer in layers] == [nn.Linear, nn.BatchNorm1d, nn.ReLU, nn.Linear]
    assert layers[1].num_features == 512
    assert layers[3].weight.shape == (2048, 512)


class Odd(nn.Module):
    """With all that `state` leaves out or names once: one layer and one tensor at two places, an empty place,
    a counter, and a buffer that is not kept."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Sequential(nn.Linear(3, 3), nn.BatchNorm1d(3))
        self.again, self.nothing = self.first[0], None
        self.last = nn.Linear(3, 3, bias=False)
        self.last.weight = self.first[0].weight
        self.scale = nn.Parameter(torch.ones(2))
        self.register_parameter("missing", None)
        self.register_buffer("kept", torch.ones(1))
        self.register_buffer("passing", torch.ones(1), persistent=False)


def test_state_has_what_state_dict_has_in_its_order_each_tensor_once():
    net = Odd()
    seen = dict[int, str]()
    for name, tensor in net.state_dict(keep_vars=True).items():
        if tensor.is_floating_point():
            seen.setdefault(id(tensor), name)
    found = state(net)
    assert list(found) == list(seen.values())
    assert {"scale", "kept", "first.0.weight"} <= set(found)
    assert not {"passing", "again.weight", "last.weight", "first.1.num_batches_tracked"} & set(found)
    found["scale"].zero_()
    assert not net.scale.any()
