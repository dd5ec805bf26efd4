"""Building from options: seeds, defaults and refusals."""

from __future__ import annotations

import random
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from pydantic import ValidationError

from equipoise.errors import ConfigError
from equipoise.nets import NETS, Cosine, Net, NetOptions, ProjectorSpec, build, state
from equipoise.options import described

BASE = Path()


def make(name: str = "small-cnn", seed: int = 1, **options) -> Net:
    return build(NetOptions(name=name), classes=4, seed=seed, base=BASE, **options)


def same(a: Net, b: Net) -> dict[str, bool]:
    return {
        name: torch.equal(tensor, state(b)[name]) for name, tensor in state(a).items() if name in state(b)
    }


def test_same_seed_gives_same_bits():
    spec = ProjectorSpec((0, 8), batch_norm=True)
    assert all(same(make(projector=spec), make(projector=spec)).values())


def test_another_seed_gives_other_weights():
    alike = same(make(seed=1), make(seed=2))
    assert not any(alike[name] for name in ("body.conv1.weight", "body.conv3.weight", "head.fed.weight"))


def test_adding_heads_and_projector_changes_nothing_else():
    small, large = make(), make(heads=("own", "fed"), projector=ProjectorSpec((8,)))
    assert all(same(small, large).values())
    assert set(state(small)) < set(state(large))
    assert not torch.equal(large.head["own"].weight, large.head["fed"].weight)


def test_global_generators_are_untouched():
    before = torch.get_rng_state(), np.random.get_state()[1].copy(), random.getstate()
    make(projector=ProjectorSpec((8,)))
    assert torch.equal(torch.get_rng_state(), before[0])
    assert np.array_equal(np.random.get_state()[1], before[1])
    assert random.getstate() == before[2]


def test_global_generator_does_not_matter():
    first = make()
    with torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(99)
        second = make()
    assert all(same(first, second).values())


def test_kernels_are_channels_last():
    assert make().body.conv2.weight.is_contiguous(memory_format=torch.channels_last)
    assert not make().body.conv2.weight.is_contiguous()


@pytest.mark.parametrize(
    ("name", "rate"), [("small-cnn", 0.0), ("mobilenet-v2", 0.2), ("efficientnet-lite0", 0.2)]
)
def test_dropout_follows_the_architecture_unless_given(name, rate):
    assert make(name).dropout.p == NETS[name].dropout == rate
    assert build(NetOptions(name=name, dropout=0.4), classes=2, seed=0, base=BASE).dropout.p == 0.4
    assert build(NetOptions(name=name, dropout=0.0), classes=2, seed=0, base=BASE).dropout.p == 0.0


def test_cosine_head_on_request():
    net = build(
        NetOptions(name="small-cnn", head="cosine"), classes=4, heads=("fed", "own"), seed=0, base=BASE
    )
    assert all(isinstance(head, Cosine) for head in net.head.values())
    assert net(torch.randn(2, 3, 16, 16)).abs().max() <= 1


def test_grey_images():
    assert make(channels=1)(torch.zeros(2, 1, 32, 32)).shape == (2, 4)


def test_images_too_small_are_refused():
    with pytest.raises(ConfigError, match="'densenet121' needs images of at least 32 pixels a side, not 28"):
        make("densenet121", image_size=28)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"name": "resnet81"}, "unknown net 'resnet81': did you mean 'resnet18'"),
        ({"name": "small-cnn", "dropout": 1.0}, "less than 1"),
        ({"name": "small-cnn", "dropout": -0.1}, "greater than or equal to 0"),
        ({"name": "small-cnn", "sha256": "abc"}, "String should match pattern"),
        ({"name": "small-cnn", "batch_norm": "none"}, "'average', 'local', 'frozen' or 'group'"),
        ({"name": "small-cnn", "channels": 1}, "Extra inputs are not permitted"),
    ],
)
def test_wrong_options_are_refused(options, message):
    with pytest.raises(ValidationError, match=message):
        NetOptions(**options)


def test_every_architecture_is_named_in_the_description():
    text = described(NetOptions)["name"]
    assert [name for name in NETS if name not in text] == []


IMPORT = """
import sys
reached = []
sys.addaudithook(lambda event, given: reached.append(event) if event in EVENTS else None)
import equipoise.nets
print(sorted(HEAVY & set(sys.modules)), reached)
"""


def test_importing_is_light_and_reaches_for_no_network():
    heavy = {"monai", "torchvision", "timm", "kornia", "sklearn"}
    events = {"socket.connect", "socket.getaddrinfo", "socket.gethostbyname", "socket.sendto"}
    code = IMPORT.replace("HEAVY", repr(heavy)).replace("EVENTS", repr(events))
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[] []"
