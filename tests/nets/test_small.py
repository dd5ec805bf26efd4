"""The small CNN against the same layers written out."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F

from equipoise.nets import small
from equipoise.seeds import generator


@pytest.mark.parametrize("size", [8, 32, 64])
@pytest.mark.parametrize("channels", [1, 3])
def test_gives_one_vector_per_image(size, channels):
    assert small.SmallCNN(channels)(torch.zeros(2, channels, size, size)).shape == (2, 64)


def test_has_the_parameters_of_three_blocks():
    weights = 9 * (3 * 16 + 16 * 32 + 32 * 64)
    norms = 2 * (16 + 32 + 64)
    assert sum(p.numel() for p in small.SmallCNN().parameters()) == weights + norms == 23_696


def test_equals_relu_before_pooling():
    body = small.SmallCNN()
    x = torch.randn(4, 3, 32, 32, generator=generator(0, "x"))
    want = x
    for conv, norm in ((body.conv1, body.norm1), (body.conv2, body.norm2), (body.conv3, body.norm3)):
        want = F.conv2d(want, conv.weight, padding=1)
        want = F.batch_norm(want, None, None, norm.weight, norm.bias, training=True)
        want = F.max_pool2d(F.relu(want), 2)
    want = want.mean(dim=(2, 3))
    got = body(x)
    torch.testing.assert_close(got, want)
    parameters = list(body.parameters())
    gradients = torch.autograd.grad(got.square().sum(), parameters)
    torch.testing.assert_close(gradients, torch.autograd.grad(want.square().sum(), parameters))


@pytest.mark.parametrize("size", [(8, 8), (9, 8), (6, 7), (3, 5), (2, 2)])
@pytest.mark.parametrize("layout", [torch.contiguous_format, torch.channels_last])
def test_without_gradients_pooling_gives_the_same_values_in_the_same_layout(size, layout):
    x = torch.randn(2, 4, *size, generator=generator(0, "x")).to(memory_format=layout)
    x[0, 0, 0, 1] = torch.nan
    want = F.max_pool2d(x, 2)
    with torch.no_grad():
        got = small.halved(x)
    torch.testing.assert_close(got, want, rtol=0, atol=0, equal_nan=True)
    assert got.is_contiguous(memory_format=layout)
    assert small.halved(x.requires_grad_()).grad_fn is not None
